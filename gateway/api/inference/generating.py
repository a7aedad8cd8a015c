"""What both generating endpoints do once the request is checked: answer it, whole or as a stream of events."""

import time
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

import msgspec
from litestar.connection import ASGIConnection
from litestar.types import ASGIApp

from gateway.answering.answer import Answer
from gateway.api.inference.aio_headers import response_headers, routing_headers
from gateway.api.inference.answers import whole_answer
from gateway.api.inference.chunks import ChatChunks, Chunks, CompletionChunks, error_event
from gateway.api.inference.parsing import decode_body, priority_of, sampling_params, stops_of, token_limit, unset_of
from gateway.api.inference.schemas import Sampling, StreamOptions
from gateway.api.streaming.disconnects import Presence
from gateway.api.streaming.keep_alive import KeepAlive
from gateway.api.streaming.sending import EndOfEvents, EventResponse, Headers, WholeResponse
from gateway.errors import ApiError, ClientGoneError
from gateway.logs.log_context import LOG_CONTEXT, LogContext
from gateway.parts import HttpRequest, Parts, parts_of
from gateway.request_ids import caller_request_id
from gateway.requests.caller import CALLER, Caller
from gateway.requests.inference_request import InferenceRequest
from gateway.requests.trace_context import trace_context

Body = TypeVar("Body", bound=msgspec.Struct)


async def read_body(request: HttpRequest, decoder: msgspec.json.Decoder[Body]) -> Body:
    """The decoded JSON body. Raises `ApiError`: 415 for another media type, 400 for what does not decode."""
    # Forms and plain text, whatever their parameters say, are what web pages may send to other sites unasked.
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type and media_type != "application/json" and not media_type.endswith("+json"):
        raise ApiError(415, f"Send the body as application/json, not as {media_type[:64]!r}.")
    return decode_body(decoder, await request.body())


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a request before its body is read; on a socket one connection brings many of them.

    `arrival`: monotonic seconds.
    """

    request_id: str
    arrival: float
    caller: Caller
    headers: Mapping[str, str]


def received(connection: ASGIConnection[Any, Any, Any, Any]) -> Received:
    """What the guard found out about a request."""
    state = connection.scope["state"]
    return Received(
        request_id=state["request_id"],
        arrival=state["arrival"],
        caller=state[CALLER],
        headers=connection.headers,
    )


def request_fields(
    parts: Parts, given: Received, body: Sampling, logprobs: int | None, store: bool | None = None
) -> dict[str, Any]:
    """The fields of an InferenceRequest that all APIs share. `store`: whether the caller lets its texts be stored."""
    caller = given.caller
    wishes = routing_headers(given.headers, parts.routing.strongest)
    trace = trace_context(given.headers, parts.settings.traced_share)
    LOG_CONTEXT.set(LogContext(given.request_id, "" if trace is None else f"{trace.trace_id:032x}"))
    return {
        "request_id": given.request_id,
        "arrival": given.arrival,
        "created_at": time.time(),
        "requested_model": body.model,
        "stream": bool(body.stream),
        "caller": caller,
        "store_texts": parts.settings.store_texts and caller.consent and store is not False,
        "sampling": sampling_params(body, logprobs),
        "unset": unset_of(body),
        "max_tokens": token_limit(body),
        "stop": stops_of(body),
        "n": body.n or 1,
        "include_stop": bool(body.include_stop_str_in_output),
        "priority": max(priority_of(body, wishes.slo), caller.priority_ceiling),
        "trace": trace,
        **msgspec.structs.asdict(wishes),
    }


class AnswerFormat(Protocol):
    """How an API words its answers."""

    def whole(self, answer: Answer) -> bytes:
        """The body of a finished answer."""

    def chunks(self, answer: Answer) -> Chunks:
        """The events of an opened one."""


class CompletionsFormat:
    """That of chats and of text completions."""

    def __init__(self, parts: Parts, stream_options: StreamOptions | None) -> None:
        self._fingerprint = parts.fingerprint
        self._include_usage = bool(stream_options and stream_options.include_usage)

    def whole(self, answer: Answer) -> bytes:
        """See `AnswerFormat.whole`."""
        return _encode(whole_answer(answer, self._fingerprint))

    def chunks(self, answer: Answer) -> Chunks:
        """See `AnswerFormat.chunks`."""
        wording = ChatChunks if answer.request.api == "chat" else CompletionChunks
        return wording(answer, self._fingerprint, self._include_usage)


async def respond(request: HttpRequest, inference_request: InferenceRequest, answer_format: AnswerFormat) -> ASGIApp:
    """Answer the request. When the client disconnects, at any time, the tier's work is freed within one step."""
    parts = parts_of(request)
    presence = Presence(request.receive)
    if inference_request.stream:
        return await _stream(request, inference_request, answer_format, presence)
    try:
        answer = await parts.service.complete(inference_request)
    except BaseException as error:
        if presence.is_reason(error):
            raise ClientGoneError from None
        raise
    finally:
        presence.end()
    return WholeResponse(answer_format.whole(answer), _headers(request, answer))


async def _stream(
    request: HttpRequest, inference_request: InferenceRequest, answer_format: AnswerFormat, presence: Presence
) -> ASGIApp:
    parts = parts_of(request)
    settings = parts.settings
    waiting = KeepAlive(request.send, _early_headers(request, inference_request), settings.keep_alive_seconds)
    answer: Answer | None = None
    try:
        answer = await parts.service.start(inference_request)
        begun = await waiting.end()
    except BaseException as error:
        presence.end()
        if answer is not None:
            # Its first delta was there, but the caller left before it could be sent.
            await answer.aclose()
        begun = await waiting.end()
        if presence.is_reason(error):
            error = ClientGoneError()
        if begun and isinstance(error, Exception):
            return EndOfEvents(error_event(error))
        raise error from None
    return EventResponse(
        answer,
        answer_format.chunks(answer),
        _headers(request, answer),
        presence,
        begun=begun,
        stalled_seconds=settings.stalled_reader_seconds,
    )


def _early_headers(request: HttpRequest, inference_request: InferenceRequest) -> Headers:
    own = caller_request_id(request.headers.get("x-request-id")) or inference_request.request_id
    return [(b"x-request-id", own.encode()), (b"x-aio-decision-id", inference_request.request_id.encode())]


def _headers(request: HttpRequest, answer: Answer) -> Headers:
    own = caller_request_id(request.headers.get("x-request-id")) or answer.request.request_id
    headers = response_headers(answer, whole=not answer.request.stream) | answer.rate_headers | {"x-request-id": own}
    return [(name.encode(), value.encode("latin-1", errors="replace")) for name, value in headers.items()]


_encode = msgspec.json.Encoder().encode
