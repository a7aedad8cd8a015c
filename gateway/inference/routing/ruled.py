"""What the catalogue's rules and chains do to a routing decision; imported with the first catalogue that has any."""

from typing import NamedTuple

from classifier.decision import Exclusion, RuledBy
from classifier.features.routing_input import RoutingInput
from gateway.base.requests.inference_request import InferenceRequest
from gateway.inference.catalogue.routing_rules import RoutingRules
from gateway.inference.catalogue.served_catalogue import ServedCatalogue
from gateway.inference.routing.exclusions import Excluded
from gateway.inference.routing.targets import named_problem, target_problem
from tiers.catalog.tier_spec import TierSpec


class Ruled(NamedTuple):
    """`by`: what the decision says of the rules. `quality`: the target of a request that asks for none."""

    by: RuledBy
    exclusions: list[Exclusion]
    quality: float | None

    @property
    def leaves_edge(self) -> bool:
        """Whether the fast path may still take the request."""
        return self.by.tier is None and self.quality is None


def ruled(
    rules: RoutingRules,
    request: InferenceRequest,
    routing_input: RoutingInput,
    served: ServedCatalogue,
    pinned: int | None,
    excluded: Excluded,
    *,
    observed: bool,
) -> Ruled | None:
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
            exclusions = [one for one in exclusions if one.tier != tier]
    excluded.ruled_out.update({number: reason for number, reason in matched.barred.items() if pinned in (None, number)})
    exclusions = [one for one in exclusions if one.tier not in excluded.ruled_out]
    exclusions += [Exclusion(tier=number, reason=reason) for number, reason in sorted(excluded.ruled_out.items())]
    by = RuledBy(names=by.names, targets=by.targets, floor=by.floor, tier=tier, target=target)
    return Ruled(by, exclusions, matched.quality)


def to_target(found: Ruled | None, pinned: int, name: str, excluded: Excluded) -> Ruled:
    """Return what rules leave (`found`) of a request that names a target, which stands for the tier `pinned`.
    `excluded`: of the catalogue with the target in that tier's place; a rule that does not allow it is added."""
    if found is None:
        return Ruled(RuledBy(names=[], tier=pinned, target=name), excluded.exclusions, None)
    exclusions = found.exclusions
    if found.by.targets is not None and name not in found.by.targets and pinned not in excluded.ruled_out:
        excluded.ruled_out[pinned] = reason = "the rules do not allow it"
        exclusions = [*(one for one in exclusions if one.tier != pinned), Exclusion(tier=pinned, reason=reason)]
    by = RuledBy(names=found.by.names, targets=found.by.targets, floor=found.by.floor, tier=pinned, target=name)
    return Ruled(by, exclusions, found.quality)


class StandIn(NamedTuple):
    """The entry, by its `name`, that answers in place of one that a request names, and why, in words."""

    name: str
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
            return StandIn(name, f"not {named.name}: {excluded.exclusions[0].reason}; {name} stands in")
    return None
