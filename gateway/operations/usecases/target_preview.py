"""What another quality target would do: recent decisions made again by the policy, with everything else as it was."""

from collections.abc import Sequence

import msgspec
import numpy as np

from classifier.decision import PolicyInputs
from gateway.inference.routing.classifier_versions import RoutingRule, choice_at
from quality.estimates.traffic import RoutedRequest


class OperatingPoint(msgspec.Struct, frozen=True, kw_only=True):
    """What a rule comes to on the requests. `split`: their share by tier; `cost_usd`: a request, at the tokens that
    were used; `cost_share` of what the strongest tier alone would cost; `no_worse`: the share of answers expected to be
    no worse than its own."""

    quality_target: float
    tau: float
    split: list[float]
    cost_usd: float
    cost_share: float
    no_worse: float


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """`now`: at the current target; `then`: at the one asked about. `moved`: the share of the `requests` that another
    tier would answer. Times in epoch seconds: of the oldest and the newest.

    Every request counts as if it left the target to the server; those that brought one of their own will keep it.
    """

    since: float
    until: float
    requests: int
    moved: float
    now: OperatingPoint
    then: OperatingPoint


_inputs = msgspec.json.Decoder(PolicyInputs).decode


def preview(routed: Sequence[RoutedRequest], now: RoutingRule, then: RoutingRule) -> Preview | None:
    """Both rules on requests of one ladder, newest first; None of none. Pure, some 50 µs a request."""
    decided = [(one, inputs) for one in routed if (inputs := _read(one)) is not None]
    if not decided:
        return None
    costs = np.array([_costs(one) for one, _ in decided])
    p_ok = np.array([inputs.prediction.p_ok for _, inputs in decided])
    # A set, because the page that previews nothing in particular gives the same rule twice.
    chosen = {rule: np.array([choice_at(inputs, rule) for _, inputs in decided]) - 1 for rule in {now, then}}
    strongest = float(np.mean([one.strongest_usd for one, _ in decided]))
    points = {rule: _point(costs, p_ok, strongest, taken, rule) for rule, taken in chosen.items()}
    return Preview(
        since=decided[-1][0].created_at,
        until=decided[0][0].created_at,
        requests=len(decided),
        moved=float(np.mean(chosen[now] != chosen[then])),
        now=points[now],
        then=points[then],
    )


def _read(one: RoutedRequest) -> PolicyInputs | None:
    """Decode the inputs; None where another version of this program wrote them and they cannot be read."""
    try:
        return _inputs(one.inputs)
    except msgspec.ValidationError:
        return None


def _costs(one: RoutedRequest) -> list[float]:
    """Return what each tier would have cost: what was paid for the one that answered, and for the others as predicted,
    scaled from the tokens that the strongest was expected to use to those that were used."""
    scale = one.strongest_usd / one.costs[-1] if one.costs[-1] else 1.0
    return [one.paid_usd if tier == one.tier else cost * scale for tier, cost in enumerate(one.costs, start=1)]


def _point(
    costs: np.ndarray, p_ok: np.ndarray, strongest: float, chosen: np.ndarray, rule: RoutingRule
) -> OperatingPoint:
    each = np.arange(len(chosen))
    paid = float(costs[each, chosen].mean())
    return OperatingPoint(
        quality_target=rule.quality_target,
        tau=rule.tau,
        split=(np.bincount(chosen, minlength=costs.shape[1]) / len(chosen)).tolist(),
        cost_usd=paid,
        cost_share=paid / strongest if strongest else 1.0,
        no_worse=float(p_ok[each, chosen].mean()),
    )
