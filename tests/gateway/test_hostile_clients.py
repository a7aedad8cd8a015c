"""Clients that are slow, silent, many or malicious get a clear answer, and take nothing from the others."""

import json
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.gateway.remote_catalog import write_remote_catalog
from tests.gateway.served_process import ServedProcess, served
from tests.gateway.upstream import Upstream, running_upstream

CHAT = "/v1/chat/completions"
MOST = 24
BODY = json.dumps({"model": "tier-1", "messages": [{"role": "user", "content": "Hello there"}]}).encode()
TYPE = "Content-Type: application/json"
HEAD = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n{TYPE}\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()
LOG_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.,]\d{3}Z? (DEBUG|INFO|WARNING|ERROR) +\S+ ")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "127.0.0.1")
        with running_upstream() as server:
            yield server


@pytest.fixture(scope="module")
def aio(upstream: Upstream, data: Path) -> Iterator[ServedProcess]:
    catalog = write_remote_catalog(data / "catalog.toml", upstream.base_url)
    bounds = {"AIO_REQUEST_SECONDS": "1", "AIO_MAX_CONNECTIONS": str(MOST)}
    with served(data, data / "cache", "--catalog", str(catalog), environment=bounds) as process:
        yield process


def connect(aio: ServedProcess) -> socket.socket:
    host, port = aio.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=30)


def rest(connection: socket.socket) -> str:
    """All that comes until the server closes."""
    text = b""
    while piece := connection.recv(65_536):
        text += piece
    return text.decode()


def answered(aio: ServedProcess) -> bool:
    return httpx.post(f"{aio.url}{CHAT}", content=BODY, headers={"content-type": "application/json"}).status_code == 200


@pytest.mark.parametrize("sent", [b"", HEAD[:40], HEAD, HEAD + BODY[:-1]], ids=["nothing", "head", "no body", "body"])
def test_a_request_that_does_not_arrive_is_given_up(aio: ServedProcess, sent: bytes) -> None:
    with connect(aio) as connection:
        connection.sendall(sent)
        answer = rest(connection)
    assert answer.startswith("HTTP/1.1 408 Request Timeout\r\n")
    assert json.loads(answer.split("\r\n\r\n")[1])["error"]["code"] == "request_timeout"
    assert answered(aio)


def test_a_kept_connection_must_send_its_next_request_in_time_too(aio: ServedProcess) -> None:
    with connect(aio) as connection:
        connection.sendall(HEAD + BODY + HEAD[:40])
        answers = rest(connection)
    assert answers.startswith("HTTP/1.1 200 OK\r\n")
    assert "HTTP/1.1 408 Request Timeout\r\n" in answers


def test_a_request_that_arrives_byte_by_byte_is_answered(aio: ServedProcess) -> None:
    with connect(aio) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in HEAD + BODY:
            connection.sendall(bytes([byte]))
        assert connection.recv(15) == b"HTTP/1.1 200 OK"


PIECE = b"x" * 262_144
FORM = (
    b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n'
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
)


def upload_head(pieces: int) -> bytes:
    length = len(FORM) + pieces * len(PIECE) + len(b"\r\n--b--\r\n")
    lines = ("POST /v1/files HTTP/1.1", "Host: localhost", "Content-Type: multipart/form-data; boundary=b")
    return ("\r\n".join(lines) + f"\r\nContent-Length: {length}\r\n\r\n").encode() + FORM


def test_a_file_that_arrives_steadily_has_the_time_it_takes(aio: ServedProcess) -> None:
    with connect(aio) as connection:
        connection.sendall(upload_head(10))
        for _ in range(10):
            # A slow line: together they take twice as long as a request may.
            threading.Event().wait(0.2)
            connection.sendall(PIECE)
        connection.sendall(b"\r\n--b--\r\n")
        assert connection.recv(15) == b"HTTP/1.1 200 OK"


def test_a_file_that_stops_arriving_is_given_up(aio: ServedProcess) -> None:
    with connect(aio) as connection:
        connection.sendall(upload_head(10) + PIECE)
        assert rest(connection).startswith("HTTP/1.1 408 Request Timeout\r\n")
    assert answered(aio)


def test_an_answer_may_be_read_byte_by_byte_while_others_are_served(aio: ServedProcess) -> None:
    body = json.dumps(json.loads(BODY) | {"stream": True}).encode()
    with connect(aio) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        connection.sendall(HEAD.replace(b"%d\r\n" % len(BODY), b"%d\r\nConnection: close\r\n" % len(body)) + body)
        text = connection.recv(1)
        assert answered(aio)
        while byte := connection.recv(1):
            text += byte
    assert text.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_connections_beyond_the_most_are_told_to_come_back(aio: ServedProcess) -> None:
    crowd = [connect(aio) for _ in range(MOST)]
    with connect(aio) as late:
        answer = rest(late)
    assert answer.startswith("HTTP/1.1 503 Service Unavailable\r\n")
    assert "\r\nretry-after: 1\r\n" in answer
    # Whoever only opened a connection has lost it by now, and others are served.
    assert all(rest(connection).startswith("HTTP/1.1 408") for connection in crowd)
    for connection in crowd:
        connection.close()
    assert answered(aio)


@pytest.mark.parametrize("injected", ["x\r\nset-cookie: a=b", "x\nset-cookie: a=b", "x\0y"])
def test_no_header_of_a_caller_becomes_a_header_of_ours(aio: ServedProcess, injected: str) -> None:
    with connect(aio) as connection:
        extra = f"\r\nx-request-id: {injected}\r\nx-aio-conversation: {injected}\r\nConnection: close\r\n\r\n".encode()
        connection.sendall(HEAD.replace(b"\r\n\r\n", extra, 1) + BODY)
        head = rest(connection).split("\r\n\r\n")[0].lower()
    assert "set-cookie" not in head


def test_nothing_that_a_caller_sends_begins_a_line_of_the_log(aio: ServedProcess, data: Path) -> None:
    forged = "x\n2026-01-01 00:00:00,000 ERROR forged entry"
    headers = {"x-request-id": "a b\tc", "content-type": "application/json", "authorization": "Bearer \x7f%0a"}
    for body in ({"model": forged}, {"model": "tier-1", "messages": [{"role": "user", "content": forged}], forged: 1}):
        httpx.post(f"{aio.url}{CHAT}", json=body, headers=headers)
    for path in ("/v1/models/%0aforged%0dentry", "/v1/requests/%0aforged", "/%0aforged?a=%0aforged"):
        assert httpx.get(f"{aio.url}{path}", headers=headers).status_code in (400, 404)
    with connect(aio) as connection:
        connection.sendall(b"\x16\x03\x01 forged\r\nforged\r\n\r\n")
        rest(connection)
    lines = (data / "log").read_text().splitlines()
    assert lines
    assert all(LOG_LINE.match(line) for line in lines)
    assert not any("forged" in line for line in lines)
