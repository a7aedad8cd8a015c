"""Holds: allowed tiers that are held back because a conversation stays on its tier, or because their queue is long.

Holds depend on the request's circumstances only, never on the quality target, and always leave a tier.
"""

from collections.abc import Sequence

from classifier.decision import PolicyInputs, SessionStep


def held_back(inputs: PolicyInputs, allowed: Sequence[int]) -> dict[int, str]:
    """Return tier → why it is held back, of the `allowed` tiers (ascending, not empty); never all of them.

    Nothing is held back for a pinned request. A tool loop keeps its tier. A conversation moves to a lower tier only if
    that saves more than prefilling the conversation again costs (docs/routing.md). A tier with a longer queue than
    `most_wait_seconds` gives way to higher ones, if one of these has a shorter queue (SPEC RT-12). An agent's session
    has rules of its own (docs/agents.md).
    """
    if inputs.pinned_tier is not None:
        return {}
    if inputs.session is not None:
        return _held_by_session(inputs, inputs.session, allowed)
    previous = inputs.previous_tier if inputs.previous_tier in allowed else None
    if previous is not None and inputs.in_tool_loop:
        return {k: f"the tool loop stays on tier {previous}" for k in allowed if k != previous}
    held = _queued(inputs, allowed)
    if previous is None:
        return held
    reread = {k: reason for k in allowed if k < previous and (reason := _dearer_by_rereading(inputs, previous, k))}
    return reread | held


def _held_by_session(inputs: PolicyInputs, step: SessionStep, allowed: Sequence[int]) -> dict[int, str]:
    """Return the tiers that a session's rule holds back. A rule whose tier may not answer never sends it lower."""
    floor = min(step.floor or 1, allowed[-1])
    held = {k: f"the parent of this agent is on tier {step.floor}" for k in allowed if k < floor}
    open_tiers = [k for k in allowed if k not in held]
    if step.rule == "free":
        return held | _queued(inputs, open_tiers)
    previous = step.previous
    if step.rule == "stay" and previous in open_tiers:
        return held | {k: step.because for k in open_tiers if k != previous}
    if step.rule == "rest" and previous in open_tiers:
        return held | _queued(inputs, open_tiers)
    # Up, or what holds the session on its tier may not answer.
    least = previous + 1 if step.rule == "up" else previous
    least = min(least, open_tiers[-1])
    return held | {k: step.because for k in open_tiers if k < least}


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
