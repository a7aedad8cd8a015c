"""Answers as ASGI applications: ready-made bytes go straight to the server, whole or as a stream of events."""

from collections.abc import AsyncGenerator

from litestar.types import Receive, Scope, Send

from gateway.answering.answer import Answer
from gateway.api.inference.chunks import Chunks
from gateway.api.streaming.disconnects import Presence
from gateway.api.streaming.reader_watch import ReaderWatch

Headers = list[tuple[bytes, bytes]]

JSON = (b"content-type", b"application/json")
EVENT_STREAM = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class WholeResponse:
    """A JSON body whose bytes are known."""

    def __init__(self, body: bytes, headers: Headers) -> None:
        self._body = body
        self._headers = [JSON, (b"content-length", b"%d" % len(body)), *headers]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        await send({"type": "http.response.start", "status": 200, "headers": self._headers})
        await send({"type": "http.response.body", "body": self._body, "more_body": False})


class EventResponse:
    """The events of an opened answer, as they come; it is closed at the end, and at once when the caller leaves.

    `begun`: the response has, by comments that kept the connection open. Who takes nothing for `stalled_seconds` is
    given up.
    """

    def __init__(
        self,
        answer: Answer,
        chunks: Chunks,
        headers: Headers,
        presence: Presence,
        *,
        begun: bool,
        stalled_seconds: float,
    ) -> None:
        self._answer, self._chunks, self._presence = answer, chunks, presence
        self._headers, self._begun, self._stalled_seconds = [*EVENT_STREAM, *headers], begun, stalled_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        reader = ReaderWatch(self._stalled_seconds)
        try:
            if not self._begun:
                await send({"type": "http.response.start", "status": 200, "headers": self._headers})
            async for events in self._events():
                reader.waits()
                await send({"type": "http.response.body", "body": events, "more_body": True})
                reader.taken()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except BaseException as error:
            if not (self._presence.is_reason(error) or reader.is_reason(error)):
                raise
        finally:
            reader.end()
            self._presence.end()
            await self._answer.aclose()

    async def _events(self) -> AsyncGenerator[bytes, None]:
        opening = self._chunks.opening()
        try:
            async for delta in self._answer:
                events = opening + self._chunks.piece(delta)
                opening = b""
                if events:
                    yield events
        except Exception as error:
            yield self._chunks.failed(error)
            return
        yield opening + self._chunks.closing(self._answer)


class EndOfEvents:
    """The rest of a response that has begun: the last events, if there are any."""

    def __init__(self, events: bytes = b"") -> None:
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        await send({"type": "http.response.body", "body": self._events, "more_body": False})
