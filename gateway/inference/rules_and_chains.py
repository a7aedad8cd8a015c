"""What the catalogue's rules and chains do to a routing decision; imported with the first catalogue that has any.

A target that a rule names, or an entry of a fallback chain, can take a request in place of a tier. The chain of a
tier that failed says which tiers and targets stand in, in the catalogue's order.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from classifier.decision import Decision, Exclusion, RuledBy
from classifier.features.routing_input import RoutingInput
from classifier.policy.decide import barred_tiers
from gateway.base.inference_request import InferenceRequest
from gateway.inference.classifier_versions import routing_input_of
from gateway.inference.exclusions import Excluded, context_problem, is_plain, lacks_of, load_problem, needs_of
from gateway.inference.routing_rules import RoutingRules
from gateway.inference.served_catalogue import ServedCatalogue
from tiers.catalog.catalog import Catalog
from tiers.catalog.consent import hidden_from
from tiers.catalog.pricing import request_cost_usd
from tiers.catalog.tier_spec import TierSpec
from tiers.tier import Tier


def target_problem(request: InferenceRequest, name: str, served: ServedCatalogue, rules: RuledBy | None) -> str | None:
    """Return why the target `name` cannot take the request now; None if it can. `rules`: that match the request."""
    spec, target = served.catalog.target(name), served.targets.get(name)
    if spec is None:
        return "it is no longer in the catalogue"
    is_allowed = rules is None or rules.targets is None or name in rules.targets
    return _problem_of(request, spec, target, 1 if rules is None else rules.floor, is_allowed=is_allowed)


def named_problem(
    request: InferenceRequest,
    name: str,
    named: TierSpec,
    served: ServedCatalogue,
    rules: RuledBy | None,
    ruled_out: Mapping[int, str],
) -> str | None:
    """Return why the tier or target `name` cannot stand in now for `named`, the entry that the request names; None if
    it can. `rules`: that match the request; `ruled_out`: the tiers that they bar."""
    if (number := served.catalog.numbered(name)) is None:
        return target_problem(request, name, served, rules)
    if not named.fallback_named:
        return f"the request is pinned to tier {named.number}"
    if (barred := ruled_out.get(number)) is not None:
        return barred
    return _problem_of(request, served.spec(number), served.tiers.get(number), 1 if rules is None else rules.floor)


def _problem_of(
    request: InferenceRequest, spec: TierSpec, tier: Tier | None, floor: int, *, is_allowed: bool = True
) -> str | None:
    if (hidden := hidden_from(spec, request.consent)) is not None:
        return hidden
    least = max(request.options.min_tier or 1, request.caller.min_tier or 1, floor)
    if spec.number < least:
        return f"it counts as tier {spec.number}, and at least tier {least} is required"
    if not is_allowed:
        return "the rules do not allow it"
    if tier is None:
        # A dry run has no servers to ask.
        return None
    return _problem_now(request, tier.active_tier(), spec) or load_problem(request, tier.load())


def _problem_now(request: InferenceRequest, tier: Tier, spec: TierSpec) -> str | None:
    if request.generation.adapter:
        return "it has no adapters"
    plain = is_plain(request)
    needs = [] if plain and request.generation.tooling is None else needs_of(request)
    if (needs or not plain) and (lacks := lacks_of(request, needs, tier, spec)):
        return lacks[0].refusal or f"it does not support {lacks[0].noun}"
    most_usd = request.max_cost_usd
    if most_usd is not None and (usd := _predicted_usd(request, tier, spec)) > most_usd:
        return f"the predicted cost of ${usd:.6f} is above the maximum ${most_usd:.6f}"
    return context_problem(request, request.most_prompt_tokens(), tier, spec)


def _predicted_usd(request: InferenceRequest, tier: Tier, spec: TierSpec) -> float:
    most, prompt_tokens = request.generation.max_tokens, tier.count_prompt_tokens(request.generations(spec)[0])
    answer = spec.expected_answer_tokens if most is None else min(most, spec.expected_answer_tokens)
    return request_cost_usd(spec.price, prompt_tokens, answer)


def tier_problem(request: InferenceRequest, number: int, served: ServedCatalogue, barred: dict[int, str]) -> str | None:
    """Return why tier `number` cannot take over a request now; None if it can. `barred`: by the request's decision."""
    if number in barred:
        return barred[number]
    if (hidden := hidden_from(served.spec(number), request.consent)) is not None:
        return hidden
    return None if served.tiers[number].load().healthy else "the tier is down"


