"""`/v1/chat/completions/ws`: chats over a WebSocket; who may open one, and the messages that travel on it."""

import asyncio
from contextlib import suppress
from typing import Any

import msgspec
from litestar.connection import ASGIConnection, WebSocket
from litestar.datastructures import State
from litestar.exceptions import WebSocketDisconnect
from litestar.handlers import websocket

from gateway.base.errors import ApiError, ErrorEnvelope, as_api_error
from gateway.edge.websocket_protocol import admit_frames
from gateway.inference.api.openai.socket_session import SocketSession
from gateway.inference.api.reading.parsing import decode_body
from gateway.inference.serving import count_refused
from gateway.tenancy.access.guard import admit

Socket = WebSocket[Any, Any, State]
Handshake = ASGIConnection[Any, Any, Any, State]

# A page must say who it is before anything else; a connection that does not is closed.
KEY_SECONDS = 10.0
POLICY_VIOLATION = 1008


class Key(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first message of a browser, which cannot send headers: `{"type": "authorize", "api_key": "…"}`."""

    type: str
    api_key: str


_key = msgspec.json.Decoder(Key)


@websocket("/chat/completions/ws", opt={"id_prefix": "chatcmpl"})
async def chat_socket(socket: Socket) -> None:
    """Chats as `POST /v1/chat/completions` streams them, many on one connection (docs/gateway.md)."""
    try:
        handshake = await _admitted(socket)
    except Exception as error:
        count_refused(socket, error)
        return await _refuse(socket, as_api_error(error))
    await socket.accept()
    handshake = handshake or await _authorised(socket)
    if handshake is not None:
        admit_frames(socket.scope)
        await SocketSession(socket, handshake).run()
    return None


async def _admitted(socket: Socket) -> Handshake | None:
    """The handshake, if it says who asks; None if that has to come as the first message. Raises `ApiError`."""
    try:
        await admit(socket, socket.route_handler)
    except ApiError as error:
        if error.status != 401 or "authorization" in socket.headers:
            raise
        return None
    return socket


async def _authorised(socket: Socket) -> Handshake | None:
    """The handshake with the key of the first message as its header; None after a refusal, which is sent."""
    try:
        async with asyncio.timeout(KEY_SECONDS):
            key = decode_body(_key, (await socket.receive_text()).encode()).api_key
        header = (b"authorization", f"Bearer {key}".encode())
        handshake = Handshake({**socket.scope, "headers": [*socket.scope["headers"], header], "state": {}})
        await admit(handshake, socket.route_handler)
        return handshake
    except TimeoutError:
        error = ApiError(401, f"No key came within {KEY_SECONDS:g} s.")
    except ApiError as refusal:
        error = refusal
    except WebSocketDisconnect:
        return None
    count_refused(socket, error)
    # A client that reads nothing keeps us waiting.
    with suppress(TimeoutError):
        async with asyncio.timeout(KEY_SECONDS):
            await socket.send_text(msgspec.json.encode(ErrorEnvelope(error.body)).decode())
            await socket.close(code=POLICY_VIOLATION, reason="unauthorized")
    return None


async def _refuse(socket: Socket, error: ApiError) -> None:
    """Answer the handshake as a request over HTTP would be answered."""
    headers = [(b"content-type", b"application/json")]
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    start: Any = {"type": "websocket.http.response.start", "status": error.status, "headers": headers}
    body: Any = {"type": "websocket.http.response.body", "body": msgspec.json.encode(ErrorEnvelope(error.body))}
    await socket.send(start)
    await socket.send(body)
