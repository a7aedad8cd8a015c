"""What the rest of a session is expected to cost from each tier on, for a policy that knows more than the gateway.

The gateway counts this turn alone (`classifier.policy.sessions`). Here the next turn runs where it is
cheapest, by what the caches are expected to hold after this one and the pause: that is the price of a switch, and of
the likely switch back. All turns after it cost as it does.
"""

from collections.abc import Sequence
from math import log
from statistics import NormalDist

import msgspec

from classifier.policy.sessions import SessionTier, Warmth, turn_usd, warm_tokens

GAP_SPREAD = 1.5
"""Log standard deviation of the pauses between turns around their median."""
STEP_SECONDS = 5.0
"""Median pause between the steps of a loop in recorded runs."""
_NORMAL = NormalDist()


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a session before a step.

    `current`: the tier of its last answer; None before its first. `warmth`: of each tier, cheapest first.
    `prompt_tokens`: of the next step. `growth_tokens`: by which a prompt grows from step to step, the answer included;
    `output_tokens`: of an answer. `turn_steps`: expected steps until the next boundary; `remaining_steps`: until the
    session ends, those included. `gap_seconds`: expected pause before the next boundary. `next_wanted[k-1]`: P(the next
    turn wants tier k at least); (): as this one.
    """

    current: int | None
    warmth: tuple[Warmth, ...]
    prompt_tokens: int
    growth_tokens: float
    output_tokens: float
    turn_steps: float
    remaining_steps: float
    gap_seconds: float = 60.0
    next_wanted: tuple[float, ...] = ()


def least_rest(view: SessionView, tiers: Sequence[SessionTier], adequate: Sequence[bool]) -> int:
    """Return the index of the `adequate` tier with the least expected cost of the rest of the session, as the gateway's
    policy does: on equal costs the session stays, and then the lower tier is taken."""
    rest = rest_usd(view, tiers, adequate)
    return min((k for k, good in enumerate(adequate) if good), key=lambda k: (rest[k], k + 1 != view.current, k))


def kept_share(tier: SessionTier, age_seconds: float, gap_seconds: float) -> float:
    """Return P(a cached prefix of this age outlasts a pause whose median is `gap_seconds`)."""
    left = tier.cache_seconds - age_seconds
    if left <= 0:
        return 0.0
    return _NORMAL.cdf((log(left) - log(max(1.0, gap_seconds))) / GAP_SPREAD)


def rest_usd(view: SessionView, tiers: Sequence[SessionTier], adequate: Sequence[bool]) -> tuple[float, ...]:
    """Return the expected US dollars of the rest of the session with this turn on each of `tiers`.

    `adequate[k-1]`: whether tier k reaches the quality wanted now; turns after this one want it too, unless
    `view.next_wanted` says more.
    """
    steps = max(1.0, min(view.turn_steps, view.remaining_steps))
    # What is left after this turn is as many turns of equal length.
    turns = max(0.0, view.remaining_steps - steps) / steps
    wanted = _wanted(view, adequate)
    rest: list[float] = []
    for k, tier in enumerate(tiers):
        warm = warm_tokens(tier, view.warmth[k], view.prompt_tokens)
        usd = _turn(view, tier, warm, view.prompt_tokens, steps)
        if turns:
            usd += turns * _next_turn(view, tiers, _left(view, tiers, k, steps), wanted, steps)
        rest.append(usd)
    return tuple(rest)


def _wanted(view: SessionView, adequate: Sequence[bool]) -> tuple[float, ...]:
    """P(the next turn wants each tier at least)."""
    total = sum(view.next_wanted)
    if total > 0:
        return tuple(share / total for share in view.next_wanted)
    least = next((k for k, reaches in enumerate(adequate) if reaches), len(adequate) - 1)
    return tuple(float(k == least) for k in range(len(adequate)))


def _turn(view: SessionView, tier: SessionTier, warm: float, prompt_tokens: float, steps: float) -> float:
    return turn_usd(tier, warm, prompt_tokens, view.growth_tokens, view.output_tokens, steps)


def _left(view: SessionView, tiers: Sequence[SessionTier], chosen: int, steps: float) -> list[float]:
    """Tokens that each cache is expected to hold when the next turn begins, if this one runs on the tier `chosen`."""
    end = view.prompt_tokens + (steps - 1.0) * view.growth_tokens
    held: list[float] = []
    for k, (tier, warmth) in enumerate(zip(tiers, view.warmth, strict=True)):
        if k == chosen:
            tokens, age = (end if end >= tier.min_cached_tokens else 0.0), 0.0
        else:
            tokens = float(warm_tokens(tier, warmth, view.prompt_tokens))
            age = warmth.age_seconds + steps * STEP_SECONDS
        held.append(tokens * kept_share(tier, age, view.gap_seconds))
    return held


def _next_turn(
    view: SessionView, tiers: Sequence[SessionTier], held: Sequence[float], wanted: Sequence[float], steps: float
) -> float:
    """Expected US dollars of the next turn, on the cheapest tier of those that it wants."""
    prompt = view.prompt_tokens + steps * view.growth_tokens
    usd = [_turn(view, tier, warm, prompt, steps) for tier, warm in zip(tiers, held, strict=True)]
    expected = 0.0
    for least, probability in enumerate(wanted):
        expected += probability * min(usd[least:])
    return expected
