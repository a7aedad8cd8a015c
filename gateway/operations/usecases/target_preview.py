"""What another quality target would do: recent decisions made again by the policy, with everything else as it was."""

from collections.abc import Sequence

import msgspec
import numpy as np

from gateway.inference.routing.model import RoutingRule, choice_at
from quality.estimates.decision_sample import SampledDecision


class OperatingPoint(msgspec.Struct, frozen=True, kw_only=True):
    """What a rule comes to on the sampled requests. `split`: their share by tier; `cost_usd`: predicted, a request;
    `cost_share` of what the strongest tier alone would cost; `no_worse`: the share of answers expected to be no worse
    than its own."""

    quality_target: float
    tau: float
    split: list[float]
    cost_usd: float
    cost_share: float
    no_worse: float


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """`now`: at the current target; `then`: at the one asked about. `sampled` decisions stand for `requests`, `moved`
    is the share of these that another tier would answer. Times in epoch seconds.

    Every request counts as if it left the target to the server; those that brought one of their own will keep it.
    """

    since: float
    until: float
    sampled: int
    requests: float
    moved: float
    now: OperatingPoint
    then: OperatingPoint


def preview(
    sample: Sequence[SampledDecision], tiers: int, now: RoutingRule, then: RoutingRule, since: float, until: float
) -> Preview | None:
    """Both rules on the decisions of a ladder of `tiers`; None of none. Pure, some 50 µs a decision."""
    sample = [one for one in sample if len(one.inputs.costs) == tiers]
    if not sample:
        return None
    weights = np.array([one.weight for one in sample])
    # A set, because the page that previews nothing in particular gives the same rule twice.
    chosen = {rule: np.array([choice_at(one.inputs, rule) for one in sample]) - 1 for rule in {now, then}}
    points = {rule: _point(sample, weights, taken, rule) for rule, taken in chosen.items()}
    return Preview(
        since=since,
        until=until,
        sampled=len(sample),
        requests=float(weights.sum()),
        moved=float(np.average(chosen[now] != chosen[then], weights=weights)),
        now=points[now],
        then=points[then],
    )


def _point(
    sample: Sequence[SampledDecision], weights: np.ndarray, chosen: np.ndarray, rule: RoutingRule
) -> OperatingPoint:
    each = np.arange(len(sample))
    costs = np.array([one.inputs.costs for one in sample])
    p_ok = np.array([one.inputs.prediction.p_ok for one in sample])
    cost = float(np.average(costs[each, chosen], weights=weights))
    return OperatingPoint(
        quality_target=rule.quality_target,
        tau=rule.tau,
        split=(np.bincount(chosen, weights, minlength=costs.shape[1]) / weights.sum()).tolist(),
        cost_usd=cost,
        cost_share=cost / float(np.average(costs[:, -1], weights=weights)),
        no_worse=float(np.average(p_ok[each, chosen], weights=weights)),
    )
