"""Google's Gemini API: `POST /v1beta/models/MODEL:METHOD`, and the same below `/v1`.

Answers are whole, server-sent events, or the elements of a JSON array; failures have Google's error envelope.
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

from gateway.base.errors import ApiError, as_api_error, bad_request, envelope_response
from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.inference.answer import Answer
from gateway.inference.api.answers import AnswerFormat, Routed, routed
from gateway.inference.api.build_request import read_request, received
from gateway.inference.api.embeddings import EmbeddingsRequest, embedded
from gateway.inference.api.models import GeminiModel, GeminiPage, listed_models, named_model
from gateway.inference.api.parsing import read_fields
from gateway.inference.api.sending import WholeResponse, ignored_header, respond, token_count
from gateway.inference.service import serving_of
from gateway.tenancy.guard import inference_post
from tiers.conversation import ReadRequest
from tiers.dialects.caller_errors import GeminiErrorBody, GeminiErrorEnvelope, gemini_error
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


class ShownResponse(GenerateContentResponse, frozen=True, kw_only=True):
    """A whole answer, or a piece of a stream; the last one has the usage and `x_aio`, as of chats."""

    x_aio: Routed | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="x_aio")


def gemini_failure(request: Request[Any, Any, State], error: Exception) -> Response[Any]:
    """The response for any failure: logged and with the headers of `envelope_response`."""
    response: Response[Any] = envelope_response(request, error)
    response.content = GeminiErrorEnvelope(_error(error))
    return response


def _error(error: Exception) -> GeminiErrorBody:
    return gemini_error(as_api_error(error).failure())


class GeminiFormat(AnswerFormat):
    """The format of one request. `shows_thoughts`: whether thoughts are wanted; `is_sse`: whether a stream is one of
    events, else of the elements of an array."""

    def __init__(self, *, shows_thoughts: bool, is_sse: bool) -> None:
        self._shows_thoughts, self._is_sse = shows_thoughts, is_sse
        if not is_sse:
            self.keep_alive, self.stream_type = b" ", b"application/json"

    def whole(self, answer: Answer) -> bytes:
        body = whole_response(self._head(answer), answer.choices, answer.usage, routed(answer))
        return msgspec.json.encode(body)

    def chunks(self, answer: Answer) -> "GeminiChunks":
        return GeminiChunks(answer, self._head(answer), is_sse=self._is_sse)

    def failed(self, error: Exception) -> bytes:
        said = msgspec.json.encode(GeminiErrorEnvelope(_error(error)))
        return b"data: %b\n\n" % said if self._is_sse else b"[%b]" % said

    def _head(self, answer: Answer) -> AnswerHead:
        return AnswerHead(
            id=answer.request.request_id,
            model=answer.tier.model,
            shows_thoughts=self._shows_thoughts,
            shows_logprobs=answer.request.generation.sampling.logprobs is not None,
        )


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
        if self._answer.record is None:
            return self.broken(_error(error))
        return self.broken(_error(error), self._answer.billed or Usage(), routed(self._answer))


_reader = partial(FieldReader, "/v1beta/models", mend=mend_gemini)
_GENERATE, _COUNT = _reader(GenerateContentRequest), _reader(CountTokensRequest)
_EMBED, _EMBED_BATCH = _reader(EmbedContentRequest), _reader(BatchEmbedContentsRequest)


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
    body, asked = await read_request(request, _GENERATE, partial(_read, request, model, stream=stream))
    config = None if body.generation_config is None else body.generation_config.thinking_config
    answer_format = GeminiFormat(
        shows_thoughts=config is not None and bool(config.include_thoughts),
        is_sse=request.query_params.get("alt") == "sse",
    )
    return await respond(request, serving_of(request), asked, answer_format)


async def _count(request: HttpRequest, model: str) -> ASGIApp:
    _, asked = await read_request(request, _COUNT, partial(_read, request, model, stream=False))
    return await token_count(request, asked, lambda tokens: {"totalTokens": tokens})


def _read(request: HttpRequest, model: str, body: GenerateContentRequest, *, stream: bool) -> ReadRequest:
    whole = body.generate_content_request if isinstance(body, CountTokensRequest) else None
    runs_tools = serving_of(request).routing.served.has_gemini
    return read_gemini(whole or body, model, stream=stream, runs_tools=runs_tools)


async def _embed(request: HttpRequest, model: str) -> ASGIApp:
    body = await read_fields(serving_of(request), request, _EMBED)
    return await _embedded(request, model, [body], lambda vectors: {"embedding": vectors[0]})


async def _embed_batch(request: HttpRequest, model: str) -> ASGIApp:
    body = await read_fields(serving_of(request), request, _EMBED_BATCH)
    return await _embedded(request, model, body.requests, lambda vectors: {"embeddings": vectors})


async def _embedded(
    request: HttpRequest,
    model: str,
    requests: list[EmbedContentRequest],
    form: Callable[[list[dict[str, Any]]], dict[str, Any]],
) -> ASGIApp:
    dimensions = {embed.output_dimensionality for embed in requests}
    if len(dimensions) != 1:
        raise bad_request(
            "requests: give at least one, and all with the same outputDimensionality.", "requests", "invalid_value"
        )
    texts: list[Any] = ["\n".join(part.text or "" for part in embed.content.parts) for embed in requests]
    body = EmbeddingsRequest(model=model, input=texts, dimensions=dimensions.pop())
    answer, headers = await embedded(serving_of(request), received(request), body)
    said = msgspec.json.encode(form([{"values": row.embedding} for row in answer.data]))
    return WholeResponse(said, [(name.encode(), value.encode()) for name, value in headers] + ignored_header(request))


_METHODS: dict[str, Callable[[HttpRequest, str], Awaitable[ASGIApp]]] = {
    "generateContent": _generate,
    "streamGenerateContent": partial(_generate, stream=True),
    "countTokens": _count,
    "embedContent": _embed,
    "batchEmbedContents": _embed_batch,
}
