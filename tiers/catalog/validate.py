"""Rules between the entries of a catalogue, beyond the type of each field."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal
from urllib.parse import urlsplit

from inference_core.engine.live_knobs import COMMON_KNOBS, changed_knobs
from inference_core.errors import InvalidRequestError
from inference_core.loaders.decoder_tensors import SHAPES
from inference_core.model_spec import ModelSpec, PrefixSpec
from inference_core.protocol import Knobs, KnobValue
from tiers.catalog.catalog import CPU_CORE, Catalog, EmbeddingSpec, TargetSpec
from tiers.catalog.core_spec import adapter_problems
from tiers.catalog.gpu_group import GpuGroupSpec, GpuModelSpec
from tiers.catalog.pricing import request_cost_usd
from tiers.catalog.replica_spec import BalancingSpec
from tiers.catalog.tier_spec import (
    MAX_TIERS,
    MEDIA,
    MIN_TIERS,
    NO_TLS,
    ChainOfThoughtSpec,
    PlainSpec,
    RemoteSpec,
    TierSpec,
)
from tiers.engines import PROGRAMS, EngineSpec, option_problems
from tiers.server_words import is_metadata_host

Changes = Mapping[str, KnobValue]

OF_REQUESTS = frozenset(
    {"model", "models", "messages", "input", "prompt", "contents", "system", "tools", "stream", "stream_options", "n"}
    | {"max_tokens", "max_completion_tokens", "max_output_tokens", "inferenceConfig", "generationConfig"}
)
"""Fields that each request sets itself."""


def check_rules(catalog: Catalog) -> list[str]:
    """Return every violated rule as one sentence naming the entry, the value and what is allowed."""
    problems = list(_check_numbering(catalog.tiers))
    problems += _check_models(catalog)
    problems += _check_embeddings(catalog)
    problems += _check_aliases(catalog)
    problems += _check_unmeasured(catalog)
    if catalog.private is not None or catalog.guardrails:
        from tiers.catalog.rule_check import screening_problems

        problems += screening_problems(catalog.private, catalog.guardrails)
    for tier in (*catalog.tiers, *catalog.targets):
        problems += _check_tier(catalog, tier)
    if catalog.rules or catalog.targets or any(tier.fallback is not None for tier in catalog.tiers):
        from tiers.catalog.rule_check import check_chains, check_routing_rules

        problems += [*check_chains(catalog), *check_routing_rules(catalog)]
    if not problems:
        problems += _check_costs(catalog)
    return problems


def _check_numbering(tiers: list[TierSpec]) -> Iterator[str]:
    numbers = [t.number for t in tiers]
    if not MIN_TIERS <= len(tiers) <= MAX_TIERS:
        yield f"tiers: there are {len(tiers)}; a catalogue has {MIN_TIERS} to {MAX_TIERS}: " + (
            "add another [[tiers]] with name and url, or let `aio init` look for models"
            if len(tiers) < MIN_TIERS
            else f"remove {len(tiers) - MAX_TIERS}"
        )
    if 0 in numbers:
        yield f"tiers: numbers are {[number or None for number in numbers]}; number all tiers, or none"
    elif numbers != list(range(1, len(tiers) + 1)):
        yield f"tiers: numbers are {numbers}; they must be 1 to {len(tiers)} in this order"
    yield from _duplicates("tiers", (t.name for t in tiers))


def _check_models(catalog: Catalog) -> Iterator[str]:
    core = catalog.core
    names = [m.name for m in core.models] + [m.name for g in catalog.gpu_groups for m in g.models]
    yield from _duplicates("models", names)
    yield from _duplicates("gpu_groups", (g.name for g in catalog.gpu_groups))
    if core.arena_bytes < core.slab_bytes:
        yield f"core.arena_bytes = {core.arena_bytes}: must hold at least one slab, core.slab_bytes = {core.slab_bytes}"
    yield from _check_knobs("core", core.knobs, {m.name: m.knobs for m in core.models})
    yield from _check_shapes(catalog)
    for i, model in enumerate(core.models):
        yield from _check_draft(f"core.models[{i}] ({model.name})", model, core.models, core.knobs, "core")
    yield from _check_prefixes("core", core.prefixes, [m.name for m in core.models])
    for group in catalog.gpu_groups:
        yield from _check_group(group)


def _check_embeddings(catalog: Catalog) -> Iterator[str]:
    answering = {"auto", *catalog.model_paths, *(t.name for t in catalog.tiers), *(t.model_name for t in catalog.tiers)}
    yield from _duplicates("embeddings", (e.name for e in catalog.embeddings))
    for embedding in catalog.embeddings:
        where = f"embeddings '{embedding.name}'"
        if embedding.name in answering:
            yield f"{where}: a model that answers has this name; choose another"
        if embedding.input_usd_per_million is None:
            yield f"{where}: the price list has no price for it; give input_usd_per_million"
        if embedding.provider is not None or embedding.url is not None:
            yield from _check_remote_embedding(where, embedding)
        elif (embedding.model is None) == (embedding.path is None):
            yield f"{where}: give either model, one of core.models, or path, the folder of an encoder's checkpoint"
        elif embedding.model is not None and embedding.model not in {m.name for m in catalog.core.models}:
            yield f"{where}.model = {embedding.model!r}: no such model in core.models"
        elif embedding.path is not None and (embedding.layer is not None or embedding.pooling != "mean"):
            yield f"{where}: layer and pooling are for a core's model; AIO averages an encoder's last state"


def _check_remote_embedding(where: str, embedding: EmbeddingSpec) -> Iterator[str]:
    from tiers.catalog.providers import PROVIDERS

    unwanted = [name for name in ("path", "layer") if getattr(embedding, name) is not None]
    if embedding.model is None or unwanted or embedding.shortenable or embedding.pooling != "mean":
        yield f"{where}: a server elsewhere needs model, and has no path, layer, pooling or shortenable"
    if embedding.provider is not None and PROVIDERS[embedding.provider].kind not in ("openai-provider", "azure"):
        yield f"{where}.provider = {embedding.provider!r}: its API has no embeddings in OpenAI's form; give a url"
    elif embedding.url is not None:
        yield from check_url(f"{where}.url", embedding.url)
    yield from check_key_name(where, embedding.api_key_env)


def _check_unmeasured(catalog: Catalog) -> Iterator[str]:
    """Check that every model served without a report is one of the catalogue's, has a reason, and asks for none."""
    gates = {m.name: m.quality for m in catalog.core.models}
    gates |= {m.name: m.quality for group in catalog.gpu_groups for m in group.models}
    for name, reason in catalog.unmeasured.items():
        where = f"unmeasured '{name}'"
        if name not in gates:
            yield f"{where}: no such model in core.models or gpu_groups; its models are {', '.join(gates) or 'none'}"
        elif not reason.strip():
            yield f"{where}: give the reason why this model is served without a quality report"
        elif gates[name] is not None:
            yield f"{where}: this model has a quality table; remove one of the two"


