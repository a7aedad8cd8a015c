"""Defaults of a short catalogue: the long form of `url`, `provider` and a model's path, and every value with a default.

[[tiers]]
name = "small"
url = "http://localhost:8001/v1"  # the server's only model

[[tiers]]
name = "medium"
engine = "llama-server"
model = "Qwen/Qwen3-8B-GGUF"

[[tiers]]
name = "large"
model = "models/Qwen3-8B-Q4_0.gguf"
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, TypeVar

import msgspec

from inference_core.loaders.hub_model import PREFIX, parse_hub_model
from tiers.catalog.catalog import Catalog, TargetSpec
from tiers.catalog.gpu_group import named_billions, planned_billions
from tiers.catalog.pricing import estimated_prices
from tiers.catalog.tier_spec import (
    NO_PRICE,
    USUAL_OBJECTIVE,
    USUAL_SAMPLING,
    ChainOfThoughtSpec,
    SamplingDefaults,
    SelfConsistencySpec,
    TierSpec,
)
from tiers.engines import PROGRAMS, served_name

T = TypeVar("T", bound=TierSpec)
NO_TIER = TierSpec(name="none")
ANSWER_TOKENS = 200
MEAN_LATENCY_MS = 10_000.0
MAX_TOKENS = 4096
LOCAL_MAX_TOKENS = 2048
"""Of a model in process whose context is known only once it is loaded."""


def expanded(table: Mapping[str, Any]) -> dict[str, Any]:
    """Expand `provider`, `url`, `api_key_env`, `engine` and a path as `model` in a decoded TOML document to `remote`
    tables and entries of `core.models`. Other forms stay as they are, so that the conversion reports them."""
    tiers, core = table.get("tiers"), table.get("core", {})
    if not isinstance(tiers, list) or not isinstance(core, Mapping) or not isinstance(core.get("models", []), list):
        return dict(table)
    models = list(core.get("models", []))
    written = [_long_form(tier, models) if isinstance(tier, Mapping) else tier for tier in tiers]
    if isinstance(targets := table.get("targets"), list):
        # A target has no model in process: what looks like one is reported.
        targets = [_long_form(target, []) if isinstance(target, Mapping) else target for target in targets]
        table = {**table, "targets": targets}
    embeddings = table.get("embeddings")
    if isinstance(embeddings, list) and any(
        {"url", "provider"} & {*entry} for entry in embeddings if isinstance(entry, Mapping)
    ):
        from tiers.catalog.providers import embedding_of_a_server

        expand = embedding_of_a_server
        table = {
            **table,
            "embeddings": [expand(entry) if isinstance(entry, Mapping) else entry for entry in embeddings],
        }
    return {**table, "tiers": written} | ({"core": {**core, "models": models}} if models else {})


def _long_form(tier: Mapping[str, Any], models: list[Any]) -> dict[str, Any]:
    """Expand one tier; `models` gets one entry per path, shared by all tiers with that path."""
    written, model = dict(tier), tier.get("model")
    if "engine" in tier and "remote" not in tier:
        remote = _engine_form(written)
        return {**written, "remote": remote}
    if "provider" in tier and (provided := _provider_form(tier)) is not None:
        return provided
    if "url" in tier and "remote" not in tier:
        remote = {"base_url": written.pop("url")}
        remote |= {key: written.pop(key) for key in ("model", *TierSpec.SHORT_FORM) if key in written}
        return {**written, "remote": remote}
    entries = [entry for entry in models if isinstance(entry, dict)]
    if isinstance(model, str) and (hub_model := parse_hub_model(model)) is not None and not _is_entry(model, entries):
        hub_model = hub_model.at(str(written.pop("revision"))) if "revision" in tier else hub_model
        model = written["model"] = f"{PREFIX}{hub_model}"
    if isinstance(model, str) and _is_path(model) and model not in [entry.get("name") for entry in entries]:
        model_entry = next((entry for entry in entries if entry.get("path") == model), None)
        if model_entry is None:
            name = PurePath(model).stem if model.endswith(".gguf") else PurePath(model).name
            name = re.split("[:@]", name)[0]  # of a Hugging Face id, without quantisation and revision
            models.append(model_entry := {"name": name, "path": model, "compute": "int4-int8"})
        # Tiers of one file share its context: the largest that one of them names.
        context = written.pop("max_context", None)
        stated = model_entry.get("max_context")
        if context is not None and (stated is None or (type(context) is type(stated) is int and context > stated)):
            model_entry["max_context"] = context
        written["model"] = model_entry.get("name")
    return written


def _provider_form(tier: Mapping[str, Any]) -> dict[str, Any] | None:
    """Expand a tier on a provider; None where it names none that is known."""
    from tiers.catalog.providers import names_provider, provider_remote

    if not names_provider(tier):
        return None
    written = dict(tier)
    url, key_variable = written.pop("url", None), written.pop("api_key_env", None)
    remote = provider_remote(tier["provider"], written.pop("model"), url, key_variable, os.environ)
    if "api_keys" in tier:
        remote["api_keys"] = written.pop("api_keys")
        if key_variable is None:
            remote.pop("api_key_env", None)
    if "credentials" in tier:
        # Its own key is not wanted then.
        remote["credentials"] = written.pop("credentials")
        if key_variable is None and remote["credentials"] == "caller":
            remote.pop("api_key_env", None)
    further = ("body", "forward", "read_timeout_seconds", "total_timeout_seconds", "balancing", "tls")
    remote |= {key: written.pop(key) for key in further if key in written}
    remote["max_context"] = written.pop("max_context", None)  # else the price list's, or the provider's
    return {**written, "remote": remote}


def _engine_form(written: dict[str, Any]) -> dict[str, Any]:
    """Move the short keys of an engine out of `written` and return its `remote` table."""
    short = {"engine": "kind", "model": "model", "engine_args": "args", "engine_env": "env"}
    short |= {key: key for key in ("revision", "start_timeout_seconds")}
    engine = {field: written.pop(key) for key, field in short.items() if key in written}
    remote: dict[str, Any] = {"engine": engine, "max_context": written.pop("max_context", None)}
    if "url" in written:  # reported: a tier has one or the other
        remote["base_url"] = written.pop("url")
    kind, model = engine["kind"], engine.get("model")
    program = next((program for name, program in PROGRAMS.items() if name == kind), None)
    if program is not None and isinstance(model, str):
        remote |= {"kind": program.wire, "model": served_name(model, program)}
    else:
        remote["model"] = model or ""
    return remote


def _is_entry(model: str, entries: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether `model` is the name or the path of an entry of `core.models`."""
    return any(model in (entry.get("name"), entry.get("path")) for entry in entries)


