"""`POST /v1/embeddings`: texts or token ids to unit vectors."""

import asyncio
import base64
import time
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import msgspec
from litestar.types import ASGIApp
from msgspec import Meta

from gateway.base.errors import ApiError, ClientGoneError, bad_request
from gateway.base.numbers import usd_text
from gateway.base.requests.caller import Caller
from gateway.base.requests.inference_request import Prompt
from gateway.edge.asgi import HttpRequest
from gateway.edge.client_watch import DisconnectWatch
from gateway.edge.openapi import describe
from gateway.inference.api.reading.build_request import Received, reading_request, received
from gateway.inference.api.reading.ignored_fields import FieldReader
from gateway.inference.api.reading.parsing import prompts_of, read_fields
from gateway.inference.api.reading.schemas import Metadata, PositiveInt, TokenId
from gateway.inference.api.writing.sending import WholeResponse, ignored_header
from gateway.inference.embedding.embedder import Embedder, require_dimensions, unit_vectors
from gateway.inference.embedding.recording import embedding_record
from gateway.inference.serving import Serving, serving_of
from gateway.tenancy.access.guard import InferenceRoute
from tiers.tier import UsageMeter

if TYPE_CHECKING:
    from tiers.remote.embedding_client import EmbeddingClient

# OpenAI's own bounds of a request.
MAX_INPUTS = 2048
MAX_TOKENS = 300_000
ROWS_AT_ONCE = 64


class EmbeddingsRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`input`: a text, token ids of the model, or lists of either. `dimensions`: only of models made for it.
    `metadata`: tags for the bill, as of answers."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    input: str | list[str | int | list[TokenId]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: PositiveInt | None = None
    user: Annotated[str, Meta(max_length=512)] | None = None
    metadata: Metadata | None = None