class RuleResult(NamedTuple):
    """What the rules say of a request."""

    by: RuledBy
    """What the decision says of the rules."""
    exclusions: list[Exclusion]
    quality: float | None
    """The target of a request that asks for none."""

    @property
    def leaves_edge(self) -> bool:
        """Whether the fast path may still take the request."""
        return self.by.tier is None and self.quality is None


def apply_rules(
    rules: RoutingRules,
    request: InferenceRequest,
    routing_input: RoutingInput,
    served: ServedCatalogue,
    pinned: int | None,
    excluded: Excluded,
    *,
    observed: bool,
) -> RuleResult | None:
    """Return what the rules leave of a request; None if it matches none. `excluded` gets the tiers that they rule out.

    A rule's target replaces the server of its tier, so that it does not matter whether that is up. It is passed over
    where it cannot take the request, for a request that names its tier, and where routing is only `observed`.
    """
    matched = rules.of(request, routing_input)
    if matched is None:
        return None
    by = RuledBy(
        names=matched.names,
        targets=None if matched.targets is None else sorted(matched.targets),
        floor=matched.floor,
    )
    exclusions = excluded.exclusions
    tier, target = matched.tier, matched.target
    if pinned is not None:
        tier = target = None
    if target is not None and tier is not None:
        reason = target_problem(request, target, served, by)
        if reason is not None or observed:
            tier = target = None
        else:
            exclusions = [exclusion for exclusion in exclusions if exclusion.tier != tier]
    excluded.ruled_out.update({number: reason for number, reason in matched.barred.items() if pinned in (None, number)})
    exclusions = [exclusion for exclusion in exclusions if exclusion.tier not in excluded.ruled_out]
    exclusions += [Exclusion(tier=number, reason=reason) for number, reason in sorted(excluded.ruled_out.items())]
    by = RuledBy(names=by.names, targets=by.targets, floor=by.floor, tier=tier, target=target)
    return RuleResult(by, exclusions, matched.quality)


def to_target(rule_result: RuleResult | None, pinned: int, name: str, excluded: Excluded) -> RuleResult:
    """Return what rules leave (`rule_result`) of a request that names a target, which stands for the tier `pinned`.
    `excluded`: of the catalogue with the target in that tier's place; a rule that does not allow it is added."""
    if rule_result is None:
        return RuleResult(RuledBy(names=[], tier=pinned, target=name), excluded.exclusions, None)
    exclusions = rule_result.exclusions
    if rule_result.by.targets is not None and name not in rule_result.by.targets and pinned not in excluded.ruled_out:
        excluded.ruled_out[pinned] = reason = "the rules do not allow it"
        exclusions = [*(other for other in exclusions if other.tier != pinned), Exclusion(tier=pinned, reason=reason)]
    by = RuledBy(
        names=rule_result.by.names, targets=rule_result.by.targets, floor=rule_result.by.floor, tier=pinned, target=name
    )
    return RuleResult(by, exclusions, rule_result.quality)


class StandIn(NamedTuple):
    """An entry that answers in place of one that a request names, and why, in words."""

    name: str
    """The entry's name."""
    why: str


