"""Tiers that are allowed and yet held back, because a conversation has its tier.

That follows from the request's circumstances alone, never from the quality target, and always leaves a tier.
"""

from collections.abc import Sequence

from classifier.decision import PolicyInputs


def held_back(inputs: PolicyInputs, allowed: Sequence[int]) -> dict[int, str]:
    """Tier → why it is held back, of the `allowed` tiers (ascending, not empty); never all of them.

    A pinned request is left alone. A tool loop keeps its tier. A conversation moves down only when that saves more
    than reading it again costs (DESIGN §4).
    """
    if inputs.pinned_tier is not None:
        return {}
    previous = inputs.previous_tier if inputs.previous_tier in allowed else None
    if previous is not None and inputs.in_tool_loop:
        return {k: f"the tool loop stays on tier {previous}" for k in allowed if k != previous}
    if previous is None:
        return {}
    return {k: reason for k in allowed if k < previous and (reason := _dearer_by_rereading(inputs, previous, k))}


def _dearer_by_rereading(inputs: PolicyInputs, previous: int, tier: int) -> str | None:
    """Why the conversation stays above `tier`, if it does: staying saves what the previous tier has read already."""
    reuse = inputs.reuse_usd or [0.0] * len(inputs.costs)
    stay = inputs.costs[previous - 1] - reuse[previous - 1]
    move = inputs.costs[tier - 1] - reuse[tier - 1]
    if move < stay:
        return None
    return (
        f"the conversation is on tier {previous}, where it costs ${max(stay, 0.0):.6f} to go on, "
        f"and ${move:.6f} to read it again here"
    )