def _check_group(group: GpuGroupSpec) -> Iterator[str]:
    where = f"gpu_groups '{group.name}'"
    if group.name == CPU_CORE:
        yield f"{where}: '{CPU_CORE}' is the name of the CPU's own core; choose another"
    if not group.models:
        yield f"{where}: has no models; list at least one, or remove the group"
        return
    if group.kv_bytes <= 0:
        yield f"{where}: the weights do not fit:\n    " + "\n    ".join(group.memory_lines())
    if group.cards % group.pipeline:
        yield f"{where}: {group.cards} cards cannot make {group.pipeline} equal stages; pipeline must divide cards"
        return
    for model in group.models:
        if model.num_kv_heads % group.tensor:
            yield (
                f"{where}, model '{model.name}': {model.num_kv_heads} KV heads cannot be "
                f"split over {group.tensor} cards; the number of cards must divide them"
            )
        if model.num_layers < group.pipeline:
            yield f"{where}, model '{model.name}': {model.num_layers} layers cannot make {group.pipeline} stages"
        yield from _check_draft(f"{where}, model '{model.name}'", model, group.models, group.knobs, "group")
    yield from _check_knobs(where, group.knobs, {m.name: m.knobs for m in group.models})
    yield from _check_prefixes(where, group.prefixes, [m.name for m in group.models])
    most = {"max_num_batched_tokens": group.max_num_batched_tokens, "max_num_seqs": group.max_num_seqs}
    for owner, knobs in ((where, group.knobs), *((f"{where}, model '{m.name}'", m.knobs) for m in group.models)):
        for knob, room in most.items():
            value = knobs.get(knob)
            if isinstance(value, int) and value > room:
                yield f"{owner}: knob {knob} = {value}: memory is set aside for {room}; raise {where}.{knob}"


