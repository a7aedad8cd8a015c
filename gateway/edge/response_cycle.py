"""One request and its response on a connection: what is sent within one turn of the event loop is one write.

And the responses by which a server rejects what is no request of its application, and closes the connection; and the
watch of a client, whose request is cancelled when it disconnects, or reads nothing for too long.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, Protocol

import msgspec
from litestar.types import Receive, Scope
from uvicorn.protocols.http.httptools_impl import HEADER_RE, HEADER_VALUE_RE, STATUS_LINE, RequestResponseCycle

from gateway.base.errors import ApiError, ErrorEnvelope, shutting_down

_PHRASES = {
    400: b"Bad Request",
    408: b"Request Timeout",
    414: b"URI Too Long",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    503: b"Service Unavailable",
}
_RETRYABLE = (408, 429, 503)


def refusal_response(error: ApiError) -> bytes:
    """Return the whole HTTP response by which a server rejects a request and closes."""
    headers, body = _refusal(error)
    lines = b"".join([b"%b: %b\r\n" % header for header in headers])
    return b"HTTP/1.1 %d %b\r\n%b\r\n%b" % (error.status, _PHRASES[error.status], lines, body)


Headers = Sequence[tuple[bytes, bytes]]


def _refusal(error: ApiError) -> tuple[Headers, bytes]:
    """Return headers and body of a response after which the connection is closed."""
    body = msgspec.json.encode(ErrorEnvelope(error.body))
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if error.status in _RETRYABLE:
        headers.append((b"retry-after", error.retry_after.encode()))
    return [*headers, (b"connection", b"close")], body


_BODILESS = (204, 304)
# So many bytes are written at once, so that a client that reads slowly is noticed.
_MOST_UNWRITTEN = 65_536
_FRAMING = frozenset({b"content-length", b"transfer-encoding", b"connection"})
# What no name and no value is without: deleting them takes a tenth of the time of searching for the others.
_NAME_BYTES, _VALUE_BYTES = (
    bytes(byte for byte in range(256) if not forbidden.search(bytes([byte])))
    for forbidden in (HEADER_RE, HEADER_VALUE_RE)
)


class ResponseCycle(RequestResponseCycle):
    """uvicorn's, except that what is sent waits for what follows it, until the event loop's turn or the response ends.

    Two writes are two system calls and two packets, and wake the client twice, which costs more than all else that is
    done to send an answer. Names and values of headers are checked together, not one by one.
    """

    loop: asyncio.AbstractEventLoop  # set by the protocol
    # What is not written yet, and whether the end of the turn will write it.
    _unwritten = b""
    _is_due = False
    # Whether the end of the connection is that of the body: HTTP/1.0 has no chunks.
    _until_close = False
    is_ended = False
    """Whether the shutdown interrupted the application: its task was cancelled, and its client is still there."""
    _task: asyncio.Task[Any] | None = None

    async def run_asgi(self, app: Any) -> None:
        """Run `app` as uvicorn does; a request that the shutdown interrupts gets an error and no line in the log."""
        self._task = asyncio.current_task()
        await super().run_asgi(partial(self._until_ended, app))

    def end_unfinished(self) -> bool:
        """Interrupt the application, for the shutdown. Returns whether its response was unfinished."""
        if self._task is None or self.response_complete:
            return False
        self.is_ended = True
        self._task.cancel()
        return True

    async def _until_ended(self, app: Any, scope: Any, receive: Any, send: Any) -> None:
        try:
            await app(scope, receive, send)
        except asyncio.CancelledError:
            if not self.is_ended:
                raise
            if not self.response_started:
                error = shutting_down()
                headers, body = _refusal(error)
                await self.send({"type": "http.response.start", "status": error.status, "headers": headers})
                await self.send({"type": "http.response.body", "body": body})
            elif not self.response_complete:
                # Only its own API knows how such a response ends with an error.
                self.disconnected = True
                self.transport.close()

    @property
    def _is_head(self) -> bool:
        return HEAD in self.scope["extensions"]

    async def send(self, message: Any) -> None:
        """See ASGI. Raises `RuntimeError` for events in a wrong order, for names and values that no header may have,
        and for a body of another length than its header says."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if not self.response_started:
            self._start(message)
        elif self.response_complete:
            raise RuntimeError(f"{message['type']!r} was sent after the end of its response")
        else:
            self._continue(message)

    def _start(self, message: Any) -> None:
        if message["type"] != "http.response.start":
            raise RuntimeError(f"a response started with {message['type']!r}")
        head = self._head_of(message["status"], [*self.default_headers, *message.get("headers", ())])
        self.response_started = True
        self.waiting_for_100_continue = False
        self._write(head)

    def _head_of(self, status: int, headers: Headers) -> bytes:
        names, values = zip(*headers, strict=True) if headers else ((), ())
        if b"".join(values).translate(None, _VALUE_BYTES):
            raise RuntimeError("a header of the response has an invalid value")
        template, framing = _template_of(status, names)
        says_close = False
        for index, name in framing:
            value = values[index]
            if name == b"content-length" and self.chunked_encoding is None:
                self.expected_content_length, self.chunked_encoding = int(value), False
            elif name == b"transfer-encoding" and value.lower() == b"chunked":
                self.expected_content_length, self.chunked_encoding = 0, True
            elif name == b"connection" and b"close" in [token.strip() for token in value.lower().split(b",")]:
                self.keep_alive, says_close = False, True
        head = template % values
        if not self.keep_alive and not says_close:
            head += b"connection: close\r\n"
        if self.chunked_encoding is None and not self._is_head and status not in _BODILESS:
            if self.scope["http_version"] == "1.0":
                self._until_close = True
            else:
                self.chunked_encoding = True
                head += b"transfer-encoding: chunked\r\n"
        return head + b"\r\n"

    def _continue(self, message: Any) -> None:
        if message["type"] != "http.response.body":
            raise RuntimeError(f"a response continued with {message['type']!r}")
        body, more = message.get("body", b""), message.get("more_body", False)
        if self._is_head:
            self.expected_content_length, body = 0, b""
        elif self.chunked_encoding:
            body = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + (b"" if more else b"0\r\n\r\n")
        elif not self._until_close:
            self.expected_content_length -= len(body)
            if self.expected_content_length < 0:
                raise RuntimeError("a response is longer than its content-length")
        if more:
            self._write(body)
        else:
            self._unwritten += body
            self._flush()
            self._end()

    def _end(self) -> None:
        if self.expected_content_length != 0:
            raise RuntimeError("a response is shorter than its content-length")
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()

    def _write(self, data: bytes) -> None:
        self._unwritten += data
        if len(self._unwritten) > _MOST_UNWRITTEN:
            self._flush()
        elif not self._is_due:
            self._is_due = True
            self.loop.call_soon(self._at_turns_end)

    def _at_turns_end(self) -> None:
        self._is_due = False
        self._flush()

    def _flush(self) -> None:
        data, self._unwritten = self._unwritten, b""
        if data and not self.transport.is_closing():
            self.transport.write(data)


