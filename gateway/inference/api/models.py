"""`GET /v1/models`: what a request may name as its model, in OpenAI's shape, and for their clients in Anthropic's
and Google's, whose are also below `/v1beta`."""

from datetime import UTC, datetime
from typing import Any

import msgspec
from litestar import get
from litestar.params import FromPath
from litestar.response import Response
from litestar.utils import normalize_path

from gateway.base.errors import ApiError, bad_request
from gateway.base.inference_request import Caller
from gateway.base.numbers import whole_number
from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.inference.served_catalogue import ServedCatalogue
from gateway.inference.service import Serving, serving_of
from gateway.tenancy.guard import caller_of
from tiers.catalog.tier_spec import TierSpec

# Anthropic's own.
_PAGE, _LONGEST_PAGE = 20, 1000
_GOOGLES_PAGE = 50
_ANSWERED = ["generateContent", "streamGenerateContent", "countTokens"]
_EMBEDDED = ["embedContent", "batchEmbedContents"]


class ModelTier(msgspec.Struct, frozen=True, kw_only=True):
    """What stands behind a name: tier, model, context in tokens, prices in US dollars per million tokens."""

    tier: int
    tier_class: str | None
    model: str
    max_context: int
    input_usd_per_million: float
    output_usd_per_million: float
    price_estimated: str
    """What the price is estimated from, where the catalogue gives none (size, seconds or order); else empty."""
    capabilities: list[str]
    """Which of vision, audio, files, tools, json_schema and logprobs it supports."""
    adapter: str | None = None
    """The LoRA adapter that the tier binds; null for the model alone."""


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """One model in OpenAI's shape."""

    id: str
    created: int
    object: str = "model"
    owned_by: str = "aio"
    x_aio: list[ModelTier] = []
    """The tiers that it may lead to; none for a model that only embeds."""


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """All models."""

    data: list[ModelCard]
    object: str = "list"


class AnthropicModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model in Anthropic's shape."""

    type: str = "model"
    id: str
    display_name: str
    created_at: str
    lifecycle: str = "active"
    max_input_tokens: int | None = None
    """The longest context of its tiers."""


class AnthropicPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of models."""

    data: list[AnthropicModel]
    has_more: bool
    first_id: str | None
    last_id: str | None


class GeminiModel(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One model in Google's shape."""

    name: str
    base_model_id: str
    version: str = "1"
    display_name: str
    input_token_limit: int
    """The longest context of its tiers."""
    output_token_limit: int
    supported_generation_methods: list[str]


class GeminiPage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A page of models."""

    models: list[GeminiModel]
    nextPageToken: str = ""


async def model_cards(serving: Serving, caller: Caller) -> list[ModelCard]:
    """A card for `auto`, for each tier, for each model of the catalogue, for each model with a loaded adapter, for
    each that embeds, each target, and for each alias; of those that `caller` may use."""
    adapted = [
        name for name in await serving.core_adapters.served_names() if serving.routing.served.split_adapter(name)[1]
    ]
    aliases = (name for name in (*caller.aliases, *serving.routing.served.catalog.aliases) if name != "*")
    passed = (spec.name for spec in serving.routing.served.catalog.targets if spec.serves and caller.may_use(spec))
    names = dict.fromkeys((*serving.routing.served.names, *adapted, *serving.embedders, *passed, *aliases))
    return [card for name in names if (card := _card(serving, name, caller)) is not None]


def _card(serving: Serving, name: str, caller: Caller) -> ModelCard | None:
    model = name if name in serving.embedders else serving.routing.served.unaliased(name, caller)
    target = serving.routing.served.catalog.target(model)
    if model in serving.embedders or (target is not None and target.serves and caller.may_use(target)):
        return ModelCard(id=name, created=serving.created)
    try:
        pinned = serving.routing.served.pinned_tier(model)
    except ApiError:
        # Nothing keeps the alias of a key from a model that the catalogue no longer has.
        if model == name:
            raise
        return None
    served = serving.routing.served.seen_by(model)
    specs = served.catalog.tiers if pinned is None else [served.spec(pinned)]
    tiers = [_tier(served, spec) for spec in specs if caller.may_use(spec)]
    return ModelCard(id=name, created=serving.created, x_aio=tiers) if tiers else None


def _tier(served: ServedCatalogue, spec: TierSpec) -> ModelTier:
    return ModelTier(
        tier=spec.number,
        tier_class=None if spec.tier_class is None else spec.tier_class.value,
        model=spec.model_name,
        adapter=spec.adapter,
        max_context=served.tier(spec.number).max_context,
        input_usd_per_million=spec.price.input_usd_per_million,
        output_usd_per_million=spec.price.output_usd_per_million,
        price_estimated=spec.price.estimated,
        capabilities=sorted(spec.has),
    )


async def listed_models(request: HttpRequest) -> Response[Any]:
    """The models that the caller may use, in the form of its API."""
    cards = await model_cards(serving_of(request), caller_of(request))
    if is_googles(request):
        return Response(_gemini_page(cards, request), media_type="application/json")
    if is_anthropics(request):
        return Response(_page(cards, request), media_type="application/json")
    return Response(ModelList(data=cards), media_type="application/json")


@get("/models", operation_class=describe(None, ModelList), summary="List the models")
async def list_models(request: HttpRequest) -> Response[Any]:
    """`auto`, the tiers, the catalogue's models, those that loaded adapters make of them (`MODEL:ADAPTER`), and aliases
    of all these; what the caller's key may use."""
    return await listed_models(request)


