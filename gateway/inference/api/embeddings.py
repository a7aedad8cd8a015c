"""`POST /v1/embeddings`: texts or token ids to unit vectors.

For a model of a provider: limits, budget, the call itself, the bill and the record.
"""

import asyncio
import base64
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import msgspec
from litestar.types import ASGIApp
from msgspec import Meta

from gateway.base.errors import ApiError, ClientGoneError, bad_request
from gateway.base.inference_request import Caller, PrivateMark, Prompt
from gateway.base.numbers import usd_text
from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.edge.response_cycle import DisconnectWatch
from gateway.inference.api.build_request import RequestHead, received, routing_options, unanswered_request
from gateway.inference.api.parsing import read_fields
from gateway.inference.api.sending import WholeResponse, ignored_header, shown_names
from gateway.inference.embedding.embedder import Embedder, embedding_record, require_dimensions, unit_vectors
from gateway.inference.service import Serving, serving_of
from gateway.tenancy.admission import check_max_cost
from gateway.tenancy.guard import inference_post
from tiers.dialects.chat_request import prompts_of
from tiers.dialects.chat_schemas import Metadata, PositiveInt, TokenId
from tiers.dialects.decoding import FieldReader
from tiers.errors import TierAnswerError, TierError, TierRequestError, TierUnavailableError
from tiers.tier import UsageMeter

if TYPE_CHECKING:
    from tiers.remote.embedding_client import Embedded, EmbeddingClient

# OpenAI's own bounds of a request.
MAX_INPUTS = 2048
MAX_TOKENS = 300_000
ROWS_AT_ONCE = 64


class EmbeddingsRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/embeddings`."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    input: str | list[str | int | list[TokenId]]
    """A text, token ids of the model, or lists of either."""
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: PositiveInt | None = None
    """Entries of a vector; only for models made for it."""
    user: Annotated[str, Meta(max_length=512)] | None = None
    metadata: Metadata | None = None
    """Tags for the bill, as those of chats."""


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


# Servers elsewhere have fields of their own, and some need them: `input_type`, `task`, `truncate`.
EMBEDDINGS = FieldReader("/v1/embeddings", EmbeddingsRequest, forwards="any")


@inference_post("/embeddings", describe(EmbeddingsRequest, EmbeddingList), "Embed texts", id_prefix="embd")
async def embeddings(request: HttpRequest) -> ASGIApp:
    """Vectors of length 1 by a model that the catalogue lists for it; a caller who leaves frees what they take."""
    serving = serving_of(request)
    body = await read_fields(serving, request, EMBEDDINGS)
    disconnect = DisconnectWatch(request.scope, request.receive)
    try:
        answer, headers = await embedded(serving, received(request), body)
    except BaseException as error:
        if disconnect.is_reason(error):
            raise ClientGoneError from None
        raise
    finally:
        disconnect.end()
    encoded = [(name.encode(), value.encode()) for name, value in headers]
    return WholeResponse(msgspec.json.encode(answer), encoded + ignored_header(request))


async def embedded(
    serving: Serving, head: RequestHead, body: EmbeddingsRequest, priority: int = 1
) -> tuple[EmbeddingList, list[tuple[str, str]]]:
    """The vectors, and headers with their cost; recorded once the budget allows it. Raises `ApiError`."""
    model = _model(serving, body.model, head.caller)
    if model.spec.is_remote:
        return await _passed_through(serving, head, body, cast("EmbeddingClient", model), priority)
    model = cast(Embedder, model)
    await model.open()
    require_dimensions(model, body.dimensions)
    options = routing_options(head.headers, serving.routing.served.strongest)
    inference_request = unanswered_request(
        head, body.model, prompts=_inputs(body), priority=priority, metadata=body.metadata, options=options
    )
    async with serving.service.reading(inference_request) as admission:
        rows = await serving.routing.threads.run(
            head.caller.tenant, partial(_rows, model, inference_request.prompts or [])
        )
        tokens = sum(map(len, rows))
        price = model.spec.price
        cost = tokens * price.input_usd_per_million / 1e6
        check_max_cost(inference_request, cost)
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
    if head.extra:
        serving.count_ignored(EMBEDDINGS.endpoint)
        own["x-aio-ignored-fields"] = shown_names([*head.extra])
    return answer, list((admission.headers | own).items())


async def _passed_through(
    serving: Serving, head: RequestHead, body: EmbeddingsRequest, model: "EmbeddingClient", priority: int
) -> tuple[EmbeddingList, list[tuple[str, str]]]:
    answer, tokens, headers = await passed_through(serving, head, body, _inputs(body), model, priority)
    data = []
    for index, vector in enumerate(answer.vectors):
        if index % ROWS_AT_ONCE == ROWS_AT_ONCE - 1:
            await asyncio.sleep(0)
        data.append(Embedding(index=index, embedding=vector.written(body.encoding_format)))
    return EmbeddingList(data=data, model=model.spec.name, usage=EmbeddingUsage(tokens, tokens)), headers


def _model(serving: Serving, name: str, caller: Caller) -> "Embedder | EmbeddingClient":
    named = name if name in serving.embedders else serving.routing.served.unaliased(name, caller)
    there = [client for client in serving.embedders.values() if client.spec.is_remote and client.spec.model == named]
    if (model := serving.embedders.get(named, there[0] if there else None)) is not None:
        return model
    raise ApiError(
        404, f"The model {name!r} gives no embeddings here; those that do: {', '.join(serving.embedders) or 'none'}.",
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
    for index, prompt in enumerate(prompts):
        row = _row(model, prompt, f"input[{index}]")
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


log = logging.getLogger(__name__)


async def passed_through(
    serving: Serving,
    head: RequestHead,
    body: "EmbeddingsRequest",
    prompts: list[Prompt],
    client: "EmbeddingClient",
    priority: int,
) -> "tuple[Embedded, int, list[tuple[str, str]]]":
    """Return the vectors as the server gives them, the tokens that are billed, and headers that say what they cost.

    The budget holds the most that the texts can cost; finished calls are billed, also where another one fails, and
    calls under way if the caller leaves. Raises `ApiError`.
    """
    # Only with a provider's model does this module load.
    from tiers.remote.embedding_client import EmbeddingCounter

    spec = client.spec
    own = routing_options(head.headers, serving.routing.served.strongest)
    if (head.caller.consent.local or own.consent.local) and own.private is None and not spec.local:
        raise ApiError(
            403, f"{spec.name} is on a server elsewhere, and the texts of this key or request stay here: name a model "
            "of this gateway.", param="model", code="model_not_allowed",
        )  # fmt: skip
    if not spec.local:
        await _refuse_private(serving, head, body, prompts, own.private)
    for index, prompt in enumerate(prompts):
        if not prompt:
            raise bad_request("An input is empty: give some text.", f"input[{index}]", "empty")
    inference_request = unanswered_request(
        head, body.model, prompts=prompts, priority=priority, metadata=body.metadata, options=own
    )
    fields = head.extra | _fields(body)
    most_usd = client.most_tokens(prompts, fields, head.caller.tenant) * spec.usd_per_million / 1e6
    check_max_cost(inference_request, most_usd)
    counter = EmbeddingCounter()
    async with serving.service.reading(inference_request) as admission:
        await admission.reserve(head.caller, most_usd)
        # A reload may change it meanwhile: the record says what was billed.
        price, started = spec.price, time.monotonic()
        failure: BaseException | None = None
        try:
            answer = await client.embed(prompts, fields, counter, head.caller.tenant)
        except TierError as error:
            failure = _as_api_error(error)
            raise failure from error
        except BaseException as error:
            failure = error
            raise
        finally:
            gone = failure is not None and not isinstance(failure, Exception)
            used = counter.with_sent if gone else counter.finished
            spent = used * price.input_usd_per_million / 1e6
            admission.settle(spent, used)
            replica = serving.service.replica
            serving.records.append(
                embedding_record(inference_request, spec.name, started, failure, used, spent, replica, price)
            )
    if answer.disputed:
        log.warning(
            "request %s: %s reported tokens that cannot be: %s", head.request_id, spec.name, answer.disputed[:8]
        )
    headers = admission.headers | {"x-request-id": head.request_id, "x-aio-cost-usd": usd_text(spent)}
    return answer, used, list(headers.items())


async def _refuse_private(
    serving: Serving, head: RequestHead, body: "EmbeddingsRequest", prompts: list[Prompt], mark: PrivateMark | None
) -> None:
    """Raise `ApiError` 403 if a rule of the catalogue finds something in what would be sent."""
    screen = serving.service.screen
    if mark is None and screen is not None and screen.has_rules:
        from gateway.inference.screening.texts import texts_of_inputs

        texts = texts_of_inputs(prompts, head.extra | _fields(body))
        mark = await screen.mark_of(texts, head.caller.tenant, serving.routing.threads)
    if mark is not None:
        raise ApiError(
            403, f"{body.model} is on a server elsewhere, and the request is private ({mark}): name a model of this "
            "gateway.", param=mark.where, code="no_tier_may_see",
        )  # fmt: skip


def _fields(body: "EmbeddingsRequest") -> dict[str, Any]:
    """What the server gets of the caller's fields besides the texts: those that are set."""
    fields = {name: getattr(body, name) for name in ("encoding_format", "dimensions", "user")}
    return {name: value for name, value in fields.items() if value is not None}


def _as_api_error(error: TierError) -> ApiError:
    if isinstance(error, TierRequestError):
        param = error.param if error.param in ("input", "dimensions", "encoding_format", "user") else None
        return ApiError(400, str(error), param=param, code=error.code)
    if isinstance(error, TierUnavailableError):
        return ApiError(
            503, f"{error}. Try again later.", code="model_unavailable", retry_after_seconds=error.retry_after_seconds
        )
    return ApiError(502, str(error), code="tier_failed" if isinstance(error, TierAnswerError) else "server_error")
