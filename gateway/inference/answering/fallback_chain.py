"""The fallback chain of a tier that failed: which tiers and targets stand in, in the catalogue's order."""

from collections.abc import Callable, Sequence

from classifier.decision import Decision
from classifier.policy.decide import barred_tiers
from gateway.base.requests.inference_request import InferenceRequest
from gateway.inference.catalogue.served_catalogue import ServedCatalogue
from gateway.inference.routing.request_input import routing_input_of
from gateway.inference.routing.targets import named_problem, target_problem, tier_problem
from tiers.catalog.catalog import Catalog
from tiers.catalog.tier_spec import TierSpec
from tiers.tier import Tier

NOT_AFFORDED = "the budget does not cover it"
TOO_SHORT = "its context is too short as well"


def chain_of(catalog: Catalog, spec: TierSpec, named: TierSpec | None) -> list[str]:
    """Return the names that follow `spec`, an entry of a tier with a chain, or of a target. `named`: the entry that the
    request asks for, whose chain then holds, after `spec` if it stands in already. Without a chain of its own, what
    follows a target is the tier that it stands for, and that tier's chain; for a request that names the target,
    nothing."""
    if named is not None:
        names = list(named.fallback or ())
        own = (spec.name, "" if catalog.target(spec.name) is not None else f"tier-{spec.number}")
        return names[next((place for place, name in enumerate(names, start=1) if name in own), 0) :]
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
        """`affords`: reserves what an attempt may cost, if the caller's budgets cover it. `fits`: whether the request
        is not too long, by what other tiers have said of it. `named`: the entry that the request asks for, None for
        `auto`."""
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
            return None, "the catalogue has it no more"
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
