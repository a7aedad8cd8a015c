"""Clients that are slow, silent, many or malicious get a clear answer, and take nothing from the others."""

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import httpx
import pytest

from tests.support.served import ServedProcess, served
from tests.support.upstream import Upstream, write_remote_catalog

pytestmark = pytest.mark.processes

CHAT = "/v1/chat/completions"
MOST = 24
STRICT_SECONDS = 2
BODY = json.dumps({"model": "tier-1", "messages": [{"role": "user", "content": "Hello there"}]}).encode()
TYPE = "Content-Type: application/json"
HEAD = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n{TYPE}\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()
LOG_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.,]\d{3}Z? (DEBUG|INFO|WARNING|ERROR) +\S+ ")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


def gateway(data: Path, upstream: Upstream, request_seconds: int) -> AbstractContextManager[ServedProcess]:
    data.mkdir(exist_ok=True)
    catalog = write_remote_catalog(data / "catalog.toml", upstream.base_url)
    bounds = {
        "AIO_REQUEST_SECONDS": str(request_seconds),
        "AIO_MAX_CONNECTIONS": str(MOST),
        "AIO_BODY_LIMIT": str(4 << 20),
    }
    return served(data, data / "cache", "--catalog", str(catalog), environment=bounds)


@pytest.fixture(scope="module")
def aio(upstream: Upstream, data: Path) -> Iterator[ServedProcess]:
    """Gives no client up that a busy machine keeps waiting."""
    with gateway(data, upstream, request_seconds=200) as process:
        yield process


@pytest.fixture(scope="module")
def strict(upstream: Upstream, data: Path) -> Iterator[ServedProcess]:
    """Gives requests up that do not arrive."""
    with gateway(data / "strict", upstream, STRICT_SECONDS) as process:
        yield process


def connect(aio: ServedProcess) -> socket.socket:
    host, port = aio.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=120)


def rest(connection: socket.socket) -> str:
    """Return everything until the server closes."""
    text = b""
    while piece := connection.recv(65_536):
        text += piece
    return text.decode()


def said(connection: socket.socket) -> bytes:
    """As `rest`, for a server that may have closed while data was on its way to it."""
    text = b""
    with suppress(ConnectionResetError):
        while piece := connection.recv(65_536):
            text += piece
    return text


