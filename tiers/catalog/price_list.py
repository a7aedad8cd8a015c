"""Prices and context lengths of providers' models: the bundled data of `genai-prices`.

Only what is sure is answered: the provider is named, or its address is; else, and where the provider's part of the list
lacks the model, a model whose weights only its maker serves (Claude, Gemini, GPT), under any address. Open models cost
what their host asks, which no list knows. `listed_family` is a guess, and its callers say so.

The list has prices that hold from a date on or at hours of the day: a running catalogue gets those of now, where it has
none of its own.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from math import log
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from tiers.catalog.catalog import Catalog, EmbeddingSpec
from tiers.catalog.gpu_group import named_billions
from tiers.catalog.tier_spec import Price, PriceStep, TierSpec

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, Provider

# AIO's names of providers where the list has others.
_LISTED_AS = {"gemini": "google", "bedrock": "aws", "xai": "x-ai"}
_CLOSED = (
    ("anthropic", re.compile(r"claude-")),
    ("google", re.compile(r"gemini-")),
    ("openai", re.compile(r"gpt-(?!oss)|o\d")),
)


# Before a model's name where others serve it: regions and makers, as `us.anthropic.claude-…`.
_PREFIXES = re.compile(r"^(?:[a-z-]+\.)+(?=claude-|gemini-|gpt-)")
# Those whose models others resell, and one that lists nearly all.
_MAKERS = (
    "anthropic", "google", "openai", "mistral", "deepseek", "x-ai", "cohere", "moonshotai", "zai", "minimax", "meta",
    "openrouter",
)  # fmt: skip
# Words of a name that say nothing of the family.
_PLAIN_WORDS = frozenset(
    {
        "us", "eu", "apac", "global", "anthropic", "google", "openai", "meta", "amazon", "v", "latest", "preview",
        "exp", "instruct", "chat", "it", "hf", "free", "beta",
    }
)  # fmt: skip
_LATEST_VERSION = 100
# Names of models of a provider's list that answer no chats, or not under that name.
_NOT_CHAT = re.compile(
    r"embed|image|audio|realtime|tts|whisper|transcribe|moderation|dall-e|sora|veo|imagen|search|computer-use|babbage|"
    r"davinci|curie|(^|-)ada|rerank|sonic|voice|live|guard|robotics|banana|-oss-|[:*]|-$"
)
_SIZE = re.compile(r"[0-9.]+[bk]\b")
# Of a model whose name does not say its size, next to one that is asked for by size.
_USUAL_BILLIONS = 400.0


class ListedModel(msgspec.Struct, frozen=True, kw_only=True):
    """What the list knows of a model; `max_context` in tokens, None if it does not say."""

    provider: str
    model: str
    price: Price
    max_context: int | None


def listed_model(model: str, *, provider: str | None = None, base_url: str = "") -> ListedModel | None:
    """Return the list's entry for `model` at `provider` (else: at the provider whose API is at `base_url`, else at the
    maker of a closed model); None if it has none, or no price for it."""
    listing = _entry_of(model, provider, base_url)
    if listing is None:
        return None
    entry, info = listing
    price = _price_of(info.get_prices(datetime.now(UTC)))
    if price is None:
        return None
    return ListedModel(provider=entry.id, model=info.id, price=price, max_context=info.context_window)


def is_closed(model: str) -> bool:
    """Whether only its maker, and those who resell it, serve a model of this name."""
    return _closed_owner(_bare(model)) is not None


def listed_family(model: str) -> ListedModel | None:
    """Return the newest listed model of the family of `model`, by the words of its name, of the nearest size where the
    name has one; None if the list knows no such family. What it costs is only a guess at the price of `model`."""
    words, size = frozenset(_words_of(model)[0]), named_billions(model)
    ranked: list[tuple[tuple[int, float, tuple[int, ...], float], ListedModel]] = []
    for entry in _providers():
        for info in entry.models if entry.id in _MAKERS else ():
            named, version = _words_of(info.id)
            # By the first word, a maker's name for its models; a single letter says too little.
            if not named or named[0] not in words or (len(named[0]) == 1 and len(words) == 1):
                continue
            price = _price_of(info.get_prices(datetime.now(UTC)))
            if price is not None and price.input_usd_per_million:
                likeness = 2 * len({*named} & words) - len({*named} | words)
                candidate = ListedModel(provider=entry.id, model=info.id, price=price, max_context=info.context_window)
                nearness = 0.0 if size is None else -abs(log(size / (named_billions(info.id) or _USUAL_BILLIONS)))
                ranked.append(((likeness, nearness, version, price.input_usd_per_million), candidate))
    return max(ranked, key=lambda pair: pair[0])[1] if ranked else None


def listed_chat_models(provider: str) -> list[ListedModel]:
    """Return the models of a provider that answer chats: those of makers who alone serve them first, of each family the
    newest, then the others. Empty if the list has no such provider."""
    owner, wanted = _LISTED_AS.get(provider, provider), "gemini-" if provider == "gemini" else ""
    families: dict[tuple[str, ...], list[tuple[tuple[bool, tuple[int, ...]], ListedModel]]] = {}
    for entry in _providers():
        for info in entry.models if entry.id == owner else ():
            price = _price_of(info.get_prices(datetime.now(UTC)))
            is_other = _NOT_CHAT.search(info.id) or not info.id.startswith(wanted)
            if price is None or not price.output_usd_per_million or is_other:
                continue
            words, version = _words_of(_SIZE.sub("", info.id))
            listed = ListedModel(provider=entry.id, model=info.id, price=price, max_context=info.context_window)
            families.setdefault(tuple(words), []).append(((is_closed(info.id), version), listed))
    newest = [sorted(family, key=lambda pair: pair[0], reverse=True) for family in families.values()]
    newest.sort(key=lambda family: family[0][0], reverse=True)
    longest = max(map(len, newest), default=0)
    return [family[rank][1] for rank in range(longest) for family in newest if rank < len(family)]


def listed_info(model: str, *, provider: str | None = None, base_url: str = "") -> "ModelInfo | None":
    """Return all that the list knows of a model; None if it has none."""
    listing = _entry_of(model, provider, base_url)
    return None if listing is None else listing[1]


def listed_embedding(model: str, *, provider: str | None = None, base_url: str = "") -> Price | None:
    """Return the list's price of an embedding model, whose output costs nothing; None if it has none."""
    listing = _entry_of(model, provider, base_url)
    return None if listing is None else _price_of(listing[1].get_prices(datetime.now(UTC)), answers=False)