def _is_path(model: str) -> bool:
    return "/" in model or model.endswith(".gguf")


def completed(catalog: Catalog) -> Catalog:
    """Return `catalog` with a value in every field of its tiers, numbered by predicted cost if no tier has a number."""
    contexts = {m.name: m.max_context for m in catalog.core.models}
    contexts |= {m.name: m.max_context for g in catalog.gpu_groups for m in g.models}
    tiers = [_with_tokens(_listed(tier), contexts) for tier in catalog.tiers]
    billions = [model_billions(catalog, tier) for tier in tiers]
    if not any(tier.number for tier in tiers):
        prices = estimated_prices(tiers, billions, catalog.reference_prompt_tokens)
        priced = [msgspec.structs.replace(tier, price=price) for tier, price in zip(tiers, prices, strict=True)]
        order = _by_cost(priced, catalog.reference_prompt_tokens)
        tiers = [msgspec.structs.replace(tiers[index], number=number) for number, index in enumerate(order, start=1)]
        billions = [billions[index] for index in order]
    prices = estimated_prices(tiers, billions, catalog.reference_prompt_tokens)
    priced = [msgspec.structs.replace(tier, price=price) for tier, price in zip(tiers, prices, strict=True)]
    tiers = list(map(_with_latency, priced))
    targets = [_target(target, tiers) for target in catalog.targets]
    embeddings = catalog.embeddings
    if any(embedding.is_remote for embedding in embeddings):
        from tiers.catalog.price_list import embedding_with_price

        embeddings = list(map(embedding_with_price, embeddings))
    return msgspec.structs.replace(catalog, tiers=tiers, targets=targets, embeddings=embeddings)