def resident_bytes(aio: ServedProcess) -> int:
    """Resident memory of the process."""
    status = Path(f"/proc/{aio.process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) * 1024  # type: ignore[index]


def answered(aio: ServedProcess) -> bool:
    return httpx.post(f"{aio.url}{CHAT}", content=BODY, headers={"content-type": "application/json"}).status_code == 200


@pytest.mark.parametrize("sent", [b"", HEAD[:40], HEAD, HEAD + BODY[:-1]], ids=["nothing", "head", "no body", "body"])
def test_a_request_that_does_not_arrive_is_given_up(strict: ServedProcess, sent: bytes) -> None:
    with connect(strict) as connection:
        connection.sendall(sent)
        answer = rest(connection)
    assert answer.startswith("HTTP/1.1 408 Request Timeout\r\n")
    assert json.loads(answer.split("\r\n\r\n")[1])["error"]["code"] == "request_timeout"
    assert answered(strict)


def test_a_kept_connection_must_send_its_next_request_in_time_too(strict: ServedProcess) -> None:
    with connect(strict) as connection:
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


def test_a_file_that_arrives_steadily_has_the_time_it_takes(strict: ServedProcess) -> None:
    with connect(strict) as connection:
        pieces = round(2 * STRICT_SECONDS / 0.2)
        connection.sendall(upload_head(pieces))
        for _ in range(pieces):
            # A slow line: together they take twice as long as a request may take.
            threading.Event().wait(0.2)
            connection.sendall(PIECE)
        connection.sendall(b"\r\n--b--\r\n")
        assert connection.recv(15) == b"HTTP/1.1 200 OK"


def test_a_file_that_stops_arriving_is_given_up(strict: ServedProcess) -> None:
    with connect(strict) as connection:
        connection.sendall(upload_head(10) + PIECE)
        assert rest(connection).startswith("HTTP/1.1 408 Request Timeout\r\n")
    assert answered(strict)


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


def test_connections_above_the_limit_get_a_503(strict: ServedProcess) -> None:
    for _ in range(5):
        crowd = [connect(strict) for _ in range(MOST)]
        with connect(strict) as late:
            answer = rest(late)
        # On a busy machine the first of the crowd may have been given up before.
        if not answer.startswith("HTTP/1.1 408"):
            break
    assert answer.startswith("HTTP/1.1 503 Service Unavailable\r\n")
    assert "\r\nretry-after: 1\r\n" in answer
    # Idle connections have been closed by now, and others are served.
    assert all(rest(connection).startswith("HTTP/1.1 408") for connection in crowd)
    for connection in crowd:
        connection.close()
    assert answered(strict)


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


CHUNKED = HEAD.replace(b"Content-Length: %d" % len(BODY), b"Transfer-Encoding: chunked") + b"1\r\n{\r\n"
UPGRADE = (
    b"GET /v1/chat/completions/ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
# How much of an attack may be in the buffers of both ends once the server has closed.
BUFFERS = 16_000_000
# What a process may grow by for other reasons.
GROWTH = 8_000_000
ENDLESS = {
    "URL": (b"GET /", b"a" * 65_536, 414),
    "request line": (b"GET ", b" " * 65_536, 414),
    "header": (b"GET / HTTP/1.1\r\nCookie: ", b"a" * 65_536, 431),
    "header's name": (b"GET / HTTP/1.1\r\n", b"a" * 65_536, 431),
    "white space": (b"GET / HTTP/1.1\r\nCookie:", b" " * 65_536, 431),
    "headers": (b"GET / HTTP/1.1\r\n", b"a: b\r\n" * 10_000, 431),
    "long headers": (b"GET / HTTP/1.1\r\n", (b"a: " + b"b" * 8000 + b"\r\n") * 8, 431),
    "empty lines": (b"", b"\r\n" * 32_768, 431),
    "chunk extension": (CHUNKED + b"5;", b"a" * 65_536, 431),
    "chunk extensions": (CHUNKED, (b"1;" + b"a" * 8000 + b"\r\n \r\n") * 8, 431),
    "trailer": (CHUNKED + b"0\r\nA: ", b"a" * 65_536, 431),
    "trailers": (CHUNKED + b"0\r\n", b"a: b\r\n" * 10_000, 431),
    "upgrade": (UPGRADE + b"Cookie: ", b"a" * 65_536, 431),
}


@pytest.mark.parametrize("attack", ENDLESS)
def test_an_endless_head_is_refused_at_its_limit(aio: ServedProcess, data: Path, attack: str) -> None:
    begins, goes_on, status = ENDLESS[attack]
    before, logged = resident_bytes(aio), (data / "log").stat().st_size
    with connect(aio) as connection:
        sent = 0
        with suppress(ConnectionError):
            connection.sendall(begins)
            while sent < 60_000_000:
                connection.sendall(goes_on)
                sent += len(goes_on)
        answer = said(connection)
    head, _, body = answer.decode().partition("\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ")
    assert "connection: close" in head
    error = json.loads(body)["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", "cookie" if b"Cookie" in begins else None)
    assert sent < BUFFERS
    assert resident_bytes(aio) - before < GROWTH
    assert (data / "log").stat().st_size == logged
    assert httpx.get(f"{aio.url}/health/live", timeout=120).status_code == 200


@pytest.mark.parametrize("packet", [100_000, 999])
def test_a_head_at_the_limits_is_served(aio: ServedProcess, packet: int) -> None:
    start = b"GET /health/live?%b HTTP/1.1\r\n" % (b"a" * (8192 - 28))
    headers = (b"a: " + b"b" * (16_384 - 5) + b"\r\n") * 3 + b"c: d\r\n" * 95 + b"Connection: close\r\n"
    head = start + headers + b"e: " + b"f" * (65_536 - len(start) - len(headers) - 7) + b"\r\n\r\n"
    assert (len(start), len(head)) == (8192, 65_536)
    for request, status in ((head, 200), (head.replace(b"e: ", b"e:  "), 431)):
        with connect(aio) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with suppress(ConnectionError):
                for at in range(0, len(request), packet):
                    connection.sendall(request[at : at + packet])
            assert said(connection).startswith(b"HTTP/1.1 %d " % status)


def test_what_follows_a_refusal_is_not_read(aio: ServedProcess) -> None:
    with connect(aio) as connection:
        connection.sendall(HEAD.replace(b"Content-Length", b"X-Long: %b\r\nContent-Length" % (b"a" * 20_000)))
        with pytest.raises(ConnectionError):
            connection.sendall(b"x" * 60_000_000)
        assert said(connection).startswith(b"HTTP/1.1 431 ")


def test_requests_before_a_bad_one_are_answered_first(aio: ServedProcess) -> None:
    with connect(aio) as connection:
        bad = b"GET /%b HTTP/1.1\r\nHost: x\r\n\r\n" % (b"a" * 100_000)
        connection.sendall((HEAD + BODY) * 3 + bad)
        answers = said(connection)
    assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"200", b"200", b"200", b"414"]


def test_so_many_requests_at_a_time_wait_on_one_connection(aio: ServedProcess) -> None:
    with connect(aio) as connection:
        connection.sendall(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n" * 1000)
        statuses = re.findall(rb"HTTP/1.1 (\d+)", said(connection))
    assert statuses[0] == b"200"
    assert statuses[-1] == b"429"
    assert len(statuses) < 1000


def test_a_trailer_is_no_header(aio: ServedProcess) -> None:
    with connect(aio) as connection:
        close = CHUNKED.replace(b"Host", b"Connection: close\r\nHost")
        connection.sendall(close + b"0\r\nx-request-id: from-the-trailer\r\n\r\n")
        answer = rest(connection)
    assert answer.startswith("HTTP/1.1 400 ")
    assert "x-request-id: req" in answer or "x-request-id: chatcmpl" in answer
    assert "from-the-trailer" not in answer


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"Authorization: Bearer " + b"a" * 10_000, 431),
        (b"Transfer-Encoding: chunked", 400),
        (b"Content-Length: 5", 400),
    ],
    ids=["long line", "chunked", "body"],
)
def test_an_upgrade_that_the_websocket_library_does_not_take_is_answered(
    aio: ServedProcess, line: bytes, status: int
) -> None:
    with connect(aio) as connection:
        connection.sendall(UPGRADE + line + b"\r\n\r\n")
        answer = said(connection)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"


