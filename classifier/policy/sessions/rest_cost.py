"""What the rest of a session is expected to cost from each tier on, with the caches of providers.

A turn's first step reads what its tier's cache holds and writes the rest; each later step reads what the step before
wrote. The next turn then runs where it is cheapest, by the warmth that this one leaves: that is the price of a switch
and of the likely switch back.
"""

from collections.abc import Sequence
from functools import cache

from classifier.policy.sessions.session_view import SessionTier, SessionView, Warmth

COLD = Warmth()
MOST_TURNS_AHEAD = 2
"""Turns after this one of which each choice is weighed; more turns cost as the last of them."""


def warm_tokens(tier: SessionTier, warmth: Warmth, prompt_tokens: int) -> int:
    """Return the tokens of a prompt that `tier` reads from its cache."""
    if warmth.age_seconds > tier.cache_seconds or prompt_tokens < tier.min_cached_tokens:
        return 0
    return min(warmth.tokens, prompt_tokens)


def turn_usd(tier: SessionTier, warm: int, prompt_tokens: float, growth: float, output: float, steps: float) -> float:
    """Return the US dollars of `steps` steps on `tier`, of which the first has `prompt_tokens`, `warm` of them cached,
    and each later one `growth` more."""
    later = max(0.0, steps - 1.0)
    total = steps * prompt_tokens + growth * later * steps / 2.0
    if tier.cache_seconds <= 0 or prompt_tokens + growth * later < tier.min_cached_tokens:
        paid = tier.input_usd * total
    else:
        written = max(0.0, prompt_tokens - warm) * min(1.0, steps) + growth * later
        paid = tier.write_usd * written + tier.read_usd * max(0.0, total - written)
    return (paid + tier.output_usd * tier.output_ratio * output * steps) / 1e6


def rest_usd(view: SessionView, tiers: Sequence[SessionTier], adequate: Sequence[bool]) -> tuple[float, ...]:
    """Return the expected US dollars of the rest of the session with this turn on each of `tiers`.

    `adequate[k-1]`: whether tier k reaches the quality wanted now; turns after this one want it too, unless
    `view.next_wanted` says more.
    """
    return _Rest(view, tiers, adequate).costs()


class _Rest:
    """The expectation for one view."""

    def __init__(self, view: SessionView, tiers: Sequence[SessionTier], adequate: Sequence[bool]) -> None:
        self.view, self.tiers = view, tiers
        self.steps = max(1.0, min(view.turn_steps, max(1.0, view.remaining_steps)))
        # What is left after this turn is as many turns of equal length.
        self.turns = max(0.0, view.remaining_steps - self.steps) / self.steps
        wanted = view.next_wanted
        if not wanted:
            least = next((k for k, reaches in enumerate(adequate) if reaches), len(tiers) - 1)
            wanted = tuple(float(k == least) for k in range(len(tiers)))
        total = sum(wanted) or 1.0
        self.wanted = [(k, share / total) for k, share in enumerate(wanted) if share > 0]

    def costs(self) -> tuple[float, ...]:
        held = tuple(
            warm_tokens(tier, warmth, self.view.prompt_tokens)
            for tier, warmth in zip(self.tiers, self.view.warmth, strict=True)
        )
        ages = tuple(warmth.age_seconds for warmth in self.view.warmth)
        later = cache(self._later)
        return tuple(
            self._turn(k, held[k], 0) + later(*self._left(k, held, ages, 0), self.turns, 1)
            for k in range(len(self.tiers))
        )

    def _prompt(self, turn: int) -> float:
        return self.view.prompt_tokens + turn * self.steps * self.view.growth_tokens

    def _turn(self, k: int, warm: int, turn: int) -> float:
        tier, view, prompt = self.tiers[k], self.view, self._prompt(turn)
        if prompt + view.output_tokens * tier.output_ratio > tier.context_tokens:
            return float("inf")
        return turn_usd(tier, warm, prompt, view.growth_tokens, view.output_tokens, self.steps)

    def _left(
        self, k: int, held: tuple[int, ...], ages: tuple[float, ...], turn: int
    ) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """What each cache holds when the next turn begins, if this one runs on tier `k`."""
        end = int(self._prompt(turn) + (self.steps - 1) * self.view.growth_tokens)
        ages = tuple(self.view.gap_seconds if j == k else age + self.view.gap_seconds for j, age in enumerate(ages))
        filled = (end if j == k else tokens for j, tokens in enumerate(held))
        kept = tuple(
            tokens if age <= tier.cache_seconds and end >= tier.min_cached_tokens else 0
            for tokens, age, tier in zip(filled, ages, self.tiers, strict=True)
        )
        return kept, ages

    def _later(self, held: tuple[int, ...], ages: tuple[float, ...], turns: float, turn: int) -> float:
        """Expected US dollars of the turns after this one; `turns` of them are expected. A session of fewer than one
        turn more has one with that probability."""
        if turns <= 0:
            return 0.0
        share = min(1.0, turns)
        is_last = turn >= MOST_TURNS_AHEAD
        weight = max(share, turns) if is_last else share
        expected = 0.0
        for least, probability in self.wanted:
            best = float("inf")
            for k in range(least, len(self.tiers)):
                usd = self._turn(k, held[k], turn)
                if not is_last and usd < best:
                    usd += self._later(*self._left(k, held, ages, turn), turns - 1.0, turn + 1)
                best = min(best, usd)
            expected += probability * (0.0 if best == float("inf") else best)
        return weight * expected
