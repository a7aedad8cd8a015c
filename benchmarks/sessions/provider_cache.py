"""A provider's prompt cache, simulated step by step: lifetime, least length, write premium and eviction."""

from collections.abc import Sequence

import msgspec

from classifier.policy.sessions import SessionTier, Warmth

STEP_SECONDS = 5.0
"""Median pause between the steps of a loop in recorded runs."""


class CachedPrefix(msgspec.Struct, frozen=True):
    """`tokens` of a session that a tier has cached, last used `at` seconds after the session's start."""

    tokens: int = 0
    at: float = 0.0

    def warmth(self, now: float) -> Warmth:
        """Return what the gateway knows of it at `now`."""
        return Warmth(self.tokens, now - self.at)


class SimulatedTurn(msgspec.Struct, frozen=True):
    """A turn of a session: `steps` whose prompts grow by `growth` tokens each and whose answers have `output` tokens,
    after a pause of `gap` seconds. `wanted`: index of the cheapest tier that is good enough for it. `evicted`: indices
    of the tiers whose caches were emptied in the pause."""

    steps: int
    growth: int
    output: int
    gap: float
    wanted: int
    evicted: tuple[int, ...] = ()


def run_turn(
    tier: SessionTier, prefix: CachedPrefix, turn: SimulatedTurn, prompt_tokens: int, now: float
) -> tuple[float, CachedPrefix]:
    """Return the US dollars of `turn` on `tier`, of which the first step has `prompt_tokens` at `now`, and what its
    cache holds after it."""
    usd = 0.0
    for _ in range(turn.steps):
        caches = tier.cache_seconds > 0 and prompt_tokens >= tier.min_cached_tokens
        held = min(prefix.tokens, prompt_tokens) if caches and now - prefix.at <= tier.cache_seconds else 0
        rate = tier.write_usd if caches else tier.input_usd
        usd += held * tier.read_usd + (prompt_tokens - held) * rate + turn.output * tier.output_ratio * tier.output_usd
        if caches:
            prefix = CachedPrefix(prompt_tokens, now)
        prompt_tokens += turn.growth
        now += STEP_SECONDS
    return usd / 1e6, prefix


def turn_seconds(turn: SimulatedTurn) -> float:
    """Return how long the turn runs."""
    return turn.steps * STEP_SECONDS


def after_evictions(caches: Sequence[CachedPrefix], turn: SimulatedTurn) -> tuple[CachedPrefix, ...]:
    """Return the caches as `turn` meets them."""
    return tuple(CachedPrefix() if k in turn.evicted else prefix for k, prefix in enumerate(caches))