@get("/models/{model:path}", operation_class=describe(None, ModelCard), summary="Show one model")
async def show_model(request: HttpRequest, model: FromPath[str]) -> Response[Any]:
    """One model by name; 404 in the error envelope for a name that is not served, or that the key may not use."""
    return await named_model(request, model)


async def named_model(request: HttpRequest, model: str) -> Response[Any]:
    """One model in the form of the caller's API. Raises `ApiError` 404."""
    name, serving, caller = model.lstrip("/"), serving_of(request), caller_of(request)
    if (card := await _listed(serving, caller, request.scope["path"])) is None:
        card = _card(serving, name, caller)
    if card is None:
        raise ApiError(404, f"This key does not have access to model {name!r}.", param="model", code="model_not_found")
    shown: Any = _as_gemini(card) if is_googles(request) else _as_anthropics(card) if is_anthropics(request) else card
    return Response(shown, media_type="application/json")


async def _listed(serving: Serving, caller: Caller, path: str) -> ModelCard | None:
    """Return the card whose id ends `path`; the router, and proxies before it, take slashes out of an id that begins
    with one or has two in a row, such as the path of a folder. None if no id does."""
    asked = path.partition("/models/")[2]
    same = [card for card in await model_cards(serving, caller) if normalize_path(card.id) == normalize_path(asked)]
    return next((card for card in same if card.id == asked), same[0] if same else None)


def is_anthropics(request: HttpRequest) -> bool:
    """Whether a client of Anthropic's asks, which says so in every request."""
    return "anthropic-version" in request.scope["state"]["headers"]


def is_googles(request: HttpRequest) -> bool:
    """Whether a request is of Google's API: by its path, or below `/v1` by the header of Google's clients."""
    path = request.scope["path"]
    is_call = request.scope["method"] == "POST" and path.startswith("/v1/models/")
    return is_call or path.startswith("/v1beta/") or "x-goog-api-key" in request.headers


def _as_anthropics(card: ModelCard) -> AnthropicModel:
    contexts = [tier.max_context for tier in card.x_aio]
    made = datetime.fromtimestamp(card.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return AnthropicModel(
        id=card.id, display_name=card.id, created_at=made, max_input_tokens=max(contexts, default=None)
    )


def _page(cards: list[ModelCard], request: HttpRequest) -> AnthropicPage:
    """The page that `limit`, `after_id` and `before_id` ask for. Raises `ApiError` 400."""
    query = request.query_params
    limit = whole_number(query.get("limit", str(_PAGE)), "limit", 1, _LONGEST_PAGE)
    ids = [card.id for card in cards]
    for name in ("after_id", "before_id"):
        if name in query and query[name] not in ids:
            raise bad_request(f"{name}: there is no model {query[name][:64]!r}.", name, "invalid_value")
    before = "before_id" in query
    if before:
        left = cards[: ids.index(query["before_id"])]
        page = left[-limit:]
    else:
        left = cards[ids.index(query["after_id"]) + 1 :] if "after_id" in query else cards
        page = left[:limit]
    first, last = (page[0].id, page[-1].id) if page else (None, None)
    return AnthropicPage(
        data=[_as_anthropics(card) for card in page], has_more=len(left) > limit, first_id=first, last_id=last
    )


def _as_gemini(card: ModelCard) -> GeminiModel:
    """A model as Google's clients show it."""
    context = max((tier.max_context for tier in card.x_aio), default=0)
    return GeminiModel(
        name=f"models/{card.id}",
        base_model_id=card.id,
        display_name=card.id,
        input_token_limit=context,
        output_token_limit=context,
        supported_generation_methods=_ANSWERED if card.x_aio else _EMBEDDED,
    )


def _gemini_page(cards: list[ModelCard], request: HttpRequest) -> GeminiPage:
    """The page that `pageSize` and `pageToken` ask for. Raises `ApiError` 400."""
    query, last = request.query_params, max(0, len(cards) - 1)
    size = whole_number(query.get("pageSize") or str(_GOOGLES_PAGE), "pageSize", 1, _LONGEST_PAGE)
    first = whole_number(query.get("pageToken") or "0", "pageToken", 0, last)
    page, end = cards[first : first + size], first + size
    return GeminiPage(models=list(map(_as_gemini, page)), nextPageToken=str(end) if end < len(cards) else "")
