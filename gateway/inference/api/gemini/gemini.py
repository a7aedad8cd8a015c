"""Google's Gemini API: `POST /v1beta/models/MODEL:METHOD`, and the same below `/v1`.

Answers are whole, server-sent events, or the elements of a JSON array; failures have Google's error envelope.
Source: https://ai.google.dev/api/generate-content#v1beta.GenerateContentResponse.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
from litestar import get
from litestar.connection import Request
from litestar.datastructures import State
from litestar.params import FromPath
from litestar.response import Response
from litestar.types import ASGIApp
from msgspec import UNSET, UnsetType

from gateway.base.errors import ApiError, ContextLengthError, as_api_error, bad_request, envelope_response
from gateway.base.inference_request import InferenceRequest
from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.inference.answer import Answer
from gateway.inference.api.answers import EVENT_STREAM, Routed, routed
from gateway.inference.api.build_request import chat_request, received
from gateway.inference.api.embeddings import EmbeddingsRequest, embedded
from gateway.inference.api.gemini.request import Chat, chat_of, mend_gemini
from gateway.inference.api.models import GeminiModel, GeminiPage, listed_models, named_model
from gateway.inference.api.parsing import IGNORED, off_loop, read_and_build, read_fields
from gateway.inference.api.sending import WholeResponse, ignored_header, respond
from gateway.inference.service import serving_of
from gateway.tenancy.guard import inference_post
from tiers.conversation import Call, ToolCallDelta, UrlCitation
from tiers.deltas import BlockOrder, CollectedChoice, Piece, joined_call, pieces_of
from tiers.dialects.chat_state import image_blocks
from tiers.dialects.decoding import FieldReader
from tiers.dialects.gemini import (
    BatchEmbedContentsRequest,
    Candidate,
    CitedPage,
    ContentResponse,
    CountTokensRequest,
    EmbedContentRequest,
    GenerateContentRequest,
    Grounding,
    GroundingChunk,
    SaidContent,
    UsageMetadata,
)
from tiers.errors import TierRequestError
from tiers.tier import Delta, TextLogprob, Usage

_encode = msgspec.json.Encoder().encode
# https://cloud.google.com/apis/design/errors#handling_errors
_STATUSES = {
    400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 409: "ABORTED",
    429: "RESOURCE_EXHAUSTED", 499: "CANCELLED", 501: "UNIMPLEMENTED", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED",
}  # fmt: skip
_REASONS = {"length": "MAX_TOKENS", "content_filter": "SAFETY", "error": "OTHER"}


class GeminiErrorBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What went wrong; `details` name the field, or when to try again."""

    code: int
    message: str
    status: str
    details: list[dict[str, Any]] = []


class GeminiErrorEnvelope(msgspec.Struct, frozen=True):
    """The body of every answer of this API that is not 2xx, and of the last event of a stream that broke."""

    error: GeminiErrorBody


class GenerateContentResponse(ContentResponse, frozen=True, kw_only=True):
    """A whole answer, or a piece of a stream; the last one has the usage and `x_aio`, as of chats."""

    x_aio: Routed | UnsetType = msgspec.field(name="x_aio", default=UNSET)


def gemini_failure(request: Request[Any, Any, State], error: Exception) -> Response[Any]:
    """The response for any failure: logged and with the headers of `envelope_response`."""
    response: Response[Any] = envelope_response(request, error)
    response.content = GeminiErrorEnvelope(error_body(as_api_error(error)))
    return response