def stand_in_of(
    request: InferenceRequest, routing_input: RoutingInput, named: TierSpec, excluded: Excluded, served: ServedCatalogue
) -> StandIn | None:
    """Return the first of the `fallback` of `named`, the entry that a request names and that cannot take it now, that
    can; None if there is none, or if the rules bar the entry itself."""
    matched = None if served.rules is None else served.rules.of(request, routing_input)
    ruled_out = {} if matched is None else matched.barred
    if not excluded.exclusions or named.number in ruled_out:
        return None
    by = None
    if matched is not None:
        targets = None if matched.targets is None else sorted(matched.targets)
        by = RuledBy(names=matched.names, targets=targets, floor=matched.floor)
    for name in named.fallback or ():
        if named_problem(request, name, named, served, by, ruled_out) is None:
            return StandIn(name, f"not {named.name}: {excluded.exclusions[0].reason}; {name} answers instead")
    return None


NOT_AFFORDED = "the budget does not cover it"
TOO_SHORT = "its context is too short as well"


def chain_of(catalog: Catalog, spec: TierSpec, named: TierSpec | None) -> list[str]:
    """Return the names that follow `spec`, an entry of a tier with a chain, or of a target. `named`: the entry that the
    request asks for, whose chain then holds, after `spec` if it stands in already. Without a chain of its own, what
    follows a target is the tier that it stands for, and that tier's chain; if the request names it, nothing."""
    if named is not None:
        names = list(named.fallback or ())
        own = (spec.name, "" if catalog.target(spec.name) is not None else f"tier-{spec.number}")
        return names[next((position for position, name in enumerate(names, start=1) if name in own), 0) :]
    if catalog.target(spec.name) is None or spec.fallback is not None:
        return list(spec.fallback or ())
    tier = catalog.tier(spec.number)
    return [tier.name, *(name for name in tier.fallback or () if name != spec.name)]


class FallbackChain:
    """Goes through `names` once; what cannot take the request is passed over, and `passed_over` says why."""

    def __init__(
        self,
        names: Sequence[str],
        request: InferenceRequest,
        decision: Decision,
        served: ServedCatalogue,
        affords: Callable[[Tier], bool],
        fits: Callable[[Tier], bool],
        named: TierSpec | None,
    ) -> None:
        """`affords`: reserves what an attempt may cost, if the caller's budgets cover it. `fits`: whether it is not too
        long, by what other tiers said. `named`: the entry that the request asks for, None for `auto`."""
        self.passed_over: list[str] = []
        self._names, self._request, self._rules = list(names), request, decision.inputs.rules
        self._served, self._affords, self._fits = served, affords, fits
        self._barred, self._named = barred_tiers(decision.inputs), named

    def next(self) -> Tier | None:
        """Return the next one that can take the request now; None at the end."""
        while self._names:
            name = self._names.pop(0)
            tier, reason = self._look_at(name)
            if tier is not None:
                return tier
            self.passed_over.append(f"not {name}: {reason}")
        return None

    def _look_at(self, name: str) -> tuple[Tier | None, str | None]:
        served, request = self._served, self._request
        tier: Tier | None
        if (number := served.catalog.numbered(name)) is not None:
            tier, reason = served.tiers[number], self._problem_of_tier(number, name)
        else:
            tier, reason = served.targets.get(name), target_problem(request, name, served, self._rules)
        if tier is None:
            return None, "it is no longer in the catalogue"
        if reason is not None:
            return None, reason
        active = tier.active_tier()
        if not self._fits(active):
            return None, TOO_SHORT
        return (active, None) if self._affords(active) else (None, NOT_AFFORDED)

    def _problem_of_tier(self, number: int, name: str) -> str | None:
        """Return why a tier cannot stand in. Of a request that names an entry, its decision says nothing of others."""
        served, request, named = self._served, self._request, self._named
        if named is None:
            return tier_problem(request, number, served, self._barred)
        matched = None if served.rules is None else served.rules.of(request, routing_input_of(request))
        return named_problem(request, name, named, served, self._rules, {} if matched is None else matched.barred)
