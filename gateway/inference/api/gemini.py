"""Google's Gemini API: `POST /v1beta/models/MODEL:METHOD`, and the same below `/v1`.

Answers are whole, server-sent events, or the elements of a JSON array; failures have Google's error envelope.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import msgspec
from litestar import get
from litestar.connection import Request
from litestar.datastructures import State
from litestar.params import FromPath
from litestar.response import Response
from litestar.types import ASGIApp

from gateway.base.errors import ApiError, as_api_error, bad_request, envelope_response
from gateway.base.inference_request import InferenceRequest
from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.inference.answer import Answer
from gateway.inference.api.answers import EVENT_STREAM, Routed, routed
from gateway.inference.api.build_request import received, request_of
from gateway.inference.api.embeddings import EmbeddingsRequest, embedded
from gateway.inference.api.models import GeminiModel, GeminiPage, listed_models, named_model
from gateway.inference.api.parsing import note_ignored, off_loop, read_and_build, read_fields
from gateway.inference.api.sending import WholeResponse, ignored_header, respond
from gateway.inference.service import serving_of
from gateway.tenancy.guard import inference_post
from tiers.conversation import ReadRequest
from tiers.dialects.caller_errors import GeminiErrorEnvelope, gemini_error
from tiers.dialects.decoding import FieldReader
from tiers.dialects.gemini import (
    AnswerHead,
    BatchEmbedContentsRequest,
    CountTokensRequest,
    EmbedContentRequest,
    GenerateContentRequest,
    GenerateContentResponse,
    ResponseWriter,
    whole_response,
)
from tiers.dialects.gemini_request import mend_gemini, read_gemini
from tiers.tier import Usage

B = TypeVar("B", bound=GenerateContentRequest)


class ShownResponse(GenerateContentResponse, frozen=True, kw_only=True):
    """A whole answer, or a piece of a stream; the last one has the usage and `x_aio`, as of chats."""

    x_aio: Routed | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="x_aio")


def gemini_failure(request: Request[Any, Any, State], error: Exception) -> Response[Any]:
    """The response for any failure: logged and with the headers of `envelope_response`."""
    response: Response[Any] = envelope_response(request, error)
    response.content = GeminiErrorEnvelope(gemini_error(as_api_error(error).failure()))
    return response


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
        head = _head(answer, shows_thoughts=self._shows_thoughts)
        return msgspec.json.encode(whole_response(head, answer.choices, answer.usage, routed(answer)))

    def chunks(self, answer: Answer) -> "GeminiChunks":
        return GeminiChunks(answer, _head(answer, shows_thoughts=self._shows_thoughts), is_sse=self._is_sse)

    def is_told_in_stream(self, error: Exception) -> bool:
        return False

    def failed(self, error: Exception) -> bytes:
        said = msgspec.json.encode(GeminiErrorEnvelope(gemini_error(as_api_error(error).failure())))
        return b"data: %b\n\n" % said if self._is_sse else b"[%b]" % said


class GeminiChunks(ResponseWriter):
    """`Chunks` in the wording of Gemini's API."""

    def __init__(self, answer: Answer, head: AnswerHead, *, is_sse: bool) -> None:
        super().__init__(head, is_sse=is_sse)
        self._answer = answer

    def opening(self) -> bytes:
        return b""

    def closing(self, answer: Answer) -> bytes:
        return self.end(answer.choices, answer.usage, routed(answer))

    def failed(self, error: Exception) -> bytes:
        body = gemini_error(as_api_error(error).failure())
        if self._answer.record is None:
            return self.broken(body)
        return self.broken(body, self._answer.billed or Usage(), routed(self._answer))


def _head(answer: Answer, *, shows_thoughts: bool) -> AnswerHead:
    return AnswerHead(
        id=answer.request.request_id,
        model=answer.tier.model,
        shows_thoughts=shows_thoughts,
        shows_logprobs=answer.request.generation.sampling.logprobs is not None,
    )


_GENERATE = FieldReader("/v1beta/models", GenerateContentRequest, mend=mend_gemini)
_COUNT = FieldReader("/v1beta/models", CountTokensRequest, mend=mend_gemini)
_EMBED = FieldReader("/v1beta/models", EmbedContentRequest, mend=mend_gemini)
_EMBED_BATCH = FieldReader("/v1beta/models", BatchEmbedContentsRequest, mend=mend_gemini)


@inference_post(
    "/models/{call:path}",
    describe(GenerateContentRequest, ShownResponse, streamed=True, envelope=GeminiErrorEnvelope),
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
    body, asked = await _read(request, _GENERATE, model, stream=stream)
    config = None if body.generation_config is None else body.generation_config.thinking_config
    answer_format = GeminiFormat(
        shows_thoughts=config is not None and bool(config.include_thoughts),
        is_sse=request.query_params.get("alt") == "sse",
    )
    return await respond(request, serving, asked, answer_format)


async def _count(request: HttpRequest, model: str) -> ASGIApp:
    _, asked = await _read(request, _COUNT, model)
    tokens, limits = await serving_of(request).service.counted(asked)
    headers = [(name.encode(), value.encode()) for name, value in limits.items()]
    return WholeResponse(msgspec.json.encode({"totalTokens": tokens}), headers + ignored_header(request))


async def _read(
    request: HttpRequest, fields: FieldReader[B], model: str, *, stream: bool = False
) -> tuple[B, InferenceRequest]:
    """The body of a request, and what it asks for."""
    serving, head = serving_of(request), received(request)
    raw = await request.body()

    def work(body: GenerateContentRequest) -> tuple[ReadRequest, InferenceRequest]:
        whole = body.generate_content_request if isinstance(body, CountTokensRequest) else None
        read = read_gemini(whole or body, model, stream=stream, runs_tools=serving.routing.served.has_gemini)
        return read, request_of(serving, head, read)

    async def build(body: GenerateContentRequest) -> tuple[ReadRequest, InferenceRequest]:
        return await off_loop(serving, head.caller, raw, partial(work, body))

    body, (read, asked) = await read_and_build(serving, request, fields, build)
    note_ignored(request, read.ignored)
    return body, asked


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
