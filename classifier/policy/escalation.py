"""Whether an answer is worth handing to a dearer tier, by the rule that chose its tier (DESIGN §4)."""

import msgspec

from classifier.decision import PolicyInputs


class EscalationChoice(msgspec.Struct, frozen=True):
    """`advantage`: the dearer tier takes over if it is above 0."""

    advantage: float
    reason: str


def weigh_escalation(
    inputs: PolicyInputs, tier: int, higher: int, p_ok: list[float], left_usd: float
) -> EscalationChoice:
    """`tier`'s answer against a new one by `higher`, given what is now known of both (`p_ok` by tier).

    What `tier` has cost is spent; finishing costs `left_usd` more. An answer that does not reach the target is handed
    over if that makes it better, unless both together would cost more than the caller's maximum.
    """
    spent = max(inputs.costs[tier - 1] - left_usd, 0.0)
    total = spent + inputs.costs[higher - 1]
    if inputs.max_cost_usd is not None and total > inputs.max_cost_usd:
        return EscalationChoice(0.0, f"both answers would cost ${total:.6f}, above the maximum")
    own, other = p_ok[tier - 1], p_ok[higher - 1]
    reason = f"P(no worse) of this answer is {own:.3f}, tier {higher}'s {other:.3f}; the target is {inputs.tau:.3f}"
    return EscalationChoice(min(inputs.tau - own, other - own), reason)
