"""What both generating endpoints do once the request is checked: answer it, whole or as a stream of events."""

import time
from collections.abc import AsyncGenerator
from typing import Any, TypeVar

import msgspec
from litestar.background_tasks import BackgroundTask
from litestar.response import Response, Stream

from gateway.answer import Answer
from gateway.api.aio_headers import response_headers, wishes_of
from gateway.api.answers import whole_answer
from gateway.api.chunks import ChatChunks, Chunks, CompletionChunks, error_event
from gateway.api.disconnects import unless_client_leaves
from gateway.api.parsing import decode_body, priority_of, sampling_params, stops_of, token_limit, unset_of
from gateway.api.schemas import Sampling
from gateway.ask import Ask
from gateway.errors import ApiError
from gateway.parts import HttpRequest, parts_of
from gateway.request_ids import caller_request_id

Body = TypeVar("Body", bound=msgspec.Struct)

EVENT_STREAM = {"cache-control": "no-cache", "x-accel-buffering": "no"}


async def read_body(request: HttpRequest, decoder: msgspec.json.Decoder[Body]) -> Body:
    """The decoded JSON body. Raises `ApiError`: 415 for another media type, 400 for what does not decode."""
    media_type = request.headers.get("content-type", "application/json")
    if "json" not in media_type.lower():
        raise ApiError(415, f"Send the body as application/json, not as {media_type[:64]!r}.")
    return decode_body(decoder, await request.body())


def ask_fields(request: HttpRequest, body: Sampling, logprobs: int | None, store: bool | None = None) -> dict[str, Any]:
    """The fields of an Ask that do not depend on the API. `store`: the caller's word on storing the texts."""
    parts = parts_of(request)
    wishes = wishes_of(request.headers, parts.routing.strongest)
    return {
        "request_id": request.state["request_id"],
        "arrival": request.state["arrival"],
        "created_at": time.time(),
        "requested_model": body.model,
        "stream": bool(body.stream),
        "key_id": request.state["key_id"],
        "store_texts": (
            parts.settings.store_texts and parts.keys.may_store_texts(request.state["key_id"]) and store is not False
        ),
        "sampling": sampling_params(body, logprobs),
        "unset": unset_of(body),
        "max_tokens": token_limit(body),
        "stop": stops_of(body),
        "n": body.n or 1,
        "include_stop": bool(body.include_stop_str_in_output),
        "priority": priority_of(body),
        "traceparent": request.headers.get("traceparent"),
        **msgspec.structs.asdict(wishes),
    }


async def respond(request: HttpRequest, ask: Ask, include_usage: bool) -> Response[Any]:
    """Answer `ask` on this request. A caller who leaves, at any time, frees the tier's work within one step."""
    parts = parts_of(request)
    if not ask.stream:
        answer = await unless_client_leaves(request.receive, parts.service.complete(ask))
        body = msgspec.json.encode(whole_answer(answer, parts.fingerprint))
        return Response(body, media_type="application/json", headers=_headers(request, answer, whole=True))
    answer = await unless_client_leaves(request.receive, parts.service.start(ask))
    wording = ChatChunks if ask.api == "chat" else CompletionChunks
    return Stream(
        _events(answer, wording(answer, parts.fingerprint, include_usage)),
        media_type="text/event-stream",
        headers=EVENT_STREAM | _headers(request, answer, whole=False),
        # Litestar cancels the stream when the caller leaves, and then runs this; a generator would be closed only
        # when collected.
        background=BackgroundTask(answer.aclose),
    )


def _headers(request: HttpRequest, answer: Answer, *, whole: bool) -> dict[str, str]:
    headers = response_headers(answer, whole=whole)
    headers["x-request-id"] = caller_request_id(request.headers.get("x-request-id")) or answer.ask.request_id
    return headers


async def _events(answer: Answer, chunks: Chunks) -> AsyncGenerator[bytes, None]:
    opening = chunks.opening()
    try:
        async for delta in answer:
            events = opening + chunks.piece(delta)
            opening = b""
            if events:
                yield events
    except Exception as error:
        yield error_event(error)
        return
    finally:
        # A shutdown cancels the stream without running its background task.
        await answer.aclose()
    yield opening + chunks.closing(answer)
