"""What a client sends over a WebSocket waits in the client's buffers until it is admitted, parsed, and taken."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from gateway.edge import websocket_protocol
from gateway.edge.websocket_protocol import UNADMITTED_BYTES, admit_frames
from gateway.processes.server import WEBSOCKETS
from tests.polling import eventually

UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def frame(opcode: int, payload: bytes, final: bool = True) -> bytes:
    """A client's frame, masked with zeroes."""
    return bytes([final << 7 | opcode, 0xFF]) + len(payload).to_bytes(8, "big") + bytes(4) + payload


class Application:
    """Accepts, and proceeds from one step to the next when allowed."""

    def __init__(self) -> None:
        self.accepted, self.go = asyncio.Event(), asyncio.Event()
        self.admits, self.expected = False, 0
        self.answer: str | None = None
        self.messages: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        self.accepted.set()
        await self.go.wait()
        if self.admits:
            admit_frames(scope)
        while len(self.messages) < self.expected:
            self.messages.append((await receive())["text"])
        if self.answer is not None:
            await send({"type": "websocket.send", "text": self.answer})


class Served:
    """A server with one client, which sends the rest of the handshake."""

    def __init__(self, server: uvicorn.Server, writer: asyncio.StreamWriter) -> None:
        self.server, self.writer = server, writer

    @property
    def protocol(self) -> Any:
        (connection,) = self.server.server_state.connections
        return connection

    def holds(self) -> int:
        """Bytes and messages in the server that the application has not taken."""
        return len(self.protocol._unparsed) + len(self.protocol._fragments) + self.protocol.queue.qsize()

    async def takes_no_more(self) -> None:
        await eventually(lambda: not self.protocol.transport.is_reading())


@asynccontextmanager
async def served(application: Application) -> AsyncIterator[Served]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(application, lifespan="off", log_config=None, http="httptools", **WEBSOCKETS)
    )
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    reader, writer = await asyncio.open_connection(*listener.getsockname(), limit=1024)
    writer.write(UPGRADE)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
    await application.accepted.wait()
    try:
        yield Served(server, writer)
    finally:
        application.go.set()
        writer.transport.abort()
        server.should_exit = True
        await serving


@pytest.mark.asyncio
async def test_of_a_caller_that_is_not_admitted_little_is_parsed_and_no_more_is_read() -> None:
    application = Application()
    application.admits, application.expected = True, 1
    fragments = [frame(1, b"a" * 1000, final=False), *[frame(0, b"b" * 1000, final=False)] * 12_000, frame(0, b"c")]
    async with served(application) as server:
        server.writer.write(b"".join(fragments))
        await server.takes_no_more()
        assert len(server.protocol._fragments) <= UNADMITTED_BYTES
        assert server.holds() < 1_000_000
        application.go.set()
        await eventually(lambda: application.messages)
    assert application.messages == ["a" * 1000 + "b" * 12_000_000 + "c"]


@pytest.mark.asyncio
async def test_a_short_message_needs_no_admission() -> None:
    application = Application()
    application.expected = 1
    application.go.set()
    async with served(application) as server:
        server.writer.write(frame(1, b"k" * (UNADMITTED_BYTES - 100)))
        await eventually(lambda: application.messages)


@pytest.mark.asyncio
async def test_messages_that_come_together_are_queued_a_few_at_a_time_and_none_is_lost() -> None:
    application = Application()
    sent = [str(number) for number in range(30_000)]
    application.admits, application.expected = True, len(sent)
    async with served(application) as server:
        server.protocol._admit()
        server.writer.write(b"".join(frame(1, text.encode()) for text in sent))
        await server.takes_no_more()
        assert server.protocol.queue.qsize() < 1200
        application.go.set()
        await eventually(lambda: len(application.messages) == len(sent))
    assert application.messages == sent


@pytest.mark.asyncio
async def test_a_client_that_takes_nothing_does_not_keep_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket_protocol, "_FLUSH_SECONDS", 0.1)
    application = Application()
    application.answer = "x" * 30_000_000
    application.go.set()
    async with served(application) as server:
        await eventually(lambda: not server.server.server_state.connections)
