"""Holds: allowed tiers that are held back because a conversation stays on its tier, or because their queue is long.

Holds depend on the request's circumstances only, never on the quality target, and always leave a tier.
"""

from collections.abc import Sequence

from classifier.decision import PolicyInputs


def held_back(inputs: PolicyInputs, allowed: Sequence[int]) -> dict[int, str]:
    """Return tier → why it is held back, of the `allowed` tiers (ascending, not empty); never all of them.

    Nothing is held back for a pinned request. A tool loop keeps its tier. A conversation moves to a lower tier only if
    that saves more than prefilling the conversation again costs (docs/routing.md). A tier with a longer queue than
    `most_wait_seconds` gives way to higher ones, if one of these has a shorter queue (SPEC RT-12).
    """
    if inputs.pinned_tier is not None:
        return {}
    previous = inputs.previous_tier if inputs.previous_tier in allowed else None
    if previous is not None and inputs.in_tool_loop:
        return {k: f"the tool loop stays on tier {previous}" for k in allowed if k != previous}
    held = _queued(inputs, allowed)
    if previous is None:
        return held
    reread = {k: reason for k in allowed if k < previous and (reason := _dearer_by_rereading(inputs, previous, k))}
    return reread | held


def _queued(inputs: PolicyInputs, allowed: Sequence[int]) -> dict[int, str]:
    """Return the tiers whose queue is too long while that of a higher one is not. The highest tier with a short queue
    and those above it stay, so that the rule of conversations leaves one of these or `previous` itself."""
    most, waits = inputs.most_wait_seconds, inputs.predicted_waits
    if most is None:
        return {}
    short = max((k for k in allowed if waits[k - 1] <= most), default=0)
    return {
        k: f"its queue takes {waits[k - 1]:.1f} s, and tier {short} has a shorter one"
        for k in allowed
        if k < short and waits[k - 1] > most
    }


def _dearer_by_rereading(inputs: PolicyInputs, previous: int, tier: int) -> str | None:
    """Return why the conversation stays above `tier`, or None: staying saves the prefix that the previous tier has
    cached."""
    reuse = inputs.reuse_usd or [0.0] * len(inputs.costs)
    stay = inputs.costs[previous - 1] - reuse[previous - 1]
    move = inputs.costs[tier - 1] - reuse[tier - 1]
    if move < stay:
        return None
    return (
        f"the conversation is on tier {previous}, where it costs ${max(stay, 0.0):.6f} to go on, "
        f"and ${move:.6f} to read it again here"
    )
