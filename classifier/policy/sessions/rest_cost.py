"""What the rest of a session is expected to cost from each tier on, with the caches of providers.

A turn's first step reads what its tier's cache holds and writes the rest; each later step reads what the step before
wrote. The next turn then runs where it is cheapest, by what the caches are expected to hold after this one and the
pause: that is the price of a switch, and of the likely switch back. All turns after it cost as it does.
"""

from collections.abc import Sequence
from math import log
from statistics import NormalDist

from classifier.policy.sessions.session_view import SessionTier, SessionView, Warmth

GAP_SPREAD = 1.5
"""Log standard deviation of the pauses between turns around their median."""
STEP_SECONDS = 5.0
"""Median pause between the steps of a loop in recorded runs."""
LONG_CACHE_SECONDS = 3600.0
"""Lifetime of a long write (Anthropic's prompt caching)."""
_NORMAL = NormalDist()


def warm_tokens(tier: SessionTier, warmth: Warmth, prompt_tokens: int) -> int:
    """Return the tokens of a prompt that `tier` reads from its cache."""
    if warmth.age_seconds > tier.cache_seconds or prompt_tokens < tier.min_cached_tokens:
        return 0
    return min(warmth.tokens, prompt_tokens)


def turn_usd(tier: SessionTier, warm: float, prompt_tokens: float, growth: float, output: float, steps: float) -> float:
    """Return the expected US dollars of a turn on `tier` whose first step has `prompt_tokens`, `warm` of them cached,
    and each later one `growth` more. `steps`: expected, 1 at least; their number is spread as a geometric one."""
    later = steps - 1.0
    total = steps * prompt_tokens + growth * later * steps
    if tier.cache_seconds <= 0 or prompt_tokens + growth * later < tier.min_cached_tokens:
        paid = tier.input_usd * total
    else:
        written = prompt_tokens - min(warm, prompt_tokens) + growth * later
        paid = tier.write_usd * written + tier.read_usd * (total - written)
    return (paid + tier.output_usd * tier.output_ratio * output * steps) / 1e6


def kept_share(tier: SessionTier, age_seconds: float, gap_seconds: float) -> float:
    """Return P(a cached prefix of this age outlasts a pause whose median is `gap_seconds`)."""
    left = tier.cache_seconds - age_seconds
    if left <= 0:
        return 0.0
    return _NORMAL.cdf((log(left) - log(max(1.0, gap_seconds))) / GAP_SPREAD)


def rest_usd(view: SessionView, tiers: Sequence[SessionTier], adequate: Sequence[bool]) -> tuple[float, ...]:
    """Return the expected US dollars of the rest of the session with this turn on each of `tiers`; infinite where the
    prompt does not fit.

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
        if turns and usd != float("inf"):
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
    if prompt_tokens + view.output_tokens * tier.output_ratio > tier.context_tokens:
        return float("inf")
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
        best = min(usd[least:])
        # A prompt that fits no tier ends the session.
        expected += probability * best if probability and best != float("inf") else 0.0
    return expected


def long_write_pays(tier: SessionTier, gap_seconds: float, prompt_tokens: float, new_tokens: float) -> bool:
    """Return whether cache writes that last an hour are expected to cost a session less than those of
    `tier.cache_seconds`.

    A turn writes `new_tokens` dearer; before the next one, after a pause whose median is `gap_seconds`, all
    `prompt_tokens` would have to be written again where only the long write outlasts it.
    """
    lasting = _NORMAL.cdf((log(LONG_CACHE_SECONDS) - log(max(1.0, gap_seconds))) / GAP_SPREAD)
    saved = (lasting - kept_share(tier, 0.0, gap_seconds)) * (tier.write_usd - tier.read_usd)
    return saved * prompt_tokens > (tier.long_write_usd - tier.write_usd) * new_tokens