def _check_prefixes(where: str, prefixes: Sequence[PrefixSpec], models: Sequence[str]) -> Iterator[str]:
    """Check what can be known before the core's tokenisers are loaded."""
    yield from _duplicates(f"{where}.prefixes", (prefix.name for prefix in prefixes))
    for prefix in prefixes:
        entry = f"{where}.prefixes '{prefix.name}'"
        if unknown := [name for name in prefix.models if name not in models]:
            yield f"{entry}.models: no such model here: {', '.join(unknown)}; there are {', '.join(models) or 'none'}"
        if prefix.public == (prefix.tenant is not None):
            yield f"{entry}: give either tenant, whose prompts find it, or public = true, for the prompts of all"
        if not prefix.messages:
            yield f"{entry}.messages: is empty; give the messages that chats begin with"
        elif prefix.messages[-1].role == "user":
            yield f"{entry}.messages: the last message is a user's; end with a system prompt or an example's answer"


def _check_draft(
    where: str,
    model: ModelSpec | GpuModelSpec,
    beside: Sequence[ModelSpec | GpuModelSpec],
    common: Changes,
    owner: Literal["core", "group"],
) -> Iterator[str]:
    if model.draft is not None and model.draft not in {m.name for m in beside} - {model.name}:
        yield f"{where}.draft = {model.draft!r}: must be another model of this {owner}"
    if model.draft is None and {**common, **model.knobs}.get("speculation") == "draft_model":
        yield f"{where}: speculation = 'draft_model' needs a draft, another model of this {owner}"


def _check_shapes(catalog: Catalog) -> Iterator[str]:
    """Check that a GPU model agrees with the known shape that it names."""
    for group in catalog.gpu_groups:
        for model in group.models:
            where = f"gpu_groups '{group.name}'.models '{model.name}'"
            if model.shape is None:
                continue
            if model.shape not in SHAPES:
                yield f"{where}.shape = '{model.shape}': must be one of {', '.join(SHAPES)}"
                continue
            for field in ("num_layers", "num_kv_heads", "head_dim"):
                stated, true = getattr(model, field), getattr(SHAPES[model.shape], field)
                if stated != true:
                    yield f"{where}.{field} = {stated}: {model.shape} has {true}"


def _check_knobs(where: str, common: Changes, by_model: Mapping[str, Changes]) -> Iterator[str]:
    for name, value in common.items():
        yield from _check_knob(f"{where}.knobs", name, value)
    for model, knobs in by_model.items():
        for name, value in knobs.items():
            if name in COMMON_KNOBS:
                yield f"{where}.models '{model}', knobs: {name} is the same for all models; set {where}.{name}"
            else:
                yield from _check_knob(f"{where}.models '{model}', knobs", name, value)


def _check_knob(where: str, name: str, value: KnobValue) -> Iterator[str]:
    try:
        changed_knobs(Knobs(), {name: value}, Knobs())
    except InvalidRequestError as error:
        yield f"{where}: {error}"


