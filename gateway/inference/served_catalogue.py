"""What is served: tiers, names, aliases and prices, as one immutable value that a reload replaces whole; and what a
strongest answer usually costs a caller at these prices: the reference in which routing counts the dollars of a prompt.
"""

import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.decision import Decision
from gateway.base.errors import ApiError
from gateway.base.inference_request import Caller
from quality.store.queries import strongest_prices
from tiers.catalog.catalog import Catalog, TargetSpec
from tiers.catalog.pricing import cost_usd
from tiers.catalog.tier_spec import TierSpec
from tiers.tier import Tier, Usage

if TYPE_CHECKING:
    from gateway.inference.routing_rules import RoutingRules

AUTO = "auto"
# Kinds of servers whose models seal their reasoning, and those whose requests say what to cache.
_SEALING = ("anthropic", "bedrock", "gemini", "openai-provider", "azure", "vertex-gemini", "vertex-anthropic")
_MARKING = ("anthropic", "bedrock", "vertex-anthropic")
_MESSAGES = ("anthropic", "vertex-anthropic")
_GEMINI = ("gemini", "vertex-gemini")


@dataclass(frozen=True, slots=True, eq=False)
class ServedCatalogue:
    """A catalogue with the tiers that answer for it. A look-up takes no time: names and the fingerprint are computed
    once.
    """

    catalog: Catalog
    tiers: Mapping[int, Tier]
    targets: Mapping[str, Tier] = field(default_factory=dict)
    """Targets by name. They stand in for tiers, and answer requests that name them."""
    fingerprint: str = field(init=False)
    """Hash of all that affects answers."""
    strongest: int = field(init=False)
    """The number of the dearest tier."""
    names: tuple[str, ...] = field(init=False)
    """Every value of `model` that a request may carry, aliases and adapters of other tiers aside."""
    has_servers: bool = field(init=False)
    """Whether a tier or target is served elsewhere."""
    seals_reasoning: bool = field(init=False)
    """Whether a server may give reasoning that it has to get back."""
    marks_caches: bool = field(init=False)
    """Whether requests to one of these servers say what to cache."""
    has_responses: bool = field(init=False)
    """Whether one of the servers has the Responses API."""
    has_messages: bool = field(init=False)
    """Whether one of the servers has the Messages API."""
    has_gemini: bool = field(init=False)
    has_estimates: bool = field(init=False)
    """Whether a price is an estimate."""
    forwarded_fields: frozenset[str] = field(init=False)
    """Names of requests' fields that the catalogue passes on."""
    rules: "RoutingRules | None" = field(init=False)
    """The catalogue's rules, compiled; None without any."""
    _named: Mapping[str, TierSpec] = field(init=False, repr=False)
    _named_targets: Mapping[str, TargetSpec] = field(init=False, repr=False)
    _views: dict[str, "ServedCatalogue"] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        specs = self.catalog.tiers
        # By precedence: a tier's own names, then a model with an adapter over it; of several tiers the cheapest.
        named = [(name, spec) for spec in specs for name in (f"tier-{spec.number}", spec.name, spec.served_name)]
        named += [(spec.model_name, spec) for spec in specs]
        models = [name for spec in specs for name in (spec.model_name, spec.served_name)]
        own = [*(f"tier-{spec.number}" for spec in specs), *(spec.name for spec in specs)]
        by_name = dict(reversed(named))
        targets = _named_targets(self.catalog, by_name)
        every = (*specs, *self.catalog.targets)
        remotes = [spec.remote for spec in every if spec.remote is not None]
        kinds = {remote.kind for remote in remotes}
        computed = {
            "has_servers": bool(remotes),
            "seals_reasoning": not kinds.isdisjoint(_SEALING),
            "has_responses": any(remote.responses != "never" for remote in remotes),
            "has_messages": not kinds.isdisjoint(_MESSAGES),
            "has_gemini": not kinds.isdisjoint(_GEMINI),
            "forwarded_fields": frozenset(name for remote in remotes for name in remote.forward),
            "has_estimates": any(spec.price.estimated for spec in every),
            "marks_caches": not kinds.isdisjoint(_MARKING),
            "tiers": MappingProxyType(dict(self.tiers)),
            "targets": MappingProxyType(dict(self.targets)),
            "rules": _compiled_rules(self.catalog),
            "fingerprint": self.catalog.fingerprint,
            "strongest": len(specs),
            "names": tuple(dict.fromkeys([AUTO, *own, *models, *targets])),
            "_named": by_name,
            "_named_targets": targets,
            "_views": {},
        }
        for name, value in computed.items():
            object.__setattr__(self, name, value)

    def tier(self, number: int) -> Tier:
        return self.tiers[number].active_tier()

    def spec(self, number: int) -> TierSpec:
        return self.catalog.tiers[number - 1]

    def chosen(self, decision: Decision) -> Tier:
        """The tier of a decision, or the target that a rule put in its place, as it is now."""
        target = None if decision.inputs.rules is None else self.targets.get(decision.target or "")
        return self.tier(decision.tier) if target is None else target.active_tier()

    def spec_of(self, tier: Tier) -> TierSpec:
        """The catalogue's entry of `tier`, which may be a target; of a removed one, that of what it stood for."""
        return self.entry(tier.number, tier.name if tier.is_target else None)

    def entry(self, number: int, target: str | None) -> TierSpec:
        """The catalogue's entry of a tier, or of the target that stood in for it."""
        beside = None if target is None else self.catalog.target(target)
        return self.catalog.tiers[number - 1] if beside is None else beside

    def price(self, number: int, usage: Usage) -> float:
        """US dollars of `usage` on a tier; a number that a longer catalogue stored is priced as the strongest."""
        return cost_usd(self.spec(min(number, self.strongest)), usage)

    def named_spec(self, model: str) -> TierSpec | None:
        """The entry that a model name asks for, its adapter aside; None for `auto` and names that are not served."""
        base = self.split_adapter(model)[0]
        return None if base == AUTO else self._named.get(base) or self._named_targets.get(base)

    def named_target(self, model: str) -> str | None:
        """The target that a model name asks for; None where it asks for something else."""
        return model if model in self._named_targets else None

    def seen_by(self, model: str) -> "ServedCatalogue":
        """What a request for `model` is routed over: this, or, for a target, this with the target's entry and server
        in the place of the tier that it stands for."""
        if (spec := self._named_targets.get(model)) is None:
            return self
        target = self.targets.get(model)
        if (view := self._views.get(model)) is None:
            tiers = [spec if tier.number == spec.number else tier for tier in self.catalog.tiers]
            servers = self.tiers if target is None else {**self.tiers, spec.number: target}
            catalog = msgspec.structs.replace(self.catalog, tiers=tiers)
            view = self._views[model] = replace(self, catalog=catalog, tiers=servers)
        return view

    def pinned_tier(self, model: str) -> int | None:
        """The tier a model name asks for, its adapter aside: the cheapest one that serves it, for a target the one that
        it stands for, or None for `auto`.

        Raises `ApiError` 404 for a name that is not served.
        """
        base = model if model == AUTO else self.split_adapter(model)[0]
        if base == AUTO:
            return None
        if (spec := self._named.get(base) or self._named_targets.get(base)) is not None:
            return spec.number
        raise ApiError(
            404,
            f"The model {model!r} does not exist here; there are {', '.join(self.names)}. An alias in the catalogue or "
            f"of the key gives it a meaning, such as {model[:64]!r} = 'auto'.",
            param="model",
            code="model_not_found",
        )

    def unaliased(self, model: str, caller: Caller) -> str:
        """What `model` stands for: itself, or what the aliases of the caller's key or of the catalogue say."""
        own, common = caller.aliases, self.catalog.aliases
        while model[-4:].lower() == "[1m]" and model not in own and model not in common:
            # Claude Code's mark of a long context, which it does not always leave out.
            model = model[:-4]
        if not own and not common:
            return model
        named = own.get(model, model)
        named = common.get(named, named)
        if "*" not in own and "*" not in common:
            return named
        if self.split_adapter(named)[0] == AUTO or self.named_spec(named) is not None or self._serves(named):
            return named
        other = own["*"] if "*" in own else common["*"]
        return common.get(other, other)

    def _serves(self, name: str) -> bool:
        """Whether an embedding model or a target of another endpoint has this name."""
        return self.catalog.target(name) is not None or any(spec.name == name for spec in self.catalog.embeddings)

    def split_adapter(self, model: str) -> tuple[str, str]:
        """The base of a model name and the adapter that it asks for, as in `tier-1:sql`; "" for none.

        A tier of another server has no adapters here, and a name that is served as it stands has none in it.
        """
        if model == AUTO or model in self._named:
            return model, ""
        base, colon, adapter = model.rpartition(":")
        if not colon or not adapter:
            return model, ""
        spec = self._named.get(base)
        return (base, adapter) if spec is not None and spec.model is not None else (model, "")


