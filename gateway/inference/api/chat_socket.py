"""`/v1/chat/completions/ws`: chats over a WebSocket; who may open one, and the messages that travel on it.

A SocketSession has the chats of one WebSocket, each a task of its own, and the frames that they send.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Annotated, Any

import msgspec
from litestar.connection import ASGIConnection, WebSocket
from litestar.datastructures import State
from litestar.exceptions import WebSocketDisconnect
from litestar.handlers import websocket
from msgspec import Meta

from gateway.base.errors import ApiError, ErrorEnvelope, as_api_error, bad_request
from gateway.base.inference_request import CALLER
from gateway.edge.websocket_protocol import admit_frames
from gateway.inference.answer import Answer
from gateway.inference.api.answers import DONE, CompletionsChunks, Failed, Routed, routed
from gateway.inference.api.build_request import chat_request, received
from gateway.inference.api.parsing import decode_body, decoded_body, decoded_fields
from gateway.inference.api.sending import shown_names
from gateway.inference.service import count_refused, serving_of
from gateway.tenancy.guard import admit
from tiers.dialects.chat_form import UsageBody
from tiers.dialects.chat_schemas import HARMLESS, ChatRequest
from tiers.dialects.chat_writer import usage_body
from tiers.dialects.client_forms import mend_chat
from tiers.dialects.decoding import FieldReader
from tiers.errors import TierError

log = logging.getLogger(__name__)

Name = Annotated[str, Meta(max_length=128)]


class Heading(msgspec.Struct, frozen=True, kw_only=True):
    """What every message may have: its `type` (a chat if not given) and the caller's own name of the chat."""

    type: str = "chat"
    request: Name = ""


class Cancel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`{"type": "cancel", "request": "…"}`: end that chat now."""

    type: str
    request: str = ""


class SocketChat(ChatRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A chat's body as over HTTP, always streamed."""

    type: str = "chat"
    request: str = ""
    """The caller's own name of the chat, needed where several run at a time."""


