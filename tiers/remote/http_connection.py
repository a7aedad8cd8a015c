"""One persistent HTTP/1.1 connection, parsed by httptools: send a request, read a head and the pieces of a body."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import httptools
import httpx

# Back-pressure starts at this many unread bytes. What is read at a time has at most `READ_BYTES`, so that little of a
# flood becomes objects before its reader takes them, and other tasks run between two of them. A piece counts as
# `PIECE_BYTES` more, about what the object takes.
HIGH_WATER, LOW_WATER, READ_BYTES, PIECE_BYTES = 128 * 1024, 32 * 1024, 4 * 1024, 64
# Limits of an answer's head together with the 1xx heads before it; and again of chunk extensions and trailers.
HEAD_BYTES, MAX_HEADERS, MAX_INTERIM = 64 * 1024, 100, 100
# Uncounted bytes of the lines around a chunk: its size, two line ends, and some more.
CHUNK_LINES = 32


class OversizedHeadError(httpx.RemoteProtocolError):
    """An answer has more than `HEAD_BYTES` or `MAX_HEADERS` that are no body."""


class HttpConnection(asyncio.Protocol):
    """Serves one exchange at a time: call `send`, `read_head`, then `read` until it returns no more bytes.

    `is_idle`: open, with no exchange running, so that another one may start. `on_close` is called once. An exchange
    that has not arrived whole by its deadline fails, awaited or not. Bytes that are no body are counted as they come:
    beyond `HEAD_BYTES` or `MAX_HEADERS` the exchange fails, and of a head nothing further is parsed.
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
        # Bytes that were no body: of heads, then of chunk extensions and trailers.
        self._framing = self._fields = self._interim = 0
        self._timer: asyncio.TimerHandle | None = None
        self._seconds = self._deadline = self._wait_began = 0.0
        self._paused = False
        self._error: Exception | None = None
        self._is_untouched = True
        self._is_open = self._in_exchange = self._has_head = self._has_end = self._is_kept = False

    @property
    def is_idle(self) -> bool:
        """Whether another exchange may start."""
        return self._is_open and not self._in_exchange

    @property
    def is_untouched(self) -> bool:
        """Whether no byte of an answer to the request has arrived."""
        return self._is_untouched

    @property
    def is_read(self) -> bool:
        """Whether the whole answer has arrived and been read."""
        return self._has_end and not self._pieces

    def send(self, request: bytes, seconds: float, deadline: float) -> None:
        """Start an exchange that has to end by `deadline`, in the loop's time; each wait is at most `seconds`."""
        assert self._transport is not None
        self.used += 1
        self.status, self.headers, self._error = 0, [], None
        self._framing = self._fields = self._interim = 0
        self._in_exchange, self._has_head, self._has_end, self._is_untouched = True, False, False, True
        self._seconds, self._deadline = seconds, deadline
        self._timer = self._loop.call_at(min(deadline, self._loop.time() + seconds), self._look_at_time)
        self._transport.write(request)

    async def read_head(self) -> None:
        """Wait for status and headers. Raises `httpx.TransportError`."""
        while not self._has_head:
            if self._error is not None:
                raise self._error
            await self._wait()

    async def read(self) -> bytes:
        """Return what has arrived of the body, at most `READ_BYTES`; b"" at its end. Raises `httpx.TransportError`."""
        while not self._pieces:
            if self._has_end:
                return b""
            if self._error is not None:
                raise self._error
            await self._wait()
        data = self._pieces.popleft()
        self._size -= len(data) + PIECE_BYTES
        if self._pieces:
            data = self._joined(data)
        if self._paused and self._size < LOW_WATER and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        if self._pieces:
            # Nothing else would wait: a reader who is slower than the server must not keep the loop to itself.
            await asyncio.sleep(0)
        return data

    def _joined(self, data: bytes) -> bytes:
        """Return `data` with the pieces after it that fit into `READ_BYTES`."""
        parts, room = [data], READ_BYTES - len(data)
        while self._pieces and len(self._pieces[0]) <= room:
            part = self._pieces.popleft()
            parts.append(part)
            room -= len(part)
            self._size -= len(part) + PIECE_BYTES
        return b"".join(parts)

    def finish(self) -> bool:
        """End the exchange; return whether the connection can serve another one, else close it to tell the server."""
        kept = self._has_end and self._is_kept and not self._pieces and self._is_open
        # The error's traceback, if it was raised, leads back here.
        self._in_exchange, self._error = False, None
        self._stop_timer()
        if not kept:
            self.close()
        return kept

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def _wait(self) -> None:
        self._waiter, self._wait_began = self._loop.create_future(), self._loop.time()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _look_at_time(self) -> None:
        """End a wait or an exchange that has had its time; else look again when that can be. An exchange has this one
        timer, so that a wait, of which a stream has one for each token, sets none."""
        self._timer = None
        if not self._in_exchange or self._has_end:
            return
        now = self._loop.time()
        if now >= self._deadline:
            # What was not read is dropped.
            self._refuse(httpx.ReadTimeout("the whole answer takes too long"))
            self._pieces.clear()
            self._size = 0
            return
        is_waited_for = self._waiter is not None and not self._waiter.done()
        due = (self._wait_began if is_waited_for else now) + self._seconds
        if self._waiter is not None and is_waited_for and now >= due:
            self._waiter.set_exception(httpx.ReadTimeout(f"nothing came for {self._seconds:g} s"))
            due = now + self._seconds
        self._timer = self._loop.call_at(min(self._deadline, due), self._look_at_time)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not subclass asyncio's.
        self._transport, self._is_open = cast(asyncio.Transport, transport), True

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`. A server that sends unrequested data is not used again."""
        if not self._in_exchange or self._has_end:
            self.close()
            return
        self._is_untouched = False
        try:
            # Far from the limit of a head, which is most often in one piece, it is parsed at once.
            if self._has_head or self._framing + len(data) < HEAD_BYTES:
                self._feed(data)
            else:
                self._feed_head(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._refuse(_reason_of(error))
        self._wake()
        if self._size > HIGH_WATER and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _feed_head(self, data: bytes) -> None:
        """Parse of an unfinished head no more than is left of its limit."""
        room = HEAD_BYTES - self._framing
        self._feed(data[:room])
        if not self._has_head:
            if len(data) >= room:
                self._refuse(_too_large("before its body", f"{HEAD_BYTES:,} bytes"))
        elif len(data) > room:
            self._feed(data[room:])

    def _feed(self, data: bytes) -> None:
        self._framing += len(data)
        self._parser.feed_data(data)
        if self._framing < 0:
            self._framing = 0
        elif self._framing > HEAD_BYTES and not self._has_end:
            self._refuse(_too_large("besides its body", f"{HEAD_BYTES:,} bytes"))

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio.Protocol`. A body without a length ends here."""
        self._is_open, self._transport = False, None
        self._stop_timer()
        if self._in_exchange and not self._has_end and self._error is None:
            if self._has_head and error is None and not self._has_length:
                self._has_end = True
            else:
                reason = f": {error}" if error is not None else ""
                self._fail(
                    httpx.RemoteProtocolError(f"the server closed the connection before its answer ended{reason}")
                )
        self._wake()
        # It holds methods of this connection.
        self._parser = None
        self._on_close(self)

    @property
    def _has_length(self) -> bool:
        return any(name in (b"content-length", b"transfer-encoding") for name, _ in self.headers)

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error

    def _refuse(self, error: Exception) -> None:
        """Fail, and read nothing more."""
        self._fail(error)
        self.close()
        self._wake()

    # Called by the parser.

    def on_message_begin(self) -> None:
        """An answer starts; after a second one to the same request the connection is closed."""
        if self._has_end:
            self._is_kept = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header of a head, or one of the trailers, which are dropped."""
        self._fields += 1
        if self._fields > MAX_HEADERS:
            raise _too_large("in its head or behind its body", f"{MAX_HEADERS} headers")
        if not self._has_head:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is complete. A 1xx head only announces another."""
        self.status = self._parser.get_status_code()
        if self.status < 200:
            self.headers.clear()
            self._interim += 1
            if self._interim > MAX_INTERIM:
                raise _too_large("before its body", f"{MAX_INTERIM} interim answers")
        else:
            self._has_head = True
            # From here on chunk extensions and trailers are counted.
            self._framing = self._fields = 0

    def on_body(self, body: bytes) -> None:
        """A piece of the body, without chunk framing."""
        size = len(body)
        self._framing -= size + CHUNK_LINES
        if self._has_end:
            return
        self._size += size + PIECE_BYTES
        if size <= READ_BYTES:
            self._pieces.append(body)
        else:
            self._size += PIECE_BYTES * ((size - 1) // READ_BYTES)
            self._pieces.extend([body[start : start + READ_BYTES] for start in range(0, size, READ_BYTES)])

    def on_message_complete(self) -> None:
        if self._has_head and not self._has_end:
            self._has_end, self._is_kept = True, self._parser.should_keep_alive()


def _reason_of(error: Exception) -> Exception:
    """Return why an answer was not parsed: an exception of our callbacks is the context of the parser's."""
    cause = error.__context__
    if isinstance(cause, OversizedHeadError):
        return cause
    return httpx.RemoteProtocolError(f"the answer is not HTTP: {error}")


def _too_large(where: str, limit: str) -> OversizedHeadError:
    return OversizedHeadError(f"the answer has more than {limit} {where}")
