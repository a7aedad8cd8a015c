"""Whether an answer under way is worth handing to a dearer tier, by the rule that chose its tier (DESIGN §4)."""

import msgspec

from classifier.decision import PolicyInputs


class EscalationChoice(msgspec.Struct, frozen=True):
    """`advantage`: how much better the dearer tier scores by the rule; it takes over if that is above 0."""

    advantage: float
    reason: str


def weigh_escalation(
    inputs: PolicyInputs, tier: int, higher: int, p_ok: list[float], left_usd: float
) -> EscalationChoice:
    """`tier`'s answer under way against a new one by `higher`, given what is now known of both (`p_ok` by tier).

    What `tier` has cost is spent; finishing costs `left_usd` more. What is not good enough is handed over if that makes
    it better. Nothing is handed over that would, with what is spent, cost more than the caller's maximum.
    """
    spent = max(inputs.costs[tier - 1] - left_usd, 0.0)
    total = spent + inputs.costs[higher - 1]
    if inputs.max_cost_usd is not None and total > inputs.max_cost_usd:
        return EscalationChoice(0.0, f"both answers would cost ${total:.6f}, above the maximum")
    own, other = p_ok[tier - 1], p_ok[higher - 1]
    found = f"P(no worse) of this answer is {own:.3f}, tier {higher}'s {other:.3f}"
    advantage = min(inputs.tau - own, other - own)
    return EscalationChoice(advantage, f"{found}; tau {inputs.tau:.3f}")
