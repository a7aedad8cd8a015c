"""Which tier a session's next steps run on: at a boundary the cheapest rest, inside a loop the same tier but for what
must move, and one tier up after a bad end."""

from collections.abc import Sequence

from classifier.policy.sessions.rest_cost import rest_usd
from classifier.policy.sessions.session_view import LoopCounters, SessionChoice, SessionTier, SessionView

MOST_BAD_CALLS = 3
"""A tier that forms so many calls in a row that no tool can read goes no further in the loop."""
MOST_FAILURES = 2
"""So many failures of a tier in a row move the loop."""


def choose_at_boundary(
    view: SessionView, tiers: Sequence[SessionTier], p_ok: Sequence[float], target: float
) -> SessionChoice:
    """Return the tier with the least expected cost of the rest of the session among those with `p_ok` >= `target`.

    `tiers`: cheapest first, as `p_ok` and `view.warmth`. If none reaches the target, the strongest that fits is the
    only candidate. After a bad end the current tier and those below it are no candidates. On equal costs the session
    stays.
    """
    floor = after_bad_end(view.current, len(tiers)) if view.end == "bad" and view.current is not None else 1
    adequate = [p >= target for p in p_ok]
    rest = rest_usd(view, tiers, adequate)
    fits = [usd != float("inf") for usd in rest]
    candidates = [k for k in range(floor - 1, len(tiers)) if adequate[k] and fits[k]]
    if not candidates:
        candidates = [max((k for k in range(len(tiers)) if fits[k]), default=len(tiers) - 1)]
    best = min(candidates, key=lambda k: (rest[k], k + 1 != view.current, k))
    return SessionChoice(best + 1, _reason(view, rest, best, candidates), rest)


def _reason(view: SessionView, rest: Sequence[float], best: int, candidates: Sequence[int]) -> str:
    tier = best + 1
    if view.end == "bad" and view.current is not None and tier > view.current:
        return f"above tier {view.current} after a bad end"
    said = f"the rest of the session on tier {tier} is expected to cost ${rest[best]:.4f}"
    if view.current is None or len(candidates) == 1:
        return said if len(candidates) > 1 else f"tier {tier} alone reaches the quality target or fits the prompt"
    if tier == view.current:
        return f"{said}; the session stays"
    return f"{said}, on tier {view.current} ${rest[view.current - 1]:.4f}"


def after_bad_end(current: int, tiers: int) -> int:
    """Return the tier of the turn after one that ended badly on tier `current` of `tiers`: the next one up."""
    return min(current + 1, tiers)


def must_move(
    view: SessionView, tiers: Sequence[SessionTier], counters: LoopCounters, excluded: frozenset[int] = frozenset()
) -> SessionChoice | None:
    """Return the tier that a tool loop has to move to; None where it stays, or nothing else is left.

    It moves for a prompt that no longer fits, for a tier that failed `MOST_FAILURES` times in a row or that is in
    `excluded` (tiers that cannot answer now), and, upward, for `MOST_BAD_CALLS` calls that no tool could read.
    """
    if view.current is None:
        return None
    tier = tiers[view.current - 1]
    least, why = 1, ""
    if view.prompt_tokens + view.output_tokens * tier.output_ratio > tier.context_tokens:
        why = f"the prompt does not fit tier {view.current}"
    elif counters.failures >= MOST_FAILURES or view.current in excluded:
        why = f"tier {view.current} fails"
    elif counters.bad_calls >= MOST_BAD_CALLS:
        least = view.current + 1
        why = f"tier {view.current} formed {counters.bad_calls} calls in a row that no tool could read"
    if not why:
        return None
    rest = rest_usd(view, tiers, [True] * len(tiers))
    others = [
        k for k in range(least - 1, len(tiers))
        if k + 1 != view.current and k + 1 not in excluded and rest[k] != float("inf")
    ]  # fmt: skip
    if not others:
        return None
    # Upward first: a loop is not to lose quality because its tier fails.
    up = [k for k in others if k + 1 > view.current]
    best = min(up) if up else max(others)
    return SessionChoice(best + 1, why, rest)