class Embedding(msgspec.Struct, frozen=True, kw_only=True):
    """A vector: numbers, or the base64 of its float32 in little-endian order."""

    object: str = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(msgspec.Struct, frozen=True):
    """Tokens that were read."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct, frozen=True, kw_only=True):
    """The vectors, in the order of the inputs."""

    object: str = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


EMBEDDINGS = FieldReader("/v1/embeddings", EmbeddingsRequest)


@InferenceRoute(
    "/embeddings",
    http_method="POST",
    status_code=200,
    operation_class=describe(EmbeddingsRequest, EmbeddingList),
    summary="Embed texts",
    opt={"id_prefix": "embd"},
)
async def embeddings(request: HttpRequest) -> ASGIApp:
    """Vectors of length 1 by a model that the catalogue lists for it; a caller who leaves frees what they take."""
    body = await read_fields(request, EMBEDDINGS)
    disconnect = DisconnectWatch(request.scope, request.receive)
    try:
        answer, headers = await embedded(serving_of(request), received(request), body)
    except BaseException as error:
        if disconnect.is_reason(error):
            raise ClientGoneError from None
        raise
    finally:
        disconnect.end()
    encoded = [(name.encode(), value.encode()) for name, value in headers]
    return WholeResponse(msgspec.json.encode(answer), encoded + ignored_header(request))


async def embedded(
    serving: Serving, head: Received, body: EmbeddingsRequest, priority: int = 1
) -> tuple[EmbeddingList, list[tuple[str, str]]]:
    """The vectors, and headers that say what they cost; recorded once the budget allows it, however it ends.

    Raises `ApiError`.
    """
    model = _model(serving, body.model, head.caller)
    if model.spec.is_remote:
        return await _passed_through(serving, head, body, cast("EmbeddingClient", model), priority)
    model = cast(Embedder, model)
    await model.open()
    require_dimensions(model, body.dimensions)
    inference_request = reading_request(
        head, body.model, prompts=_inputs(body), priority=priority, metadata=body.metadata
    )
    async with serving.service.reading(inference_request) as admission:
        rows = await serving.routing.threads.run(
            head.caller.tenant, partial(_rows, model, inference_request.prompts or [])
        )
        tokens = sum(map(len, rows))
        price = model.spec.price
        cost = tokens * price.input_usd_per_million / 1e6
        await admission.reserve(head.caller, cost)
        started, failure, meter = time.monotonic(), None, UsageMeter()
        try:
            states = await model.embed(
                rows, priority=inference_request.generation.priority, salt=head.caller.tenant, meter=meter
            )
            vectors = unit_vectors(states, body.dimensions)
        except BaseException as error:
            failure = error
            raise
        finally:
            used = tokens
            if failure is not None:
                # Of a failure nothing is charged; a caller that leaves is charged what the model was given to read.
                used = 0 if isinstance(failure, Exception) else meter.usage().prompt_tokens
            spent = used * price.input_usd_per_million / 1e6
            admission.settle(spent, used)
            name, replica = model.spec.name, serving.service.replica
            serving.records.append(
                embedding_record(inference_request, name, started, failure, used, spent, replica, price)
            )
    data = await _data(vectors, body.encoding_format)
    answer = EmbeddingList(data=data, model=model.spec.name, usage=EmbeddingUsage(tokens, tokens))
    own = {"x-request-id": head.request_id, "x-aio-cost-usd": usd_text(cost)}
    return answer, list((admission.headers | own).items())


async def _passed_through(
    serving: Serving, head: Received, body: EmbeddingsRequest, model: "EmbeddingClient", priority: int
) -> tuple[EmbeddingList, list[tuple[str, str]]]:
    # Imported with the first such request: most gateways have no such model.
    from gateway.inference.api.openai.remote_embeddings import passed_through

    answer, tokens, headers = await passed_through(serving, head, body, _inputs(body), model, priority)
    form = body.encoding_format
    data = []
    for index, vector in enumerate(answer.vectors):
        if index % ROWS_AT_ONCE == ROWS_AT_ONCE - 1:
            await asyncio.sleep(0)
        data.append(Embedding(index=index, embedding=vector.written(form)))
    return EmbeddingList(data=data, model=model.spec.name, usage=EmbeddingUsage(tokens, tokens)), headers


def _model(serving: Serving, name: str, caller: Caller) -> "Embedder | EmbeddingClient":
    named = name if name in serving.embedders else serving.routing.served.unaliased(name, caller)
    if (model := serving.embedders.get(named)) is not None:
        return model
    known = ", ".join(serving.embedders) or "none"
    raise ApiError(
        404, f"The model {name!r} gives no embeddings here; those that do: {known}.",
        param="model", code="model_not_found",
    )  # fmt: skip


def _inputs(body: EmbeddingsRequest) -> list[Prompt]:
    prompts = prompts_of(body.input, "input")
    if len(prompts) > MAX_INPUTS:
        raise bad_request(f"input holds {len(prompts)}; at most {MAX_INPUTS} fit one request.", "input", "too_long")
    return prompts


def _rows(model: Embedder, prompts: list[Prompt]) -> list[list[int]]:
    """Token ids of every input, within all bounds."""
    rows, total = [], 0
    for place, prompt in enumerate(prompts):
        row = _row(model, prompt, f"input[{place}]")
        rows.append(row)
        total += len(row)
        if total > MAX_TOKENS:
            raise bad_request(f"input has more than {MAX_TOKENS} tokens, which fit one request.", "input", "too_long")
    return rows


def _row(model: Embedder, prompt: Prompt, where: str) -> list[int]:
    least = model.least_tokens(prompt) if isinstance(prompt, str) else len(prompt)
    if least > model.max_tokens:
        raise _too_long(model, least, where)
    ids = model.tokens(prompt) if isinstance(prompt, str) else prompt
    if not prompt or not ids:
        raise bad_request("An input is empty: give some text.", where, "empty")
    if len(ids) > model.max_tokens:
        raise _too_long(model, len(ids), where)
    if isinstance(prompt, list) and max(ids) >= model.vocabulary:
        raise bad_request(f"{max(ids)} is no token of {model.spec.name}.", where, "invalid_value")
    return ids


def _too_long(model: Embedder, tokens: int, where: str) -> ApiError:
    return bad_request(
        f"An input has at least {tokens} tokens; {model.spec.name} reads at most {model.max_tokens}.",
        where,
        "context_length_exceeded",
    )


async def _data(vectors: Any, form: str | None) -> list[Embedding]:
    """The vectors as they are sent; others have a turn in between."""
    data = []
    for index, vector in enumerate(vectors):
        if index % ROWS_AT_ONCE == ROWS_AT_ONCE - 1:
            await asyncio.sleep(0)
        data.append(Embedding(index=index, embedding=_written(vector, form)))
    return data


def _written(vector: Any, form: str | None) -> Any:
    """Text, or numbers already in JSON, so that not all of an answer's are written at once."""
    if form == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return msgspec.Raw(msgspec.json.encode(vector.tolist()))
