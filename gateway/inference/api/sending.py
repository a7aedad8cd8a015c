"""Answer a request over HTTP, whole or as a stream of events; the bytes go straight to the server."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from litestar.types import ASGIApp, Receive, Scope, Send

from gateway.base.errors import ApiError, ClientGoneError, located, shutting_down
from gateway.base.identity import caller_request_id
from gateway.base.inference_request import InferenceRequest
from gateway.base.numbers import usd_text
from gateway.edge.asgi import HttpRequest
from gateway.edge.response_cycle import DisconnectWatch, StallWatch
from gateway.inference.answer import Answer
from gateway.inference.api.answers import AnswerFormat, Chunks
from gateway.inference.api.parsing import IGNORED
from gateway.inference.service import Serving, count_refused, serving_of

Headers = list[tuple[bytes, bytes]]
MOST_NAMES = 32
"""Of fields, in a header."""
MOST_CHARS = 512
_LONGEST_NAME = 64
_UNSAFE = re.compile(r"[^A-Za-z0-9_.\[\]-]")
# Log-probabilities that are formatted in a millisecond or two.
_FEW_LOGPROBS = 512
# What is awaited between an answer's end and its last bytes.
BeforeEnd = Callable[[Answer], Awaitable[None]]

JSON = (b"content-type", b"application/json")
_UNBUFFERED = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]


async def respond(
    request: HttpRequest,
    serving: Serving,
    inference_request: InferenceRequest,
    answer_format: AnswerFormat,
    before_end: BeforeEnd | None = None,
) -> ASGIApp:
    """Answer the request. When the client disconnects, at any time, the tier's work is freed within one step."""
    disconnect = DisconnectWatch(request.scope, request.receive)
    if inference_request.stream:
        return await _stream(request, serving, inference_request, answer_format, disconnect, before_end)
    try:
        answer = await serving.service.complete(inference_request)
    except BaseException as error:
        told = _ended_by(error, disconnect) or located(error, inference_request.names)
        try:
            if told is not error:
                raise told from None
            raise
        finally:
            # A frame that holds its own exception is garbage that only the collector finds.
            del told
    finally:
        disconnect.end()
    if before_end is not None:
        await before_end(answer)
    return WholeResponse(await whole_body(answer_format, answer), _headers(request, answer, answer_format))


async def _stream(
    request: HttpRequest,
    serving: Serving,
    inference_request: InferenceRequest,
    answer_format: AnswerFormat,
    disconnect: DisconnectWatch,
    before_end: BeforeEnd | None,
) -> ASGIApp:
    settings = serving.settings
    request_id = inference_request.request_id
    head = [(b"content-type", answer_format.stream_type), *_UNBUFFERED]
    early = [*head, (b"x-aio-decision-id", request_id.encode()), *_id_headers(request, request_id, answer_format)]
    early += ignored_header(request)
    waiting = KeepAlive(request.send, early, answer_format.keep_alive, settings.keep_alive_seconds)
    answer: Answer | None = None
    try:
        answer = await serving.service.start(inference_request)
        started = await waiting.hold()
    except BaseException as error:
        disconnect.end()
        if answer is not None:
            # Its first delta was there, but the client disconnected before it could be sent.
            await answer.aclose()
        started = await waiting.end()
        error = _ended_by(error, disconnect) or error
        if not isinstance(error, Exception):
            raise error from None
        if started or answer_format.is_told_in_stream(error):
            count_refused(request, error)
            told = answer_format.failed(located(error, inference_request.names))
            return EndOfEvents(told, None if started else early)
        raise located(error, inference_request.names) from None
    return EventResponse(
        answer,
        answer_format.chunks(answer),
        head + _headers(request, answer, answer_format),
        disconnect,
        waiting,
        started=started,
        stalled_seconds=settings.stalled_reader_seconds,
        before_end=before_end,
    )


def _ended_by(error: BaseException, disconnect: DisconnectWatch) -> ApiError | None:
    """Return what a cancellation means to the caller, if the client or the shutdown is its reason."""
    if disconnect.is_reason(error):
        return ClientGoneError()
    return shutting_down() if disconnect.is_shutdown(error) else None


async def whole_body(answer_format: AnswerFormat, answer: Answer) -> bytes:
    """The body of a finished answer. Log-probabilities may take a tenth of a second, so many of them are formatted on a
    thread, where others have their turns meanwhile."""
    if sum([len(choice.logprobs) for choice in answer.choices]) <= _FEW_LOGPROBS:
        return answer_format.whole(answer)
    return await asyncio.to_thread(answer_format.whole, answer)


