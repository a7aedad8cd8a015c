"""One persistent HTTP/1.1 connection, parsed by httptools: send a request, read a head and the pieces of a body."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import httptools
import httpx

# Back-pressure starts at this many unread bytes.
HIGH_WATER, LOW_WATER = 256 * 1024, 64 * 1024


class HttpConnection(asyncio.Protocol):
    """Serves one exchange at a time: call `send`, `read_head`, then `read` until it returns no more bytes.

    `is_idle`: open, with no exchange running, so that another one may start. `on_close` is called once.
    """

    def __init__(self, on_close: Callable[["HttpConnection"], None]) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.used = 0
        self.idle_since = 0.0
        self._on_close = on_close
        self._parser: Any = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._paused = False
        self._error: Exception | None = None
        self._is_open = self._in_exchange = self._has_head = self._has_end = self._is_kept = False

    @property
    def is_idle(self) -> bool:
        """Whether another exchange may start."""
        return self._is_open and not self._in_exchange

    @property
    def is_untouched(self) -> bool:
        """Whether no part of an answer to the request has arrived."""
        return not self._has_head and not self.headers

    @property
    def is_read(self) -> bool:
        """Whether the whole answer has arrived and been read."""
        return self._has_end and not self._pieces

    def send(self, request: bytes) -> None:
        """Start an exchange."""
        assert self._transport is not None
        self.used += 1
        self.status, self.headers, self._error = 0, [], None
        self._in_exchange, self._has_head, self._has_end = True, False, False
        self._transport.write(request)

    async def read_head(self, seconds: float) -> None:
        """Wait for status and headers, each time at most `seconds`. Raises `httpx.TransportError`."""
        while not self._has_head:
            if self._error is not None:
                raise self._error
            await self._wait(seconds)

    async def read(self, seconds: float) -> bytes:
        """Return what has arrived of the body, after at most `seconds`; b"" at its end. Raises
        `httpx.TransportError`."""
        while not self._pieces:
            if self._has_end:
                return b""
            if self._error is not None:
                raise self._error
            await self._wait(seconds)
        data = self._pieces.popleft() if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return data

    def finish(self) -> bool:
        """End the exchange; return whether the connection can serve another one. Otherwise close it, which tells the
        server."""
        kept = self._has_end and self._is_kept and not self._pieces and self._is_open
        self._in_exchange = False
        if not kept:
            self.close()
        return kept

    def close(self) -> None:
        """Close at once. Idempotent."""
        if self._transport is not None:
            self._transport.abort()

    async def _wait(self, seconds: float) -> None:
        self._waiter = self._loop.create_future()
        timer = self._loop.call_later(seconds, self._time_out, seconds)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None

    def _time_out(self, seconds: float) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(httpx.ReadTimeout(f"nothing came for {seconds:g} s"))

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        # uvloop's transports do not subclass asyncio's.
        self._transport, self._is_open = cast(asyncio.Transport, transport), True

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`. A server that sends unrequested data is not used again."""
        if not self._in_exchange or self._has_end:
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(httpx.RemoteProtocolError(f"the answer is not HTTP: {error}"))
            self.close()
        self._wake()
        if self._size > HIGH_WATER and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """See `asyncio.Protocol`."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio.Protocol`. A body without a length ends here."""
        self._is_open, self._transport = False, None
        if self._in_exchange and not self._has_end:
            if self._has_head and error is None and not self._has_length:
                self._has_end = True
            else:
                reason = f": {error}" if error is not None else ""
                self._fail(
                    httpx.RemoteProtocolError(f"the server closed the connection before its answer ended{reason}")
                )
        self._wake()
        self._on_close(self)

    @property
    def _has_length(self) -> bool:
        return any(name in (b"content-length", b"transfer-encoding") for name, _ in self.headers)

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error

    # Called by the parser.

    def on_message_begin(self) -> None:
        """An answer starts; after a second one to the same request the connection is closed."""
        if self._has_end:
            self._is_kept = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        if not self._has_head:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is complete. A 1xx head only announces another."""
        self.status = self._parser.get_status_code()
        if self.status < 200:
            self.headers.clear()
        else:
            self._has_head = True

    def on_body(self, body: bytes) -> None:
        """A piece of the body, without chunk framing."""
        if not self._has_end:
            self._pieces.append(body)
            self._size += len(body)

    def on_message_complete(self) -> None:
        """The answer is complete."""
        if self._has_head and not self._has_end:
            self._has_end, self._is_kept = True, self._parser.should_keep_alive()
