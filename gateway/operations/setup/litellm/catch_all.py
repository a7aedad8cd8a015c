"""Entries of LiteLLM's model_list whose names are patterns, as `openai/*`: which models are known of them."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gateway.operations.setup.candidate import tier_name
from gateway.operations.setup.litellm.config_file import mapping, variable_of
from gateway.operations.setup.litellm.server_table import PROVIDERS, SERVERS
from gateway.operations.setup.litellm.servers import split_model
from gateway.operations.setup.provider_keys import PROPOSALS, key_variable
from tiers.catalog.price_list import listed_chat_models

MOST_LISTED = 24
"""Models that one pattern becomes."""
# What LiteLLM's `*` reaches by names without a provider.
_USUAL = ("openai", "anthropic", "gemini")

ModelsAt = Callable[[str, str], list[str]]
"""The models that a server at an address lists; it gets the key, "" for none. Empty if it lists none."""


def is_pattern(entry: Mapping[str, Any]) -> bool:
    """Whether an entry has a pattern in the place of a name or a model."""
    model = mapping(entry.get("litellm_params")).get("model")
    return any(isinstance(one, str) and "*" in one for one in (entry.get("model_name"), model))


def expanded(
    entry: Mapping[str, Any], named: frozenset[str], environ: Mapping[str, str], models_at: ModelsAt
) -> list[dict[str, Any]]:
    """Return entries for the names that are known of a pattern's: those that the file itself uses (`named`), then those
    that its server or the price list has, the models that `aio init` proposes first."""
    params = mapping(entry.get("litellm_params"))
    name, model = str(entry.get("model_name")), str(params.get("model"))
    pairs: dict[str, str] = {}
    for asked in sorted(named):
        if (part := _part(name, asked)) is not None:
            pairs[asked] = model.replace("*", part)
    if "*" not in model:
        pairs |= dict.fromkeys(_names_like(name), model)
        # What has any name needs one of its own, too.
        pairs |= {} if pairs else {tier_name(split_model(model, None)[1]): model}
    else:
        for full in _known(model, params, environ, models_at):
            if len({*pairs.values()}) >= MOST_LISTED:
                break
            for own in _names_of(name, model, full):
                pairs.setdefault(own, full)
    return [
        {**entry, "model_name": own, "litellm_params": {**params, "model": full}, "model_info": _info(entry)}
        for own, full in pairs.items()
    ]


def _names_like(pattern: str) -> list[str]:
    """Return names of well-known models that a pattern matches; none for `*`."""
    if pattern == "*":
        return []
    names = [one.model for provider in _USUAL for one in listed_chat_models(provider)]
    return [name for name in names if _part(pattern, name) is not None][:MOST_LISTED]


def _info(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in mapping(entry.get("model_info")).items() if key != "id"}


def _part(pattern: str, text: str) -> str | None:
    """Return what the pattern's first star stands for in `text`; None if it does not match."""
    found = re.fullmatch(re.escape(pattern).replace(r"\*", "(.+)"), text)
    return None if found is None or not found.groups() else found[1]


def _names_of(name: str, model: str, full: str) -> Iterator[str]:
    """Yield the names by which a pattern reaches the model `provider/model`."""
    provider, _, bare = full.partition("/")
    if model == "*":
        if (part := full if name == "*" else _part(name, full)) is not None:
            yield full if name == "*" else name.replace("*", part)
        if name == "*" and provider in ("openai", "anthropic"):
            yield bare
    elif (part := _part(model, full)) is not None:
        yield name.replace("*", part)


def _known(
    model: str, params: Mapping[str, Any], environ: Mapping[str, str], models_at: ModelsAt
) -> Iterator[str]:  # fmt: skip
    """Yield models of a pattern as `provider/model`."""
    provider, _ = split_model(model, params.get("custom_llm_provider"))
    url = params.get("api_base") or params.get("base_url")
    if (variable := variable_of(url)) is not None:
        url = environ.get(variable, "").strip()
    if isinstance(url, str) and url and PROVIDERS.get(provider, "openai") == "openai":
        path = SERVERS[provider].path if provider in SERVERS else ""
        address = url.rstrip("/")
        key = params.get("api_key")
        if (variable := variable_of(key)) is not None:
            key = environ.get(variable, "").strip()
        listed = models_at(address if address.endswith(path) else address + path, key if isinstance(key, str) else "")
        yield from (f"{provider}/{one}" for one in listed)
        return
    if "*" in model and model != "*":
        yield from _listed(provider)
        return
    # Those whose keys are here; without any, all.
    usual = [one for one in _USUAL if key_variable(PROVIDERS[one], environ)] or list(_USUAL)
    for one in usual:
        yield from list(_listed(one))[: MOST_LISTED // len(usual)]


def _listed(provider: str) -> Iterator[str]:
    known = PROVIDERS.get(provider)
    for proposal in PROPOSALS:
        if proposal.provider == known:
            yield from (f"{provider}/{model}" for model in proposal.models)
    if known is not None:
        yield from (f"{provider}/{one.model}" for one in listed_chat_models(known))