def _named_targets(catalog: Catalog, named: Mapping[str, TierSpec]) -> dict[str, TargetSpec]:
    """Return the targets that requests may name: those that answer chats, unless a tier's model has that name."""
    if not catalog.targets:
        return {}
    from tiers.catalog.rule_check import answers_chats

    return {spec.name: spec for spec in catalog.targets if spec.name not in named and answers_chats(catalog, spec)}


def _compiled_rules(catalog: Catalog) -> "RoutingRules | None":
    if not catalog.rules:
        return None
    from gateway.inference.routing_rules import RoutingRules

    return RoutingRules(catalog)


# Of a key or a system prompt: the prompt's own price counts as so many earlier ones, so that on the first day prompts
# are not compared with each other, and no prompt looks more than (n + 10) / 10 times as dear as it is.
OWN_WEIGHT = 10.0
# A mean is over about so many of the newest requests.
NEWEST = 1000
# Keys and system prompts that are remembered, about 200 bytes each.
MOST = 20_000


class ReferencePrices:
    """Running means, in US dollars, of the strongest tier's predicted price: of each key's prompts, and of those with
    each of its system prompts. This process's requests since its start or the last change of prices, and those of
    earlier processes, at the prices of their time; of system prompts, those of callers who consent to learning."""

    def __init__(self) -> None:
        self._began = time.time()
        self._means: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()

    def of(self, key: str, app: str, usd: float) -> float:
        """Return the reference for a prompt whose strongest answer is predicted to cost `usd`: the mean of its system
        prompt `app` (a hash, "" without one), towards that of its `key`, towards `usd` itself."""
        key_mean = self._towards((key, ""), usd)
        return self._towards((key, app), key_mean) if app else key_mean

    def observe(self, key: str, app: str, usd: float) -> None:
        """Count a request that is being answered."""
        self._count((key, ""), usd)
        if app:
            self._count((key, app), usd)

    async def restore(self, database: AsyncEngine, tiers: int) -> None:
        """Count the newest stored requests, of any process, from before this one began."""
        for key, app, usd in await strongest_prices(database, tiers, self._began, NEWEST):
            self.observe(key, app, usd)

    def clear(self) -> None:
        """Forget all means, because prices have changed."""
        self._means.clear()

    def _towards(self, mean_key: tuple[str, str], parent: float) -> float:
        count, mean = self._means.get(mean_key, (0.0, 0.0))
        return (OWN_WEIGHT * parent + count * mean) / (OWN_WEIGHT + count)

    def _count(self, mean_key: tuple[str, str], usd: float) -> None:
        means = self._means
        if (counted := means.get(mean_key)) is None:
            means[mean_key] = (1.0, usd)
            if len(means) > MOST:
                means.popitem(last=False)
            return
        count = counted[0] + 1.0 if counted[0] < NEWEST else NEWEST
        means[mean_key] = (count, counted[1] + (usd - counted[1]) / count)
        means.move_to_end(mean_key)
