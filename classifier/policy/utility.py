"""The objective of routing, by which tiers are chosen, answers escalated and routers compared: quality less cost.

`utility = P(as good) - exchange * dollars / reference`. The exchange rate is what a strongest answer is worth, in
shares of answers that are as good; a quality target t means 1 - t. The dollars are those of this prompt, by the
catalogue's prices, and the reference is what a strongest answer usually costs here: cost counts across prompts, so
that a long prompt costs what it costs (docs/routing.md).

On the first day P(as good) is known for classes of prompts, and not for this prompt: what it lacks to 1 is mostly
doubt about the class. Until labels say what a dearer tier gains, a tier that is good enough with P of `ENOUGH` counts
as certainly good enough, so that the likeliest class decides.
"""

from collections.abc import Sequence
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.complexity.quality_setting import DEFAULT_TARGET
from classifier.decision import Decision, Objective, Prediction, exchange_of

Float = npt.NDArray[np.floating]
Value = TypeVar("Value", float, Float)

DEFAULT_EXCHANGE = exchange_of(DEFAULT_TARGET)
# Prices of the four tiers relative to the first, where no catalogue says others.
PRICES = (1.0, 2.5, 10.0, 30.0)
# On the public part of the complexity suite 88% of the prompts then go to a tier within their range.
ENOUGH = 0.7
# Labels of such prompts over which the rule of the first day fades.
FIRST_LABELS = 2.0


def utility(p_ok: Value, dollars: Value, reference: Value, exchange: float) -> Value:
    """Return the utility of an answer that is as good with P `p_ok` and costs `dollars`, where a strongest answer
    usually costs `reference` (any unit, above 0). Arrays are broadcast."""
    net: Value = p_ok - exchange * dollars / reference
    return net


def enough_of(prediction: Prediction) -> float:
    """Return the P(as good) that counts as certain: from `ENOUGH` on the first day to 1 with `FIRST_LABELS` labels of
    such prompts, and where outcomes of the catalogue's own tiers were measured."""
    if prediction.kind != "prior":
        return 1.0
    most_labels = max(prediction.labels, default=0.0)
    return 1.0 if most_labels >= FIRST_LABELS else ENOUGH + (1.0 - ENOUGH) * most_labels / FIRST_LABELS


def worths(prediction: Prediction, costs: Sequence[float], reference: float, exchange: float) -> list[float]:
    """Return the utility of every tier's answer at these `costs`, as a decision counts it."""
    enough = enough_of(prediction)
    # `utility` written out, because every request has several.
    if enough >= 1.0:
        return [p - exchange * usd / reference for p, usd in zip(prediction.p_ok, costs, strict=True)]
    return [
        (1.0 if p >= enough else p) - exchange * usd / reference for p, usd in zip(prediction.p_ok, costs, strict=True)
    ]


def reference_prices(tiers: int) -> Float:
    """Return the reference prices [tiers]: `PRICES` for up to four; for more, interpolated geometrically."""
    if tiers <= len(PRICES):
        return np.array(PRICES[:tiers])
    places = np.linspace(0, len(PRICES) - 1, tiers)
    spread: Float = np.exp(np.interp(places, np.arange(len(PRICES)), np.log(PRICES)))
    return spread


def highest_utility(p_ok: Float, prices: Float, exchange: float) -> npt.NDArray[np.intp]:
    """Return the column [n] that `decide` picks without constraints, by `p_ok` [n, tiers] at `prices` [tiers]; the
    cheapest on ties."""
    picked: npt.NDArray[np.intp] = utility(p_ok, prices, prices[-1], exchange).argmax(axis=1)
    return picked


def first_day_choice(p_ok: Float) -> npt.NDArray[np.intp]:
    """Return the column [n] that `decide` picks by the default setting at the reference prices, by `p_ok` [n, tiers] of
    classes without labels."""
    return highest_utility(np.where(p_ok < ENOUGH, p_ok, 1.0), reference_prices(p_ok.shape[1]), DEFAULT_EXCHANGE)


class EscalationChoice(msgspec.Struct, frozen=True):
    """Whether to escalate, and where to."""

    better: tuple[int, ...]
    """The tiers whose answers are worth more than the one that is there, the one worth most first."""
    advantage: float
    """What the first of them is worth more; 0 without one."""
    reason: str


def weigh_escalation(
    inputs: Objective, tier: int, above: Sequence[int], p_ok: list[float], left_usd: float
) -> EscalationChoice:
    """Compare `tier`'s answer with a new one by each tier of `above` (ascending, not empty), by the updated `p_ok`.

    The cost of `tier` so far is sunk; finishing costs `left_usd` more. An answer is escalated if another is worth more
    at its whole price, unless both together would exceed the caller's maximum cost.
    """
    costs, most, enough = inputs.costs, inputs.max_cost_usd, enough_of(inputs.prediction)
    spent = max(costs[tier - 1] - left_usd, 0.0)
    paid = [k for k in above if most is None or spent + costs[k - 1] <= most]
    if not paid:
        usd = spent + costs[above[0] - 1]
        return EscalationChoice((), 0.0, f"both answers together would cost ${usd:.6f}, which is above the maximum")

    def worth(number: int, usd: float) -> float:
        p = p_ok[number - 1]
        return utility(1.0 if p >= enough else p, usd, inputs.reference, inputs.exchange)

    kept, asked = worth(tier, left_usd), {k: worth(k, costs[k - 1]) for k in paid}
    ordered = sorted(paid, key=lambda k: (-asked[k], k))
    best = ordered[0]
    reason = (
        f"P(good enough) is {p_ok[tier - 1]:.3f} for this answer and {p_ok[best - 1]:.3f} for tier {best}; with the "
        f"costs from here on, their utilities are {kept:.3f} and {asked[best]:.3f}"
    )
    return EscalationChoice(tuple(k for k in ordered if asked[k] > kept), asked[best] - kept, reason)


def agreement_may_pay(decision: Decision) -> bool:
    """Return whether agreement would be worth more than what was decided if all agreed and nothing was lost: a bound
    that needs neither the kind of the answer nor counts."""
    inputs = decision.inputs
    if inputs.objective != "utility":
        return True
    decided = decision.scores[decision.tier - 1]
    return decided is None or utility(1.0, sum(inputs.costs[:2]), inputs.reference, inputs.exchange) > decided
