"""Tiers that are allowed and yet held back: where experience is far away, and where a conversation has its tier.

Both look at the request's circumstances alone, never at lambda or tau, and always leave the strongest allowed tier.
"""

from collections.abc import Sequence

from classifier.decision import PolicyInputs


def held_back(inputs: PolicyInputs, allowed: Sequence[int]) -> dict[int, str]:
    """Tier → why it is held back, of the `allowed` tiers (ascending, not empty); never all of them.

    A pinned request is left alone. A tool loop keeps its tier. A conversation moves down only when that saves more
    than reading it again costs, and a prompt far from verified experience gets the safe tier at least, or the
    strongest allowed one (DESIGN §4).
    """
    if inputs.pinned_tier is not None:
        return {}
    previous = inputs.previous_tier if inputs.previous_tier in allowed else None
    if previous is not None and inputs.in_tool_loop:
        return {k: f"the tool loop stays on tier {previous}" for k in allowed if k != previous}
    held: dict[int, str] = {}
    if previous is not None:
        held = {k: reason for k in allowed if k < previous and (reason := _dearer_by_rereading(inputs, previous, k))}
    if is_novel(inputs) and inputs.safe_tier is not None:
        safe = min(inputs.safe_tier, allowed[-1])
        why = (
            f"novelty {inputs.prediction.novelty:.3f} >= {inputs.novelty_threshold:.3f}, far from verified experience: "
            f"tier {safe} at least"
        )
        held = {k: why for k in allowed if k < safe} | held
    return held


def is_novel(inputs: PolicyInputs) -> bool:
    """Whether the prompt is too far from verified experience; the heuristic knows no distance, so it never says so."""
    prediction, threshold = inputs.prediction, inputs.novelty_threshold
    return threshold is not None and prediction.kind != "heuristic" and prediction.novelty >= threshold


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
