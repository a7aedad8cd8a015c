"""Should an answer be escalated to a more expensive tier? By the objective that chose its tier (docs/routing.md)."""

import msgspec

from classifier.decision import PolicyInputs
from classifier.policy.utility import enough_of, utility


class EscalationChoice(msgspec.Struct, frozen=True):
    """`advantage`: escalate if it is above 0."""

    advantage: float
    reason: str


def weigh_escalation(
    inputs: PolicyInputs, tier: int, higher: int, p_ok: list[float], left_usd: float
) -> EscalationChoice:
    """Compare `tier`'s answer with a new one by `higher`, by the updated `p_ok` of both.

    The cost of `tier` so far is sunk; finishing costs `left_usd` more. An answer is escalated if the other is worth
    more at its whole price, unless both together would exceed the caller's maximum cost.
    """
    spent = max(inputs.costs[tier - 1] - left_usd, 0.0)
    total = spent + inputs.costs[higher - 1]
    if inputs.max_cost_usd is not None and total > inputs.max_cost_usd:
        return EscalationChoice(0.0, f"both answers would cost ${total:.6f}, above the maximum")
    own, other, enough = p_ok[tier - 1], p_ok[higher - 1], enough_of(inputs.prediction)
    reference, exchange = inputs.reference, inputs.exchange
    kept = utility(1.0 if own >= enough else own, left_usd, reference, exchange)
    asked = utility(1.0 if other >= enough else other, inputs.costs[higher - 1], reference, exchange)
    reason = (
        f"P(no worse) of this answer is {own:.3f}, tier {higher}'s {other:.3f}; less what they cost from here on they "
        f"are worth {kept:.3f} and {asked:.3f}"
    )
    return EscalationChoice(asked - kept, reason)