def _check_tier(catalog: Catalog, tier: TierSpec) -> Iterator[str]:
    where = _where(tier)
    contexts = {m.name: m.max_context for m in catalog.core.models}
    contexts |= {m.name: m.max_context for g in catalog.gpu_groups for m in g.models}
    context: int | None = None
    if tier.provider is not None and tier.remote is None:
        yield f"{where}.provider = {tier.provider!r}: give model, too: the name that the provider has for the model"
        return
    if (tier.model is None) == (tier.remote is None):
        yield f"{where}: exactly one of model and remote must be set, got {tier.model!r} and {tier.remote!r}"
    elif tier.remote is not None:
        context = tier.remote.max_context
        yield from _check_remote(f"{where}.remote", tier, tier.remote)
    elif tier.model not in contexts:
        yield f"{where}.model = {tier.model!r}: unknown; models of this catalogue: {', '.join(contexts) or 'none'}"
    else:
        context = contexts[tier.model]
    yield from (f"{where}.{problem}" for problem in adapter_problems(catalog, tier))
    if tier.serves or tier.unit_prices:
        yield from _check_served(where, tier)
    if tier.remote is None or tier.remote.is_triton:
        media = [name for name in MEDIA if getattr(tier.capabilities, name)]
        yield from (
            f"{where}.capabilities.{name} = true: in-process models and Triton's are sent text only; remove it"
            for name in media
        )
    if context is not None and tier.max_tokens >= context:
        yield f"{where}.max_tokens = {tier.max_tokens}: must be below the model's context of {context} tokens"
    if tier.objective.ttft_ms > tier.mean_latency_ms:
        yield (
            f"{where}.objective.ttft_ms = {tier.objective.ttft_ms:g}: the first token cannot be due after the whole "
            f"answer, mean_latency_ms = {tier.mean_latency_ms:g}"
        )
    if tier.remote is None and tier.max_output_tokens is not None:
        yield f"{where}.max_output_tokens: only for a server elsewhere; set max_tokens for a model in process"
    if tier.default_max_tokens is not None and 0 < tier.max_tokens < tier.default_max_tokens:
        yield (
            f"{where}.default_max_tokens = {tier.default_max_tokens}: must not pass max_tokens = {tier.max_tokens}, "
            "the most that a request may ask for"
        )
    if isinstance(tier.policy, ChainOfThoughtSpec):
        needed = tier.policy.budget_tokens + tier.policy.min_answer_tokens
        limit = tier.stated_limit(None)
        if limit is not None and needed > limit:
            bound = "max_tokens" if tier.default_max_tokens is None else "default_max_tokens"
            yield f"{where}.policy: budget_tokens + min_answer_tokens = {needed} must not pass {bound} = {limit}"
        probes = tier.policy.settled_probes * (tier.policy.probe_every_tokens + tier.policy.probe_tokens)
        if probes > tier.policy.budget_tokens:
            yield (
                f"{where}.policy: settled_probes = {tier.policy.settled_probes} probes and the thought between take "
                f"{probes} tokens, and budget_tokens = {tier.policy.budget_tokens} leaves no time to settle"
            )
        if not all(tier.policy.end_markers):
            yield f"{where}.policy.end_markers: an empty marker would end every thought at once; remove it"


def _check_served(where: str, tier: TierSpec) -> Iterator[str]:
    kinds = ("openai", "vllm", "sglang", "llama-server", "tgi", "openai-provider", "azure")
    if tier.remote is None or tier.remote.kind not in kinds or not tier.remote.base_url or tier.remote.is_replicated:
        yield f"{where}.serves: needs one address of a server with OpenAI's API: {', '.join(kinds)}"
    if extra := sorted(set(tier.unit_prices) - set(tier.serves)):
        yield f"{where}.unit_prices: {', '.join(extra)}: not among what the entry serves; add it to serves"
    for endpoint, price in tier.unit_prices.items():
        if isinstance(price, dict) and endpoint != "images":
            yield f"{where}.unit_prices.{endpoint}: only images have prices by size and quality; give one number"