def _headers(request: HttpRequest, answer: Answer, answer_format: AnswerFormat) -> Headers:
    headers = _response_headers(answer, whole=not answer.request.stream)
    if answer.rate_headers:
        headers += [(name.encode(), value.encode()) for name, value in answer.rate_headers.items()]
    headers += _id_headers(request, answer.request.request_id, answer_format)
    if changed := answer.source.changed:
        headers.append((b"x-aio-changed-fields", shown_names(_in_callers_words(changed, answer)).encode()))
    return headers + ignored_header(request, _in_callers_words(answer.source.dropped, answer))


def _in_callers_words(names: Sequence[str], answer: Answer) -> list[str]:
    path = answer.request.names.path
    return [path(name) for name in names]


def _id_headers(request: HttpRequest, request_id: str, answer_format: AnswerFormat) -> Headers:
    own = (caller_request_id(request.scope["state"]["headers"].get("x-request-id")) or request_id).encode()
    return [(name, own) for name in answer_format.id_headers]


def ignored_header(request: HttpRequest, dropped: Sequence[str] = ()) -> Headers:
    """The header that names the fields of the request's body that were ignored, and those that the server of the tier
    has not got (`dropped`), if there are any."""
    names = [*request.scope["state"].get(IGNORED, ()), *dropped]
    return [(b"x-aio-ignored-fields", shown_names(list(dict.fromkeys(names))).encode())] if names else []


async def token_count(
    request: HttpRequest, inference_request: InferenceRequest, form: Callable[[int], Any], *own: tuple[bytes, bytes]
) -> ASGIApp:
    """Return how many tokens the prompt of a request is, in the `form` of its API. `own`: further headers."""
    tokens, limits = await serving_of(request).service.counted(inference_request)
    headers = [(name.encode(), value.encode()) for name, value in limits.items()]
    return WholeResponse(msgspec.json.encode(form(tokens)), [*headers, *own, *ignored_header(request)])


def shown_names(names: list[str]) -> str:
    """Return the names for a header: safe characters, and a bounded length."""
    safe = [_UNSAFE.sub("?", name[:_LONGEST_NAME]) for name in names[:MOST_NAMES]]
    text = ", ".join(safe)
    if len(text) > MOST_CHARS:
        text = text[:MOST_CHARS].rpartition(", ")[0]
    return text if len(text) == len(", ".join(safe)) and len(names) <= MOST_NAMES else f"{text}, ..."


class KeepAlive:
    """Sends `event` after every `seconds` in which nothing was sent, since proxies drop connections that are silent.

    One that comes before the first token starts the response: its status is then 200 and its headers are `headers`,
    without the tier that answers, and a failure is an event. It costs a stream one timer per `seconds`, and each of
    its events a look at the clock.
    """

    def __init__(self, send: Send, headers: Headers, event: bytes, seconds: float) -> None:
        self._send, self._headers, self._event, self._seconds = send, headers, event, seconds
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(seconds, self._on_timer)
        self._send_task: asyncio.Task[None] | None = None
        self._has_started = self._is_sending = False
        self._last = self._loop.time()

    async def end(self) -> bool:
        """Send no more of them. Returns whether the response has started."""
        self._timer.cancel()
        await self.spoken()
        return self._has_started

    async def hold(self) -> bool:
        """Send none until `go_on`, and keep the timer. Returns whether the response has started."""
        self._is_sending = True
        await self.spoken()
        return self._has_started

    def go_on(self) -> None:
        """Send them again, in a response that has started."""
        self.sent()
        self._has_started = True

    def sending(self) -> bool:
        """Bytes of the answer are to be sent. Returns whether `spoken` must be awaited before."""
        self._is_sending = True
        return self._send_task is not None

    def sent(self) -> None:
        """The bytes are sent, and more are awaited."""
        self._is_sending, self._last = False, self._loop.time()

    async def spoken(self) -> None:
        """Wait for the end of what is being sent: half an event must not be left behind."""
        if self._send_task is not None:
            # A cancelled caller of this one waits for the rest of it again.
            await asyncio.shield(self._send_task)
            self._send_task = None

    def _on_timer(self) -> None:
        silent = 0.0 if self._is_sending else self._loop.time() - self._last
        # A timer may be early by the resolution of the clock.
        if silent < self._seconds * 0.99:
            self._timer = self._loop.call_later(self._seconds - silent, self._on_timer)
            return
        self._last = self._loop.time()
        if self._send_task is None or self._send_task.done():
            self._send_task = self._loop.create_task(self._send_comment())
        self._timer = self._loop.call_later(self._seconds, self._on_timer)

    async def _send_comment(self) -> None:
        if not self._has_started:
            self._has_started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})
        await self._send({"type": "http.response.body", "body": self._event, "more_body": True})


class WholeResponse:
    """A JSON body whose bytes are known."""

    def __init__(self, body: bytes, headers: Headers) -> None:
        self._body = body
        self._headers = [JSON, (b"content-length", b"%d" % len(body)), *headers]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self._headers})
        await send({"type": "http.response.body", "body": self._body, "more_body": False})


