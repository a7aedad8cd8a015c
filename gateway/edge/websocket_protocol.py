"""The server's WebSocket protocol with limits on what a connection may cost before its caller is admitted."""

import asyncio
from contextlib import suppress
from typing import Any

from litestar.types import Scope
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import HeaderLineTooLong, InvalidState, RequestLineTooLong, TooManyHeaders
from websockets.frames import CloseCode, Frame
from websockets.http11 import MAX_LINE_LENGTH, Request

from gateway.base.errors import ApiError
from gateway.edge.response_cycle import refusal_response

# Bytes of frames read before the caller is admitted: a message with a long key.
UNADMITTED_BYTES = 16_384
# Bytes given to the parser at once: all messages in them are queued at once.
_PIECE = 16_384
# How long the remaining data may take to be sent once the application has ended.
_FLUSH_SECONDS = 20.0
_ADMISSION = "aio.admission"


class BoundedWebSocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's protocol for the library `websockets`, with limits.

    Until `admit_frames`, at most `UNADMITTED_BYTES` of frames are parsed. The parser gets the next piece once the
    application has taken the messages of the last one and other connections have had their turn; no more is read
    before. A message has at most `ws_max_size` bytes (AIO_BODY_LIMIT), and fragments use no more memory than their
    bytes. Pings of a client that does not read are not answered. A rejected head gets an error response.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._unparsed = b""
        self._fragments = bytearray()
        # How many more bytes may be parsed; None: any number.
        self._allowance: int | None = UNADMITTED_BYTES
        self._scheduled = False
        self._abort: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        """See asyncio. The first call has the whole head of the upgrade."""
        if self.handshake_initiated:
            self._unparsed += data
            self._parse()
            return
        super().data_received(data)
        if not self.handshake_initiated:
            self._refuse_head()

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if not self.close_sent:
            self.scope["extensions"][_ADMISSION] = {"admit": self._admit}

    def handle_cont(self, event: Frame) -> None:
        """See uvicorn, which keeps an object for every fragment."""
        if self.frames:
            self._fragments = bytearray(self.frames.pop())
        self._fragments += event.data
        if event.fin:
            self.frames = [bytes(self._fragments)]
            self.send_receive_event_to_app()

    def handle_ping(self) -> None:
        """See uvicorn."""
        pongs = b"".join(self.conn.data_to_send())
        # They would be queued for a client that sends pings and does not read; RFC 6455, 5.5.3 allows answering only
        # the last.
        if self.writable.is_set():
            self.transport.write(pongs)

    def send_receive_event_to_app(self) -> None:
        """See uvicorn, which logs a traceback for a text that is not UTF-8, and fails if a close frame follows it."""
        if self.close_sent or self.curr_msg_data_type != "text":
            super().send_receive_event_to_app()
            return
        data = self.frames[0] if len(self.frames) == 1 else b"".join(self.frames)
        self.frames = []
        try:
            text = data.decode()
        except UnicodeDecodeError:
            # The client's own close frame may have been answered already.
            with suppress(InvalidState):
                self.conn.send_close(CloseCode.INVALID_DATA)
            self.handle_parser_exception()
            return
        self.queue.put_nowait({"type": "websocket.receive", "text": text})
        if not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    async def send(self, message: Any) -> None:
        """See uvicorn, for which sending after the client's close frame is a failure of the application."""
        await self.writable.wait()
        if self.close_sent and self.handshake_complete and self.initial_response is None:
            raise ClientDisconnected
        await super().send(message)

    async def receive(self) -> Any:
        message = await super().receive()
        self._parse()
        return message

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        """See uvicorn, which closes once all is sent: never, if the client does not read."""
        super().on_task_complete(task)
        if self._unparsed:
            # The closing handshake comes later in the data.
            self.transport.close()
        if not self.disconnected:
            self._abort = self.loop.call_later(_FLUSH_SECONDS, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._abort is not None:
            self._abort.cancel()
        super().connection_lost(exc)

    def _admit(self) -> None:
        self._allowance = None
        self._parse()

    def _parse(self) -> None:
        """Parse a piece, and the next one in another turn of the loop: it may hold thousands of frames."""
        if self.transport.is_closing():
            return
        if self._unparsed and not self.read_paused and self._allowance != 0:
            size = _PIECE if self._allowance is None else min(_PIECE, self._allowance)
            piece, self._unparsed = self._unparsed[:size], self._unparsed[size:]
            if self._allowance is not None:
                self._allowance -= len(piece)
            super().data_received(piece)
            if self._unparsed and not self._scheduled:
                self._scheduled = True
                self.loop.call_soon(self._go_on)
        if self._unparsed:
            self.transport.pause_reading()
        elif not self.read_paused:
            self.transport.resume_reading()

    def _go_on(self) -> None:
        self._scheduled = False
        self._parse()

    def _refuse_head(self) -> None:
        """Send an error response: the library's rejection would leave the connection open without an answer."""
        reason = self.conn.handshake_exc
        if isinstance(reason, (HeaderLineTooLong, RequestLineTooLong, TooManyHeaders)):
            message = f"A line of a WebSocket's upgrade may have {MAX_LINE_LENGTH} bytes."
            error = ApiError(431, message, code="header_fields_too_large")
        else:
            error = ApiError(400, "The request is not a valid upgrade to a WebSocket.", code="invalid_upgrade")
        self.transport.write(refusal_response(error))
        self.transport.close()


def admit_frames(scope: Scope) -> None:
    """Allow more than `UNADMITTED_BYTES` of the WebSocket of `scope`. Does nothing under another server."""
    admission: Any = (scope.get("extensions") or {}).get(_ADMISSION)
    if admission is not None:
        admission["admit"]()