def embedding_with_price(spec: EmbeddingSpec) -> EmbeddingSpec:
    """Return an embedding model of a server with the list's price, where it has none and the list is sure."""
    if spec.input_usd_per_million is not None or spec.url is None or spec.model is None:
        return spec
    price = listed_embedding(spec.model, provider=spec.provider, base_url=spec.url)
    if price is None:
        return spec
    return msgspec.structs.replace(spec, input_usd_per_million=price.input_usd_per_million, listed=price.listed)


def similar_listed(model: str, *, provider: str | None = None) -> Sequence[str]:
    """Return names of listed models like `model`, of `provider` or of the makers of closed models."""
    from difflib import get_close_matches

    owners = [_LISTED_AS.get(provider, provider)] if provider else [owner for owner, _ in _CLOSED]
    names = [info.id for entry in _providers() if entry.id in owners for info in entry.models]
    return get_close_matches(model, names, n=5, cutoff=0.5)


def list_version() -> str:
    from importlib.metadata import version

    return version("genai-prices")


@cache
def _providers() -> "list[Provider]":
    # Imported on first use: a fifth of a second and 17 MB, which a catalogue with its own prices never needs.
    from genai_prices.data_snapshot import get_snapshot

    return list(get_snapshot().providers)


def _owner_of(base_url: str) -> str | None:
    host = urlsplit(base_url).hostname or ""
    if not host or host == "localhost" or host.startswith("127.") or host == "::1":
        return None
    return next((entry.id for entry in _providers() if re.match(entry.api_pattern, base_url)), None)


def _entry_of(model: str, provider: str | None, base_url: str) -> "tuple[Provider, ModelInfo] | None":
    name = model.rpartition("/")[2] if provider == "gemini" else model
    if provider == "vertex":
        return _find_closed(name.replace("@", "-"))
    if provider is not None:
        return _find(_LISTED_AS.get(provider, provider), name) or _find_closed(name)
    owner = _owner_of(base_url)
    return (None if owner is None else _find(owner, name)) or _find_closed(name)