def _target(target: TargetSpec, tiers: list[TierSpec]) -> TargetSpec:
    """Return the target with the number of the tier that it stands for; 0 if there is no such tier."""
    if target.stands_for is None:
        tier = next((tier for tier in tiers if target.name in (tier.fallback or ())), tiers[-1])
    else:
        named = (tier for tier in tiers if target.stands_for in (tier.name, f"tier-{tier.number}"))
        tier = next(named, NO_TIER)
    listed = _with_latency(_with_tokens(_listed(target), {}))
    price = msgspec.structs.replace(tier.price, estimated="order") if listed.price == NO_PRICE else listed.price
    return msgspec.structs.replace(listed, number=tier.number, price=price)


def model_billions(catalog: Catalog, tier: TierSpec) -> float | None:
    """Return the billions of active parameters of a tier's model, if its name, its path or its plan gives them."""
    for group in catalog.gpu_groups:
        for planned in group.models:
            if planned.name == tier.model:
                return planned_billions(planned)
    path = next((m.path for m in catalog.core.models if m.name == tier.model), "")
    return named_billions(tier.model_name) or named_billions(path)


def _listed(tier: T) -> T:
    """Return the tier with the price list's price and context, where it has none and the list is sure; else with the
    least context of its provider's models."""
    remote = tier.remote
    if remote is None or not remote.model or (tier.price != NO_PRICE and remote.max_context is not None):
        return tier
    # Prices of servers elsewhere: a catalogue of local models reads none.
    from tiers.catalog.price_list import listed_model
    from tiers.catalog.providers import PROVIDERS

    url = remote.servers[0].base_url if remote.servers else ""
    listed = listed_model(remote.model, provider=tier.provider, base_url=url)
    context = remote.max_context or (None if listed is None else listed.max_context)
    if context is None and tier.provider is not None:
        context = PROVIDERS[tier.provider].max_context
    return msgspec.structs.replace(
        tier,
        price=tier.price if listed is None or tier.price != NO_PRICE else listed.price,
        remote=msgspec.structs.replace(remote, max_context=context),
    )


def _with_tokens(tier: T, contexts: Mapping[str, int | None]) -> T:
    answer = ANSWER_TOKENS
    if isinstance(tier.policy, SelfConsistencySpec):
        answer *= tier.policy.samples
    elif isinstance(tier.policy, ChainOfThoughtSpec):
        answer += tier.policy.budget_tokens
    answered = msgspec.structs.replace(tier, expected_answer_tokens=tier.expected_answer_tokens or answer)
    if tier.remote is not None:
        return answered
    context = contexts.get(str(tier.model))
    most = LOCAL_MAX_TOKENS if context is None else min(MAX_TOKENS, context // 2)
    sampling = SamplingDefaults(**USUAL_SAMPLING.given() | tier.sampling.given())
    return msgspec.structs.replace(answered, max_tokens=tier.max_tokens or most, sampling=sampling)


def _with_latency(tier: T) -> T:
    latency, objective = tier.mean_latency_ms or MEAN_LATENCY_MS, tier.objective
    if objective is USUAL_OBJECTIVE and objective.ttft_ms > latency:
        objective = msgspec.structs.replace(objective, ttft_ms=latency)
    return msgspec.structs.replace(tier, mean_latency_ms=latency, objective=objective)


def _by_cost(tiers: list[TierSpec], prompt_tokens: int) -> list[int]:
    """Return positions in the order of predicted cost. Equal costs keep the catalogue's order, and so do prices
    estimated from the position: only the others are sorted, among their own positions."""
    positions = [position for position, tier in enumerate(tiers) if tier.price.estimated != "order"]

    def cost(position: int) -> float:
        tier = tiers[position]
        return (
            tier.price.input_usd_per_million * prompt_tokens
            + tier.price.output_usd_per_million * tier.expected_answer_tokens
        )

    order = list(range(len(tiers)))
    for position, taken in zip(positions, sorted(positions, key=cost), strict=True):
        order[position] = taken
    return order
