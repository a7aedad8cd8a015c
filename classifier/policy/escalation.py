"""Should an answer be escalated to a more expensive tier? By the objective that chose its tier (docs/routing.md)."""

from collections.abc import Sequence

import msgspec

from classifier.decision import PolicyInputs
from classifier.policy.utility import enough_of, utility


class EscalationChoice(msgspec.Struct, frozen=True):
    """`better`: the tiers whose answers are worth more than the one that is there, the one worth most first.
    `advantage`: of the first, 0 without one."""

    better: tuple[int, ...]
    advantage: float
    reason: str


def weigh_escalation(
    inputs: PolicyInputs, tier: int, above: Sequence[int], p_ok: list[float], left_usd: float
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
        return EscalationChoice((), 0.0, f"both answers would cost ${usd:.6f}, above the maximum")

    def worth(number: int, usd: float) -> float:
        p = p_ok[number - 1]
        return utility(1.0 if p >= enough else p, usd, inputs.reference, inputs.exchange)

    kept, asked = worth(tier, left_usd), {k: worth(k, costs[k - 1]) for k in paid}
    ordered = sorted(paid, key=lambda k: (-asked[k], k))
    best = ordered[0]
    reason = (
        f"P(no worse) of this answer is {p_ok[tier - 1]:.3f}, tier {best}'s {p_ok[best - 1]:.3f}; less what they cost "
        f"from here on they are worth {kept:.3f} and {asked[best]:.3f}"
    )
    return EscalationChoice(tuple(k for k in ordered if asked[k] > kept), asked[best] - kept, reason)