class Ended(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last frame of a chat: what it used and how it came about, which over HTTP headers would say."""

    request: str = ""
    object: str = "chat.completion.end"
    status: str
    id: str | None = None
    usage: UsageBody | None = None
    x_aio: Routed | None = None
    ignored_fields: str | None = None


_heading = msgspec.json.Decoder(Heading)
_cancel = msgspec.json.Decoder(Cancel)
_chat = FieldReader("/v1/chat/completions/ws", SocketChat, HARMLESS, "known", mend_chat)
_encode = msgspec.json.Encoder().encode


class ReaderGoneError(Exception):
    """The other side has left, or took nothing for too long."""


class SocketSession:
    """Runs until the other side leaves, which cancels what it asked for.

    All chats share one connection, so a client that pauses pauses all of its chats and no others: a chat waits with its
    next delta until the last one is written. A client that reads nothing for `stalled_reader_seconds` is disconnected.
    """

    def __init__(self, socket: WebSocket[Any, Any, State], handshake: ASGIConnection[Any, Any, Any, State]) -> None:
        """`handshake`: what opened the connection, with the key; its headers steer all chats, and it is asked again
        with every chat, since keys expire and are revoked."""
        self._socket, self._handshake = socket, handshake
        self._serving = serving_of(socket)
        self._chats: dict[str, asyncio.Task[None]] = {}
        self._over = False

    async def run(self) -> None:
        """Take messages, answer chats."""
        try:
            async with asyncio.TaskGroup() as group:
                async for message in self._messages():
                    await self._take(message, group)
                self._over = True
                for chat in self._chats.values():
                    chat.cancel()
        except* ReaderGoneError as gone:
            log.info("a WebSocket ended early: %s", gone.exceptions[0])

    async def _messages(self) -> AsyncIterator[bytes]:
        while (event := await self._socket.receive())["type"] == "websocket.receive":
            yield event.get("bytes") or (event.get("text") or "").encode()

    async def _take(self, message: bytes, group: asyncio.TaskGroup) -> None:
        name = ""
        serving, caller = self._serving, self._handshake.scope["state"][CALLER]
        try:
            heading = await decoded_body(serving, _heading, message, caller)
            name = heading.request
            if heading.type == "cancel":
                self._cancel(await decoded_body(serving, _cancel, message, caller))
            elif heading.type == "chat":
                self._require_room(name)
                body, ignored, extra, _ = await decoded_fields(serving, _chat, message, caller)
                self._chats[name] = group.create_task(self._answer(body, ignored, extra))
                # A task that is cancelled before its first step would never run, nor say that it was.
                await asyncio.sleep(0)
            else:
                raise bad_request(
                    f"Invalid type {heading.type!r}: allowed are chat and cancel.", "type", "invalid_value"
                )
        except ApiError as error:
            await self._send_error(name, error)

    def _cancel(self, order: Cancel) -> None:
        # One that has just ended is no mistake of the caller's.
        if order.request in self._chats:
            self._chats[order.request].cancel()

    def _require_room(self, name: str) -> None:
        most = self._serving.settings.socket_chats
        if name in self._chats:
            raise bad_request(
                f"The chat {name!r} is still being answered: give each at a time a 'request' of its own.",
                "request",
                "invalid_value",
            )
        if len(self._chats) >= most:
            raise ApiError(429, f"At most {most} chats at a time on one connection.", code="too_many_chats")

    async def _answer(self, body: SocketChat, ignored: list[str], extra: dict[str, Any]) -> None:
        name, answer, status = body.request, None, "completed"
        try:
            if body.stream is False:
                raise bad_request("Answers on a WebSocket are streamed: leave stream out.", "stream", "invalid_value")
            await admit(self._handshake, self._socket.route_handler)
            head = msgspec.structs.replace(received(self._handshake), extra=extra)
            inference_request = chat_request(self._serving, head, msgspec.structs.replace(body, stream=True))
            answer = await self._serving.service.start(inference_request)
            await self._stream(answer, body)
        except asyncio.CancelledError:
            if self._over:
                raise
            status = "cancelled"
        except ReaderGoneError:
            raise
        except Exception as error:
            return await self._send_error(name, error, answer)
        finally:
            del self._chats[name]
            if answer is not None:
                await answer.aclose()
        return await self._send(_encode(_ending(name, status, answer, ignored)))

    async def _stream(self, answer: Answer, body: SocketChat) -> None:
        usage = bool(body.stream_options and body.stream_options.include_usage)
        chunks = CompletionsChunks(answer, self._serving.fingerprint, usage)
        events = chunks.opening()
        async for delta in answer:
            await self._send_events(body.request, events + chunks.piece(delta))
            events = b""
        await self._send_events(body.request, events + chunks.closing(answer).removesuffix(DONE))

    async def _send_events(self, name: str, events: bytes) -> None:
        """The data of server-sent events, a frame each, with the caller's name of the chat if it gave one."""
        mark = b'{"request":%b,' % _encode(name) if name else b"{"
        for event in events.split(b"\n\n")[:-1]:
            await self._send(mark + event[len(b"data: {") :])

    async def _send_error(self, name: str, error: Exception, answer: Answer | None = None) -> None:
        failure = as_api_error(error)
        count_refused(self._handshake, error)
        if failure.status >= 500 and not isinstance(error, (ApiError, TierError)):
            log.error("a chat on a WebSocket failed", exc_info=error)
        failed = Failed(request=name, error=failure.body)
        if answer is not None and answer.record is not None:
            usage = usage_body(answer.billed)
            failed = msgspec.structs.replace(failed, usage=usage, x_aio=routed(answer))
        await self._send(_encode(failed))

    async def _send(self, frame: bytes) -> None:
        """Wait until the frame is taken off our hands. Raises `ReaderGoneError`."""
        try:
            async with asyncio.timeout(self._serving.settings.stalled_reader_seconds):
                await self._socket.send_text(frame.decode())
        except (TimeoutError, OSError, WebSocketDisconnect) as error:
            self._over = True
            raise ReaderGoneError(repr(error)) from None


def _ending(name: str, status: str, answer: Answer | None, ignored: list[str]) -> Ended:
    shown = shown_names(ignored) if ignored else None
    if answer is None or answer.record is None:
        return Ended(request=name, status=status, ignored_fields=shown)
    return Ended(
        request=name,
        status=status,
        id=answer.record.request_id,
        usage=usage_body(answer.billed),
        x_aio=routed(answer),
        ignored_fields=shown,
    )


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
_WANTED = {401: (b"www-authenticate", b"Bearer"), 426: (b"upgrade", b"HTTP/1.1")}


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


@websocket(["/responses", "/realtime"])
async def other_socket(socket: Socket) -> None:
    """None: Codex goes on over HTTP at once after a 426, and after others only once it has tried again for a while."""
    await _refuse(socket, ApiError(426, "Responses are not served over WebSockets here: POST them over HTTP."))


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
    if (wanted := _WANTED.get(error.status)) is not None:
        headers.append(wanted)
    start: Any = {"type": "websocket.http.response.start", "status": error.status, "headers": headers}
    body: Any = {"type": "websocket.http.response.body", "body": msgspec.json.encode(ErrorEnvelope(error.body))}
    await socket.send(start)
    await socket.send(body)