def test_an_upgrade_behind_an_unanswered_request_is_refused(aio: ServedProcess) -> None:
    with connect(aio) as connection:
        connection.sendall(HEAD + BODY + UPGRADE + b"\r\n")
        answers = said(connection)
    assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"200", b"400"]


def frame(opcode: int, payload: bytes, final: bool = True) -> bytes:
    """A client's frame of less than 126 bytes, masked with zeroes."""
    return bytes([final << 7 | opcode, 0x80 | len(payload), 0, 0, 0, 0]) + payload


@pytest.mark.parametrize(
    "frames",
    [frame(9, b"x" * 125) * 180_000, frame(1, b"", final=False) + frame(0, b"ab", final=False) * 300_000],
    ids=["pings", "fragments"],
)
def test_frames_of_a_client_that_reads_nothing_cost_no_more_than_their_bytes(aio: ServedProcess, frames: bytes) -> None:
    with connect(aio) as connection:
        connection.sendall(UPGRADE + b"\r\n")
        assert connection.recv(12) == b"HTTP/1.1 101"
        before = resident_bytes(aio)
        connection.sendall(frames)
        assert answered(aio)
        assert resident_bytes(aio) - before < GROWTH


def test_a_message_in_fragments_has_a_limit(aio: ServedProcess) -> None:
    with connect(aio) as connection:
        connection.sendall(UPGRADE + b"\r\n")
        assert connection.recv(12) == b"HTTP/1.1 101"
        with suppress(ConnectionError):
            connection.sendall(frame(1, b"", final=False))
            for _ in range(45_000):
                connection.sendall(frame(0, b"x" * 120, final=False))
        # A close frame with the status "message too big".
        assert b"\x03\xf1" in said(connection)


@pytest.mark.parametrize(
    "frames",
    [
        frame(1, b"\xff\xfe"),
        frame(1, b"\xff\xfe") + frame(8, b"\x03\xe8"),
        frame(1, b"no JSON") + frame(8, b"\x03\xe8"),
        frame(1, b"{}") * 20 + frame(8, b"\x03\xe8"),
    ],
    ids=["no UTF-8", "no UTF-8, closed", "no JSON, closed", "messages, closed"],
)
def test_frames_that_cannot_be_answered_are_no_failure_of_ours(aio: ServedProcess, data: Path, frames: bytes) -> None:
    logged = (data / "log").stat().st_size
    for _ in range(3):
        with connect(aio) as connection:
            connection.sendall(UPGRADE + b"\r\n")
            assert connection.recv(12) == b"HTTP/1.1 101"
            connection.sendall(frames)
            # A close frame of ours, on either side's initiative.
            assert b"\x88" in said(connection)
    assert answered(aio)
    written = (data / "log").read_bytes()[logged:].decode()
    assert "ERROR" not in written, written


@pytest.mark.parametrize("path", ["/docs", "/docs/openapi.json"])
def test_the_documentation_is_shown_to_any_caller(aio: ServedProcess, path: str) -> None:
    assert httpx.get(f"{aio.url}{path}", timeout=60).status_code == 200
