"""What arrives over WebSockets: frames as packets, through the server's WebSocket protocol, and messages in them."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import uvicorn
from uvicorn.server import ServerState

from gateway.edge.websocket_protocol import BoundedWebSocketProtocol
from gateway.processes.server import WEBSOCKETS
from tests.fuzz.asgi_gateway import ADMIN, gateway
from tests.fuzz.bodies import CHAT
from tests.fuzz.pieces import pieces_of
from tests.gateway.edge.test_websocket_bounds import UPGRADE, frame
from tests.hostile.target import fuzz_target

_MOST_MESSAGE = 1 << 20
# Turns of the loop in which an application must have taken what was sent.
_MOST_TURNS = 100_000


class _Transport(SimpleNamespace):
    """Records what a connection was sent, and whether it was closed."""

    def __init__(self) -> None:
        super().__init__(sent=b"", closed=False)

    def get_extra_info(self, name: str, default: object = None) -> None:
        return None

    def write(self, data: bytes) -> None:
        self.sent += data

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return bool(self.closed)

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class _Application:
    """Accepts, and keeps every message."""

    def __init__(self) -> None:
        self.messages: list[str | bytes] = []
        self.code: int | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        scope["extensions"]["aio.admission"]["admit"]()
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                self.code = message["code"]
                return
            self.messages.append(message["text"] if message.get("text") is not None else message["bytes"])


_loop = asyncio.new_event_loop()


async def _served(pieces: list[bytes]) -> _Application:
    application, transport = _Application(), _Transport()
    settings = WEBSOCKETS | {"ws_max_size": _MOST_MESSAGE}
    config = uvicorn.Config(cast(Any, application), lifespan="off", log_config=None, access_log=False, **settings)
    config.load()
    protocol = BoundedWebSocketProtocol(config, ServerState(), {})
    protocol.connection_made(cast(Any, transport))
    protocol.data_received(UPGRADE)
    for _ in range(8):
        await asyncio.sleep(0)
    for piece in pieces:
        if not transport.closed:
            protocol.data_received(piece)
        await asyncio.sleep(0)
    for _ in range(_MOST_TURNS):
        await asyncio.sleep(0)
        if transport.closed or not (protocol.queue.qsize() or protocol._unparsed):
            break
    protocol.connection_lost(None)
    for _ in range(_MOST_TURNS):
        if not protocol.tasks:
            return application
        await asyncio.sleep(0)
    raise AssertionError("the application did not end with its connection")


_TEXT = frame(1, b"Hello")
_WORDS = [
    b"\x81\x85" + bytes(4) + b"Hello",
    b"\x89\x80" + bytes(4),
    b"\x88\x82" + bytes(4) + b"\x03\xe8",
    b"\x80\x80" + bytes(4),
]


@fuzz_target(
    [
        _TEXT,
        _TEXT * 3,
        frame(1, b"a", False) + frame(9, b"ping") + frame(0, b"b"),
        frame(8, b"\x03\xe8bye"),
        frame(2, b"\xff"),
        frame(1, "größe".encode()),
        b"\x81\xfe\x00\x05" + bytes(4) + b"Hello",
    ],
    [*_WORDS, b"\xff\xff\xff\xff\xff\xff\xff\xff", b"\xfe\xff\xff", b"\xc1\x80"],
    inputs=400,
)
def frames(data: bytes) -> str:
    """Any bytes after the handshake: messages within the limit, then one end of the connection."""
    whole = _loop.run_until_complete(_served([data]))
    cut = _loop.run_until_complete(_served(list(pieces_of(data))))
    # After a frame that breaks the protocol the connection fails, and messages before it may be lost.
    fewer, more = sorted((cut.messages, whole.messages), key=len)
    assert more[: len(fewer)] == fewer
    assert len(fewer) == len(more) or whole.code != 1005 != cut.code
    assert sum(map(len, whole.messages)) <= len(data)
    return f"{min(len(whole.messages), 3)} messages, {whole.code}"


_CHATS = [json.dumps({"type": "chat", "request": f"r{place}", **body}).encode() for place, body in enumerate(CHAT)]


@fuzz_target(
    [
        *_CHATS,
        b"\n".join(_CHATS[:3]),
        _CHATS[0] + b'\n{"type": "cancel", "request": "r0"}',
        b'{"api_key": "sk-aio-1"}\n' + _CHATS[0],
        b"\xff\xfe\n[]",
    ],
    [
        b'"type": "cancel"',
        b'"type": "chat"',
        b'"request": "r0"',
        b'"api_key": ""',
        b"\n",
        b"{}",
        b"\\ud800",
        b"\\u0000",
    ],
)
def messages(data: bytes) -> str:
    """A message a line, with a key and without: each is answered or refused, and no error is the gateway's own."""
    lines: list[str | bytes] = []
    for line in data.split(b"\n")[:16]:
        try:
            lines.append(line.decode())
        except UnicodeDecodeError:
            lines.append(line)
    labels = []
    for headers in (ADMIN, []):
        replies = gateway().talk(lines, headers)
        errors = [reply["error"] for reply in replies if reply.get("error")]
        assert all(error["type"] != "server_error" for error in errors), errors
        labels += [error["code"] for error in errors[:1]] or [reply["status"] for reply in replies[:1]]
    return ", ".join(map(str, labels))