def error_body(failure: ApiError) -> GeminiErrorBody:
    """The error of a failure in Google's form."""
    body, status, message = failure.body, failure.status, failure.body.message
    if isinstance(failure, ContextLengthError) and failure.prompt_tokens and failure.max_context:
        # Google's words, by which its clients make the conversation shorter.
        message = (
            f"The input token count ({failure.prompt_tokens}) exceeds the maximum number of tokens allowed "
            f"({failure.max_context}). ({failure.reason})"
        )
    details: list[dict[str, Any]] = []
    if body.param is not None and status == 400:
        violation = {"field": body.param, "description": message}
        details.append({"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": [violation]})
    if status in (429, 503):
        wait = failure.headers.get("retry-after", failure.retry_after)
        details.append({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{wait}s"})
    kind = _STATUSES.get(status, "INTERNAL" if status >= 500 else "INVALID_ARGUMENT")
    return GeminiErrorBody(code=status, message=message, status=kind, details=details)


def is_gemini_path(method: str, path: str, headers: Any) -> bool:
    """Whether a request is of this API: by its path, or below `/v1` by the header of Google's clients."""
    return (
        path.startswith("/v1beta/")
        or (method == "POST" and path.startswith("/v1/models/"))
        or "x-goog-api-key" in headers
    )


class GeminiFormat:
    """The format of one request. `shows_thoughts`: whether thoughts are wanted; `is_sse`: whether a stream is one of
    events, else of the elements of an array."""

    id_headers: tuple[bytes, ...] = (b"x-request-id",)

    def __init__(self, *, shows_thoughts: bool, is_sse: bool) -> None:
        self._shows_thoughts, self._is_sse = shows_thoughts, is_sse
        self.keep_alive = b": keep-alive\n\n" if is_sse else b" "
        self.stream_type = EVENT_STREAM if is_sse else b"application/json"

    def whole(self, answer: Answer) -> bytes:
        numbered = enumerate(answer.choices)
        candidates = [
            _candidate(answer, choice, place, _parts(choice, self._shows_thoughts)) for place, choice in numbered
        ]
        return _encode(_response(answer, candidates))

    def chunks(self, answer: Answer) -> "GeminiChunks":
        return GeminiChunks(answer, self._shows_thoughts, self._is_sse)

    def is_told_in_stream(self, error: Exception) -> bool:
        return False

    def failed(self, error: Exception) -> bytes:
        said = _encode(GeminiErrorEnvelope(error_body(as_api_error(error))))
        return b"data: %b\n\n" % said if self._is_sse else b"[%b]" % said


class GeminiChunks:
    """`Chunks` in the wording of Gemini's API. A call is one part, so it is shown when all of it is there."""

    def __init__(self, answer: Answer, shows_thoughts: bool, is_sse: bool) -> None:
        self._answer, self._shows_thoughts, self._is_sse = answer, shows_thoughts, is_sse
        self._order: dict[int, BlockOrder] = {}  # by choice
        self._calls: dict[int, list[ToolCallDelta]] = {}  # by choice, the pieces of the call that is not shown yet
        self._is_first = True
        said = _encode({"modelVersion": answer.tier.model, "responseId": answer.request.request_id})
        self._tail = b',"role":"model"},"index":%d}],' + said[1:].replace(b"%", b"%%")

    def opening(self) -> bytes:
        return b""

    def piece(self, delta: Delta) -> bytes:
        """Events for one delta; a part of a server with this API goes on as it is."""
        opaque = delta.opaque
        if opaque is not None and opaque.dialect == "gemini" and opaque.block is not None:
            is_shown = self._shows_thoughts or not _is_thought(opaque.block.json)
            return self._event([msgspec.Raw(opaque.block.json)], delta.index) if is_shown else b""
        order = self._order.setdefault(delta.index, BlockOrder())
        ready = [shown for piece in pieces_of(delta) for shown in order.put(piece)]
        ended = delta.finish_reason is not None
        parts = [
            part for piece in (ready + order.rest() if ended else ready) for part in self._parts_of(piece, delta.index)
        ]
        parts += self._whole_call(delta.index) if ended else []
        return self._event(parts, delta.index) if parts else b""

    def _parts_of(self, piece: Piece, choice: int) -> list[Any]:
        """The parts that a piece ends or is."""
        waiting = self._calls.get(choice)
        parts = self._whole_call(choice) if waiting and waiting[0].index != piece.key else []
        if piece.call is not None:
            self._calls.setdefault(choice, []).append(piece.call)
        elif piece.key != "thinking":
            parts.append({"text": piece.text})
        elif self._shows_thoughts:
            parts.append({"text": piece.text, "thought": True})
        return parts

    def closing(self, answer: Answer) -> bytes:
        """Why each choice ended, and the usage."""
        candidates = [_candidate(answer, choice, place, _images(choice)) for place, choice in enumerate(answer.choices)]
        return self._framed(_encode(_response(answer, candidates))) + (b"" if self._is_sse else b"]")

    def failed(self, error: Exception) -> bytes:
        said: dict[str, Any] = {"error": error_body(as_api_error(error))}
        if self._answer.record is not None:
            said |= {"usageMetadata": _usage(self._answer.billed), "x_aio": routed(self._answer)}
        return self._framed(_encode(said)) + (b"" if self._is_sse else b"]")

    def _whole_call(self, choice: int) -> list[dict[str, Any]]:
        pieces = self._calls.pop(choice, [])
        return [_call_part(joined_call(pieces))] if pieces else []

    def _event(self, parts: list[Any], index: int) -> bytes:
        return self._framed(b'{"candidates":[{"content":{"parts":' + _encode(parts) + self._tail % index)

    def _framed(self, element: bytes) -> bytes:
        if self._is_sse:
            return b"data: %b\n\n" % element
        before, self._is_first = (b"[" if self._is_first else b",\n"), False
        return before + element


def _is_thought(part: bytes) -> bool:
    return b'"thought"' in part and bool(msgspec.json.decode(part, type=dict[str, Any]).get("thought"))


def _response(answer: Answer, candidates: list[Candidate]) -> GenerateContentResponse:
    return GenerateContentResponse(
        candidates=candidates,
        usage_metadata=_usage(answer.usage),
        model_version=answer.tier.model,
        response_id=answer.request.request_id,
        x_aio=routed(answer),
    )


def _usage(usage: Usage | None) -> UsageMetadata:
    usage = usage or Usage()
    return UsageMetadata(
        prompt_token_count=usage.prompt_tokens,
        candidates_token_count=usage.completion_tokens - usage.reasoning_tokens,
        total_token_count=usage.prompt_tokens + usage.completion_tokens,
        cached_content_token_count=usage.cached_tokens or UNSET,
        thoughts_token_count=usage.reasoning_tokens or UNSET,
    )


def _candidate(answer: Answer, choice: CollectedChoice, index: int, parts: list[Any]) -> Candidate:
    """A choice that has ended."""
    drawn = choice.logprobs if answer.request.generation.sampling.logprobs is not None else []
    told = [one.logprob for one in drawn if one.logprob is not None]
    return Candidate(
        content=SaidContent(parts=parts or [{"text": ""}]),
        index=index,
        finish_reason=_REASONS.get(choice.finish_reason or "stop", "STOP"),
        avg_logprobs=sum(told) / len(told) if told else UNSET,
        logprobs_result=_logprobs(drawn) if drawn else UNSET,
        grounding_metadata=_grounding(choice.annotations) if choice.annotations else UNSET,
    )


def _parts(choice: CollectedChoice, shows_thoughts: bool) -> list[Any]:
    """All parts of a choice: as a server with this API gave them, else thoughts, text and calls."""
    own = [block.json for block in choice.opaque.get("gemini", ())]
    if own:
        return [msgspec.Raw(part) for part in own if shows_thoughts or not _is_thought(part)]
    parts: list[Any] = [{"text": choice.reasoning, "thought": True}] if choice.reasoning and shows_thoughts else []
    parts += [{"text": choice.text}] if choice.text else []
    return parts + [_call_part(call) for call in choice.tool_calls] + _images(choice)


def _images(choice: CollectedChoice) -> list[Any]:
    sources = [block["source"] for block in image_blocks(choice)]
    return [{"inlineData": {"mimeType": one["media_type"], "data": one["data"]}} for one in sources]


def _call_part(call: Call) -> dict[str, Any]:
    return {"functionCall": {"id": call.id, "name": call.name, "args": call.object_arguments()}}


def _logprobs(drawn: list[TextLogprob]) -> dict[str, Any]:
    chosen = [{"token": one.token, "logProbability": one.logprob or 0.0} for one in drawn]
    tops = [
        {"candidates": [{"token": token, "logProbability": logprob} for token, _, logprob in one.top]} for one in drawn
    ]
    return {"chosenCandidates": chosen, "topCandidates": tops}


def _grounding(cited: list[UrlCitation]) -> Grounding:
    return Grounding(grounding_chunks=[GroundingChunk(web=CitedPage(uri=one.url, title=one.title)) for one in cited])


_GENERATE = FieldReader("/v1beta/models", GenerateContentRequest, mend=mend_gemini)
_COUNT = FieldReader("/v1beta/models", CountTokensRequest, mend=mend_gemini)
_EMBED = FieldReader("/v1beta/models", EmbedContentRequest, mend=mend_gemini)
_EMBED_BATCH = FieldReader("/v1beta/models", BatchEmbedContentsRequest, mend=mend_gemini)


@inference_post(
    "/models/{call:path}",
    describe(GenerateContentRequest, GenerateContentResponse, streamed=True, envelope=GeminiErrorEnvelope),
    "Answer, count or embed contents in Gemini's format",
    id_prefix="gen",
)
async def call_model(request: HttpRequest) -> ASGIApp:
    """`MODEL:generateContent`, `:streamGenerateContent` (events with `alt=sse`, else a JSON array), `:countTokens`,
    `:embedContent` and `:batchEmbedContents`; see docs/clients.md."""
    model, _, method = request.path_params["call"].lstrip("/").rpartition(":")
    if method not in _METHODS or not model:
        allowed = ", ".join(_METHODS)
        raise ApiError(404, f"models: {method[:64]!r} is no method here; allowed are {allowed}.", code="not_found")
    return await _METHODS[method](request, model)


@get("/models", operation_class=describe(None, GeminiPage, envelope=GeminiErrorEnvelope), summary="List the models")
async def list_gemini_models(request: HttpRequest) -> Response[Any]:
    """As `GET /v1/models`, in Gemini's format; `pageSize` and `pageToken` ask for a page."""
    return await listed_models(request)


@get(
    "/models/{model:path}",
    operation_class=describe(None, GeminiModel, envelope=GeminiErrorEnvelope),
    summary="Show one model",
)
async def show_gemini_model(request: HttpRequest, model: FromPath[str]) -> Response[Any]:
    """As `GET /v1/models/MODEL`, in Gemini's format."""
    return await named_model(request, model)


async def _generate(request: HttpRequest, model: str, *, stream: bool = False) -> ASGIApp:
    serving = serving_of(request)
    build = partial(_built, request, model, stream)
    body, (chat, asked) = await read_and_build(serving, request, _GENERATE, build)
    _ignore(request, chat.left_out)
    config = None if body.generation_config is None else body.generation_config.thinking_config
    answer_format = GeminiFormat(
        shows_thoughts=config is not None and bool(config.include_thoughts),
        is_sse=request.query_params.get("alt") == "sse",
    )
    try:
        return await respond(request, serving, chat.with_own(asked), answer_format)
    except (ApiError, TierRequestError) as error:
        raise chat.renamed(as_api_error(error)) from None


async def _built(
    request: HttpRequest, model: str, stream: bool, body: GenerateContentRequest
) -> tuple[Chat, InferenceRequest]:
    serving, head = serving_of(request), received(request)
    raw = await request.body()
    convert = partial(chat_of, body, model, stream=stream, runs_tools=serving.routing.served.has_gemini)
    chat = await off_loop(serving, head.caller, raw, convert)
    try:
        return chat, await off_loop(serving, head.caller, raw, partial(chat_request, serving, head, chat.request))
    except ApiError as error:
        raise chat.renamed(error) from None


async def _count(request: HttpRequest, model: str) -> ASGIApp:
    serving = serving_of(request)

    async def build(body: CountTokensRequest) -> tuple[Chat, InferenceRequest]:
        return await _built(request, model, False, body.whole())

    _, (chat, asked) = await read_and_build(serving, request, _COUNT, build)
    try:
        tokens, limits = await serving.service.counted(asked)
    except ApiError as error:
        raise chat.renamed(error) from None
    headers = [(name.encode(), value.encode()) for name, value in limits.items()]
    return WholeResponse(msgspec.json.encode({"totalTokens": tokens}), headers + ignored_header(request))


async def _embed(request: HttpRequest, model: str) -> ASGIApp:
    body = await read_fields(serving_of(request), request, _EMBED)
    (vector,), headers = await _vectors(request, model, [body])
    return WholeResponse(msgspec.json.encode({"embedding": {"values": vector}}), headers)


async def _embed_batch(request: HttpRequest, model: str) -> ASGIApp:
    body = await read_fields(serving_of(request), request, _EMBED_BATCH)
    vectors, headers = await _vectors(request, model, body.requests)
    return WholeResponse(msgspec.json.encode({"embeddings": [{"values": vector} for vector in vectors]}), headers)


async def _vectors(
    request: HttpRequest, model: str, requests: list[EmbedContentRequest]
) -> tuple[list[Any], list[tuple[bytes, bytes]]]:
    dimensions = {one.output_dimensionality for one in requests}
    if len(dimensions) != 1:
        raise bad_request(
            "requests: give at least one, and all with the same outputDimensionality.", "requests", "invalid_value"
        )
    texts: list[Any] = ["\n".join(part.text or "" for part in one.content.parts) for one in requests]
    body = EmbeddingsRequest(model=model, input=texts, dimensions=dimensions.pop())
    answer, headers = await embedded(serving_of(request), received(request), body)
    named = [(name.encode(), value.encode()) for name, value in headers]
    return [one.embedding for one in answer.data], named + ignored_header(request)


_METHODS: dict[str, Callable[[HttpRequest, str], Awaitable[ASGIApp]]] = {
    "generateContent": _generate,
    "streamGenerateContent": partial(_generate, stream=True),
    "countTokens": _count,
    "embedContent": _embed,
    "batchEmbedContents": _embed_batch,
}


def _ignore(request: HttpRequest, names: list[str]) -> None:
    if names:
        state = request.scope["state"]
        state[IGNORED] = [*state.get(IGNORED, ()), *names]
