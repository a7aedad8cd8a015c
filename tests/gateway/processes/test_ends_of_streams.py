"""The bytes that a client reads when a shutdown's time is over: the error event and the end of its own API."""

import json
import signal
import socket
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from tests.support.served import ENDED_SECONDS, ServedProcess, served
from tests.support.upstream import Upstream, write_remote_catalog

pytestmark = pytest.mark.processes

HOLD = [{"role": "user", "content": "hold the line"}]
STREAMS: Final = 50
CHATS = ("/v1/chat/completions", {"model": "tier-1", "messages": HOLD})
MESSAGES = ("/v1/messages", {"model": "tier-1", "max_tokens": 99, "messages": HOLD})
RESPONSES = ("/v1/responses", {"model": "tier-1", "input": "hold the line"})
APIS = pytest.mark.parametrize(("path", "body"), [CHATS, MESSAGES, RESPONSES], ids=["chats", "Messages", "Responses"])


def asked(aio: ServedProcess, path: str, body: dict[str, Any]) -> socket.socket:
    """A connection with a request on it."""
    address = urlsplit(aio.url)
    assert address.hostname is not None
    connection = socket.create_connection((address.hostname, address.port or 80), timeout=ENDED_SECONDS)
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: {address.netloc}\r\ncontent-type: application/json\r\n"
    connection.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
    return connection


def all_read(connection: socket.socket) -> tuple[bytes, bytes]:
    """The head and the rest of what a connection brings until its end."""
    with connection:
        found = b""
        while piece := connection.recv(65536):
            found += piece
    head, _, rest = found.partition(b"\r\n\r\n")
    return head, rest


def stopped(
    own_upstream: Upstream, folder: Path, path: str, bodies: list[dict[str, Any]]
) -> tuple[list[tuple[bytes, bytes]], str]:
    """What the requests brought that wait for their server while the gateway stops, and the log."""
    catalog = write_remote_catalog(folder / "catalog.toml", own_upstream.base_url)
    options = ("--catalog", str(catalog))
    with served(folder / "data", folder / "cache", *options, environment={"AIO_DRAIN_SECONDS": "1"}) as aio:
        connections = [asked(aio, path, body) for body in bodies]
        for _ in bodies:
            assert own_upstream.held.acquire(timeout=120)
        aio.process.send_signal(signal.SIGTERM)
        found = [all_read(connection) for connection in connections]
        assert aio.process.wait(ENDED_SECONDS) == 0
    return found, (folder / "data" / "log").read_text()


def last_event(path: str, stream: bytes) -> dict[str, Any]:
    """The last event of a whole chunked stream: it ends with the last chunk, after a whole event."""
    assert stream.endswith(b"\n\n\r\n0\r\n\r\n")
    event = stream.removesuffix(b"\n\n\r\n0\r\n\r\n").rpartition(b"\n")[2]
    found: dict[str, Any] = json.loads(event.removeprefix(b"data: "))
    return found


@APIS
def test_each_stream_ends_with_the_error_event_of_its_api_and_the_last_chunk(
    path: str, body: dict[str, Any], own_upstream: Upstream, tmp_path: Path
) -> None:
    found, log = stopped(own_upstream, tmp_path, path, [body | {"stream": True}] * STREAMS)
    for head, stream in found:
        assert head.startswith(b"HTTP/1.1 200 ")
        assert b"hold" in stream
        event = last_event(path, stream)
        match path:
            case "/v1/messages":
                assert event["type"] == "error"
                assert event["error"]["type"] == "overloaded_error"
            case "/v1/responses":
                assert event["type"] == "response.failed"
                assert event["response"]["error"]["code"] == "shutting_down"
            case _:
                assert event["error"]["code"] == "shutting_down"
    assert "Traceback" not in log
    assert log.count(f"{STREAMS} answers did not end in time") == 1


@APIS
def test_whole_answers_are_refused_as_json(
    path: str, body: dict[str, Any], own_upstream: Upstream, tmp_path: Path
) -> None:
    found, log = stopped(own_upstream, tmp_path, path, [body] * 3)
    for head, content in found:
        # The Messages API has a status of its own for a server that takes no more.
        assert head.startswith(b"HTTP/1.1 529 " if path == MESSAGES[0] else b"HTTP/1.1 503 ")
        assert b"retry-after: 1" in head.lower()
        assert "shutting down" in json.loads(content)["error"]["message"]
    assert "Traceback" not in log