def _check_remote(where: str, tier: TierSpec, remote: RemoteSpec) -> Iterator[str]:
    from tiers.catalog.providers import PROVIDER_KINDS, PROVIDERS

    if not isinstance(tier.policy, PlainSpec):
        yield f"{where}: a remote tier decodes by policy kind 'plain' only; its server decides how it thinks"
    if remote.engine is not None:
        if tier.provider is not None:
            yield f"{where}: a tier has a provider or an engine, not both; leave one out"
        yield from _check_engine(where, remote, remote.engine)
    elif tier.provider is not None and not remote.servers:
        variable = PROVIDERS[tier.provider].url_variable
        yield f"{where}: the address is missing; give the tier a url, or set the environment variable {variable}"
        return
    if sum(map(bool, (remote.base_url, remote.base_urls, remote.replicas, remote.engine))) != 1:
        yield f"{where}: exactly one of base_url, base_urls, replicas and engine must be set"
    for i, server in enumerate(remote.servers):
        at = f"{where}.replicas[{i}]" if remote.replicas else where
        yield from check_url(f"{at}.base_urls[{i}]" if remote.base_urls else f"{at}.base_url", server.base_url)
        yield from check_key_name(at, server.api_key_env)
    yield from check_key_name(where, remote.api_key_env)
    yield from _check_fields(where, remote)
    yield from _check_keys(where, remote)
    yield from _check_tls(where, remote)
    if remote.credentials == "caller":
        yield from _check_callers(where, remote)
    if remote.is_replicated:
        addresses = ((server.base_url.rstrip("/"), server.api_key_env) for server in remote.servers)
        named = (url if key is None else f"{url} with the key in {key}" for url, key in addresses if "@" not in url)
        yield from _duplicates(f"{where}, replicas", named)
        if tier.objective.ttft_ms > remote.balancing.first_token_timeout_seconds * 1000:
            yield (
                f"{where}.balancing.first_token_timeout_seconds = {remote.balancing.first_token_timeout_seconds:g}: "
                f"shorter than the objective ttft_ms = {tier.objective.ttft_ms:g}, so good replicas would be given up"
            )
    elif remote.balancing != BalancingSpec():
        yield f"{where}.balancing: there is one server; list several as base_urls or replicas, or leave it out"
    if remote.kind in PROVIDER_KINDS and len({server.base_url for server in remote.servers}) > 1:
        yield f"{where}: a provider of kind '{remote.kind}' has one address; give base_url"
    if not remote.is_triton and remote.tokenizer is not None:
        yield f"{where}.tokenizer: is only for Triton; a server of kind '{remote.kind}' has a template of its own"
    if remote.kind != "triton-tensorrt-llm" and (remote.cumulative_text or remote.whole_path != "generate"):
        yield f"{where}: cumulative_text and whole_path are for kind 'triton-tensorrt-llm', not for '{remote.kind}'"
    if remote.responses != "never" and remote.kind not in ("openai-provider", "azure"):
        yield f"{where}.responses: a server of kind '{remote.kind}' does not have that API; OpenAI's providers do"
    if remote.is_triton and not re.fullmatch(r"[A-Za-z0-9._-]+", remote.model):
        yield f"{where}.model = {remote.model!r}: expected the name of a model in Triton's repository"
    if remote.read_timeout_seconds > remote.total_timeout_seconds:
        yield (
            f"{where}.read_timeout_seconds = {remote.read_timeout_seconds:g}: must not pass "
            f"total_timeout_seconds = {remote.total_timeout_seconds:g}"
        )
    if tier.objective.ttft_ms > remote.read_timeout_seconds * 1000:
        yield (
            f"{where}.read_timeout_seconds = {remote.read_timeout_seconds:g}: shorter than the objective "
            f"ttft_ms = {tier.objective.ttft_ms:g}, so good answers would be cut off"
        )


def _check_fields(where: str, remote: RemoteSpec) -> Iterator[str]:
    for key, names in (("body", list(remote.body)), ("forward", remote.forward)):
        if reserved := sorted(OF_REQUESTS.intersection(names)):
            yield f"{where}.{key}: {', '.join(reserved)} is set by each request; leave it out"
    if remote.is_triton and (remote.body or remote.forward):
        yield f"{where}: body and forward are for servers with a provider's or OpenAI's API, not for Triton's"


def _check_keys(where: str, remote: RemoteSpec) -> Iterator[str]:
    for key in remote.api_keys:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key.env):
            yield f"{where}.api_keys: env: expected the name of an environment variable, not a key"
    if remote.api_keys and not remote.base_url:
        yield f"{where}.api_keys: for one base_url; give each of several replicas an api_key_env of its own"
    if remote.api_keys and remote.api_key_env is not None:
        yield f"{where}: api_key_env and api_keys are both set; list all keys in api_keys"


def _check_tls(where: str, remote: RemoteSpec) -> Iterator[str]:
    if remote.tls.key is not None and remote.tls.certificate is None:
        yield f"{where}.tls.key: is the key of a certificate; name it as tls.certificate"
    plain = [server.base_url for server in remote.servers if not server.base_url.startswith("https://")]
    if remote.tls != NO_TLS and (plain or remote.engine is not None):
        yield f"{where}.tls: is for https, and not for {plain[0] if plain else 'an engine that AIO starts'}"