class EventResponse:
    """The events of an opened answer, as they come. The answer is closed at the end, and at once when the client
    disconnects or reads nothing for `stalled_seconds`.

    `waiting`: keeps it alive between them. `started`: it has already started the response.
    """

    def __init__(
        self,
        answer: Answer,
        chunks: Chunks,
        headers: Headers,
        disconnect: DisconnectWatch,
        waiting: KeepAlive,
        *,
        started: bool,
        stalled_seconds: float,
        before_end: BeforeEnd | None = None,
    ) -> None:
        self._before_end = before_end
        self._answer, self._chunks, self._disconnect, self._waiting = answer, chunks, disconnect, waiting
        self._headers, self._started, self._stalled_seconds = headers, started, stalled_seconds
        self._deltas, self._pieces = aiter(answer), 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        reader, waiting = StallWatch(self._stalled_seconds), self._waiting
        try:
            if not self._started:
                await send({"type": "http.response.start", "status": 200, "headers": self._headers})
            waiting.go_on()
            events, more = self._chunks.opening(), True
            while more:
                events, more = await self._read(events)
                reader.sending()
                if waiting.sending():
                    await waiting.spoken()
                await send({"type": "http.response.body", "body": events, "more_body": more})
                reader.taken()
                waiting.sent()
                events = b""
        except BaseException as error:
            if not (self._disconnect.is_reason(error) or reader.is_reason(error)):
                raise
        finally:
            reader.end()
            self._disconnect.end()
            await self._ended()

    async def _ended(self) -> None:
        try:
            await self._answer.aclose()
        finally:
            await self._waiting.end()

    async def _read(self, events: bytes) -> tuple[bytes, bool]:
        """Return `events` with the next ones, and whether there are more; what a server elsewhere sent at once is
        passed on at once."""
        piece, pieces = self._chunks.piece, self._pieces
        try:
            async for delta in self._deltas:
                events += piece(delta)
                pieces = (delta.pieces or pieces) - 1
                if events and pieces <= 0:
                    self._pieces = pieces
                    return events, True
            if self._before_end is not None:
                await self._before_end(self._answer)
        except Exception as error:
            return events + self._chunks.failed(located(error, self._answer.request.names)), False
        except asyncio.CancelledError as error:
            if not self._disconnect.is_shutdown(error):
                raise
            await self._answer.aclose()
            return events + self._chunks.failed(shutting_down()), False
        return events + self._chunks.closing(self._answer), False


class EndOfEvents:
    """The last events of a response. `headers`: of one that has not started; it then has these events alone."""

    def __init__(self, events: bytes, headers: Headers | None = None) -> None:
        self._events, self._headers = events, headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._headers is not None:
            await send({"type": "http.response.start", "status": 200, "headers": self._headers})
        await send({"type": "http.response.body", "body": self._events, "more_body": False})


def _response_headers(answer: Answer, *, whole: bool) -> Headers:
    """The x-aio headers: what became of the request; the cost is known, and given, on whole answers only."""
    tier, decision = answer.tier, answer.decision
    # Nearly every answer is that of its only attempt.
    others = [attempt for attempt in answer.attempts if attempt.status != "ok"]
    headers = [
        (b"x-aio-decision-id", answer.request.request_id.encode()),
        (b"x-aio-tier", b"%d" % tier.number),
        (b"x-aio-model", _shown(tier.model)),
        (b"x-aio-p-ok", b"%.4f" % answer.p_ok),
        (b"x-aio-classifier", _shown(decision.inputs.prediction.classifier_version)),
        (b"x-aio-cache", (answer.source.cached or "bypass").encode()),
        (b"x-aio-overhead-ms", b"%.3f" % answer.overhead_ms()),
    ]
    if decision.would_be is not None:
        headers.append((b"x-aio-would-be-tier", b"%d" % decision.would_be))
    if others and (escalated := answer.escalated_from) is not None:
        headers.append((b"x-aio-escalated-from", b"%d" % escalated.tier))
    if tier.is_target:
        headers.append((b"x-aio-target", tier.name.encode()))
    if others and (failed := answer.fell_over_from):
        headers.append((b"x-aio-fell-over-from", ", ".join(failed).encode()))
    if (limit := answer.source.limit) is not None:
        headers.append((b"x-aio-max-tokens", b"%d" % limit))
    if others and (agreed := answer.agreed) is not None:
        headers.append((b"x-aio-agreed", b"true" if agreed else b"false"))
    if whole:
        headers.append((b"x-aio-cost-usd", usd_text(answer.cost_usd).encode()))
        if answer.cost_is_estimated:
            headers.append((b"x-aio-cost-estimated", b"true"))
    return headers


def _shown(name: str) -> bytes:
    return name.encode("latin-1", "replace")