def _find_closed(model: str) -> "tuple[Provider, ModelInfo] | None":
    name = _bare(model)
    owner = _closed_owner(name)
    return None if owner is None else _find(owner, name)


def _closed_owner(name: str) -> str | None:
    return next((owner for owner, pattern in _CLOSED if pattern.match(name)), None)


def _bare(model: str) -> str:
    """Return a model's name without what resellers put before it."""
    return _PREFIXES.sub("", model.rpartition("/")[2])


def _words_of(model: str) -> tuple[list[str], tuple[int, ...]]:
    """Return the words of a name that tell its family, and its version; dates are none."""
    name = _bare(model).lower()
    words = [word for word in re.findall(r"[a-z]+", name) if word not in _PLAIN_WORDS]
    numbers = [int(number) for number in re.findall(r"[0-9]{1,6}", name)]
    return words, tuple(number for number in numbers if number < _LATEST_VERSION)


def _find(owner: str, model: str) -> "tuple[Provider, ModelInfo] | None":
    entry = next((entry for entry in _providers() if entry.id == owner), None)
    info = None if entry is None else entry.find_model(model, all_providers=_providers())
    return None if entry is None or info is None else (entry, info)


_FIELDS = {
    "input_usd_per_million": "input_mtok",
    "output_usd_per_million": "output_mtok",
    "cached_input_usd_per_million": "cache_read_mtok",
    "cache_write_usd_per_million": "cache_write_mtok",
    "cache_write_1h_usd_per_million": "cache_write_1h_mtok",
}


def _price_of(listed: Any, *, answers: bool = True) -> Price | None:
    """Return the list's price in our form; None without one of input, or of output where the model `answers`."""
    prices = {name: getattr(listed, field, None) for name, field in _FIELDS.items()}
    if not answers:
        prices["output_usd_per_million"] = 0.0
    if prices["input_usd_per_million"] is None or prices["output_usd_per_million"] is None:
        return None
    starts = sorted({step.start for price in prices.values() for step in getattr(price, "tiers", ())})
    rates = {start: {name: _usd(price, start) for name, price in prices.items()} for start in (None, *starts)}
    steps = [PriceStep(above_prompt_tokens=start, **rates[start]) for start in starts]  # type: ignore[arg-type]
    return Price(**rates[None], steps=steps, listed=f"genai-prices {list_version()}")  # type: ignore[arg-type]


def _usd(price: Any, above: int | None) -> float | None:
    """Return US dollars per million tokens of a prompt of more than `above` tokens; None: of a short one."""
    if price is None:
        return None
    rate = getattr(price, "base", price)
    for step in getattr(price, "tiers", ()):
        if above is not None and step.start <= above:
            rate = step.price
    return float(rate)


def repriced(catalog: Catalog) -> Catalog:
    """Return `catalog` with the list's prices as of now. Prices that the catalogue gives stay, and so does a price that
    the list has no longer."""
    tiers = [_reprice_tier(tier) if _is_open(tier) else tier for tier in catalog.tiers]
    embeddings = [_reprice_embedding(spec) if spec.listed else spec for spec in catalog.embeddings]
    if tiers == catalog.tiers and embeddings == catalog.embeddings:
        return catalog
    return msgspec.structs.replace(catalog, tiers=tiers, embeddings=embeddings)


def _is_open(tier: TierSpec) -> bool:
    return tier.remote is not None and tier.remote.engine is None and bool(tier.price.listed or tier.price.estimated)


def _reprice_tier(tier: TierSpec) -> TierSpec:
    assert tier.remote is not None
    url = tier.remote.servers[0].base_url if tier.remote.servers else ""
    listed = listed_model(tier.remote.model, provider=tier.provider, base_url=url)
    return tier if listed is None else msgspec.structs.replace(tier, price=listed.price)


def _reprice_embedding(spec: EmbeddingSpec) -> EmbeddingSpec:
    price = listed_embedding(str(spec.model), provider=spec.provider, base_url=str(spec.url))
    if price is None:
        return spec
    return msgspec.structs.replace(spec, input_usd_per_million=price.input_usd_per_million, listed=price.listed)