def _check_callers(where: str, remote: RemoteSpec) -> Iterator[str]:
    excess = [name for name in ("api_key_env", "api_keys", "engine") if getattr(remote, name)]
    if excess:
        yield f"{where}.credentials = 'caller': the server gets the caller's credential; leave out {', '.join(excess)}"
    if not remote.base_url and not remote.engine:
        yield f"{where}.credentials = 'caller': the caller's credential is for one address; give base_url"
    if remote.is_triton:
        yield f"{where}.credentials = 'caller': a server of kind '{remote.kind}' takes none"
    if not remote.model:
        yield f"{where}.model: is needed with credentials = 'caller', because AIO cannot ask the server for its models"


def _check_engine(where: str, remote: RemoteSpec, engine: EngineSpec) -> Iterator[str]:
    yield from (f"{where}.engine: {problem}" for problem in option_problems(engine))
    wire = PROGRAMS[engine.kind].wire
    if remote.kind != wire:
        yield f"{where}.kind = '{remote.kind}': the engine {engine.kind} is of kind '{wire}'"
    if remote.api_key_env is not None:
        yield f"{where}.api_key_env: an engine that AIO starts takes no key; leave it out"


def check_url(where: str, base_url: str) -> Iterator[str]:
    """Check the address of a server."""
    try:
        url = urlsplit(base_url)
        port_is_valid = url.port is None or url.port > 0
    except ValueError:
        yield f"{where} = {base_url!r}: not a URL"
        return
    if url.username or url.password:
        yield f"{where}: holds credentials; put the key into an environment variable named by api_key_env"
    elif url.scheme not in ("http", "https") or not url.hostname or not port_is_valid or url.query or url.fragment:
        yield f"{where} = {base_url!r}: expected http://HOST[:PORT]/PATH or https://…, without query and fragment"
    elif is_metadata_host(url.hostname):
        yield f"{where} = {base_url!r}: this is the metadata address of a cloud, and not a model server"


def check_key_name(where: str, name: str | None) -> Iterator[str]:
    """Check the variable of a key."""
    if name is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        yield f"{where}.api_key_env: expected the name of an environment variable, not a key"


def _check_aliases(catalog: Catalog) -> Iterator[str]:
    tiers = [f"tier-{tier.number}" for tier in catalog.tiers]
    models = [name for tier in catalog.tiers for name in (tier.name, tier.model_name)]
    others = [embedding.name for embedding in catalog.embeddings] + [target.name for target in catalog.targets]
    allowed = list(dict.fromkeys(["auto", *tiers, *models, *others]))
    for name, target in catalog.aliases.items():
        if not name or name == "auto" or name in tiers:
            yield f"aliases: {name!r} cannot be an alias; auto and the tiers keep their names"
        elif target not in allowed and target.rpartition(":")[0] not in allowed:
            yield f"aliases.{name!r} = {target!r}: unknown; an alias may stand for {', '.join(allowed)}"


def _check_costs(catalog: Catalog) -> Iterator[str]:
    prompt = catalog.reference_prompt_tokens
    for tier in catalog.tiers:
        starts = [step.above_prompt_tokens for step in tier.price.steps]
        if starts != sorted(set(starts)):
            yield f"{_where(tier)}.price.steps: above_prompt_tokens must ascend from one step to the next"
    # Estimated prices never fail a catalogue: predicted costs do not fall anyway (`tiers.catalog.pricing`).
    priced = [tier for tier in catalog.tiers if not tier.price.estimated]
    costs = [request_cost_usd(t.price, prompt, t.expected_answer_tokens) for t in priced]
    for (cheap, cheap_cost), (dear, dear_cost) in pairwise(zip(priced, costs, strict=True)):
        if dear_cost < cheap_cost:
            yield (
                f"{_where(dear)}.price: a request of {prompt} prompt tokens is predicted to cost ${dear_cost:.6f}, "
                f"less than ${cheap_cost:.6f} of {cheap.name}; costs must not fall with the tier"
            )


def _duplicates(where: str, names: Iterable[str]) -> Iterator[str]:
    for name, count in Counter(names).items():
        if count > 1:
            yield f"{where}: the name {name!r} occurs {count} times; names must be unique: rename or remove one"


def _where(tier: TierSpec) -> str:
    return f"{'targets' if isinstance(tier, TargetSpec) else 'tiers'} '{tier.name}'"