@lru_cache(maxsize=256)
def _template_of(status: int, names: tuple[bytes, ...]) -> tuple[bytes, list[tuple[int, bytes]]]:
    """Return the lines of a head for the values of headers with these names, and which of them frame the body. Kept: a
    server's responses have few such lists. Raises `RuntimeError` for a name that no header may have."""
    lower = [name.lower() for name in names]
    if b"".join(lower).translate(None, _NAME_BYTES):
        raise RuntimeError("a header of the response has an invalid name")
    lines = b"".join([b"%b: %%b\r\n" % name.replace(b"%", b"%%") for name in lower])
    return STATUS_LINE[status] + lines, [(index, name) for index, name in enumerate(lower) if name in _FRAMING]


HEAD = "aio.head"
"""The extension of the scope of a request whose response has no body: the application is asked what `GET` would be."""

# The extension of an ASGI scope that holds the request's `ClientConnection`, where the server has it.
CLIENT_CONNECTION = "aio.client_connection"


class ClientConnection(Protocol):
    """Whether the client is still there, and the server still serves it."""

    @property
    def is_ended(self) -> bool:
        """Whether the shutdown has interrupted the request."""

    def watch(self, gone: Callable[[], None]) -> None:
        """Call `gone` once the connection is lost; at once if it already is."""

    def unwatch(self, gone: Callable[[], None]) -> None:
        """Call it no more. Idempotent."""


log = logging.getLogger(__name__)

# No task watches before that: most answers are there sooner, and a task would cost more than they do.
FIRST_LOOK_SECONDS = 0.005


class _ClientWatch:
    """Cancels the task that made it, at most once, unless `end` came first."""

    def __init__(self) -> None:
        self._cancelled = False
        self._served = asyncio.current_task()

    def is_reason(self, error: BaseException) -> bool:
        """Whether `error` is the cancellation by this watch; the task then counts as not cancelled any more."""
        return self._uncancelled(error, self._cancelled)

    def _uncancelled(self, error: BaseException, is_known: bool) -> bool:
        """Whether `error` is a cancellation whose reason `is_known`; the task then counts as not cancelled any more."""
        if not (is_known and isinstance(error, asyncio.CancelledError)):
            return False
        if self._served is not None:
            self._served.uncancel()
        return True

    def _cancel(self) -> None:
        self._cancelled = True
        if self._served is not None:
            self._served.cancel()


class DisconnectWatch(_ClientWatch):
    """Cancels as soon as the client disconnects, from a request's routing to its last byte. The server's protocol says
    so; other ASGI servers are watched by a task. The request's body must have been read."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        super().__init__()
        self._receive = receive
        self._watch: asyncio.Task[None] | None = None
        self._first_look: asyncio.TimerHandle | None = None
        extensions: dict[str, Any] = scope.get("extensions") or {}
        self._client: ClientConnection | None = extensions.get(CLIENT_CONNECTION)
        if self._client is not None:
            self._client.watch(self._cancel)
        else:
            self._first_look = asyncio.get_running_loop().call_later(FIRST_LOOK_SECONDS, self._look)

    def is_shutdown(self, error: BaseException) -> bool:
        """Whether `error` is the shutdown's interruption; the task then counts as not cancelled any more."""
        return self._uncancelled(error, self._client is not None and self._client.is_ended)

    def end(self) -> None:
        """Stop watching. Idempotent."""
        if self._client is not None:
            self._client.unwatch(self._cancel)
        if self._first_look is not None:
            self._first_look.cancel()
        if self._watch is not None:
            self._watch.cancel()

    def _look(self) -> None:
        self._watch = asyncio.create_task(self._until_gone())

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._cancel()


class StallWatch(_ClientWatch):
    """Cancels once what was `sending` has not been `taken` for `seconds`: an answer, and a remote tier behind it, would
    wait for such a client for ever.

    One timer at a time serves a stream of any length; an event costs a look at the clock.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds
        self._since: float | None = None
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(seconds, self._look)

    def sending(self) -> None:
        """Bytes are on their way to the client from now on."""
        self._since = time.monotonic()

    def taken(self) -> None:
        """The connection has room again."""
        self._since = None

    def end(self) -> None:
        """Stop watching. Idempotent."""
        self._timer.cancel()

    def _look(self) -> None:
        waited = 0.0 if self._since is None else time.monotonic() - self._since
        if waited < self._seconds:
            self._timer = self._loop.call_later(self._seconds - waited, self._look)
        elif self._served is not None:
            log.info("a stream's reader took nothing for %g s and is given up", self._seconds)
            self._cancel()
