"""The exact expected cost of policies, and of the best one, on small cases: dynamic programming without hindsight.

A small case is a family of at most `SMALL_TURNS` turns whose lengths and pauses take two values each and whose caches
are not emptied early, so that every state can be visited. The best policy knows the process, as little of the session's
future as any other, and chooses at the same boundaries among the same tiers.
"""

from collections.abc import Iterator
from functools import cache
from math import log
from statistics import NormalDist

import msgspec

from benchmarks.sessions.families import Family
from benchmarks.sessions.policies import Boundary, Policy
from benchmarks.sessions.provider_cache import CachedPrefix, SimulatedTurn, run_turn, turn_seconds

SMALL_TURNS = 4
SHORT_GAP, LONG_GAP = 30.0, 1200.0


class SmallState(msgspec.Struct, frozen=True):
    """Before a turn: its number from 0, the tier that it wants at least, the last turn's, the prompt's tokens, and what
    each cache holds of it, its `at` being minus its age."""

    number: int
    wanted: int
    current: int | None
    prompt: int
    caches: tuple[CachedPrefix, ...]


def first_states(family: Family) -> list[tuple[float, SmallState]]:
    """Return how sessions begin, with probabilities."""
    empty = (CachedPrefix(),) * len(family.tiers)
    return [(p, SmallState(0, k, None, family.start_tokens, empty)) for k, p in enumerate(family.first_wanted)]


def step_counts(family: Family) -> tuple[tuple[float, int], ...]:
    """Return the two lengths of a turn with probabilities; their mean is the family's, to a step."""
    return (2 / 3, max(1, round(family.turn_steps / 2))), (1 / 3, max(1, round(2 * family.turn_steps)))


def pauses(family: Family) -> tuple[tuple[float, float], ...]:
    """Return the two pauses with probabilities: the long one stands for those above five minutes."""
    short = NormalDist().cdf((log(300) - log(family.gap_seconds)) / family.gap_spread)
    return (short, SHORT_GAP), (1 - short, LONG_GAP)


class SmallCase:
    """The expected costs of one family's small case."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self._steps, self._pauses = step_counts(family), pauses(family)
        self._best = cache(self._least)

    def optimum(self) -> float:
        """Return the expected US dollars of a session under the best policy."""
        return sum(p * self._best(state) for p, state in first_states(self.family))

    def cost(self, policy: Policy) -> float:
        """Return the expected US dollars of a session under `policy`."""

        @cache
        def expected(state: SmallState) -> float:
            seen = Boundary(
                state.current, state.wanted, tuple(prefix.warmth(0.0) for prefix in state.caches), state.prompt,
                state.number,
            )  # fmt: skip
            return sum(p * (usd + (expected(after) if after else 0.0)) for p, usd, after in self._after(
                state, policy(seen)))  # fmt: skip

        return sum(p * expected(state) for p, state in first_states(self.family))

    def _least(self, state: SmallState) -> float:
        return min(
            sum(p * (usd + (self._best(after) if after else 0.0)) for p, usd, after in self._after(state, tier))
            for tier in range(state.wanted, len(self.family.tiers))
        )

    def _after(self, state: SmallState, tier: int) -> Iterator[tuple[float, float, SmallState | None]]:
        """What follows if the turn runs on `tier`: probability, US dollars of the turn, and the state before the next
        one; None: the session ends."""
        family = self.family
        another = family.another if state.number + 1 < SMALL_TURNS else 0.0
        for p_steps, steps in self._steps:
            turn = SimulatedTurn(steps, family.growth, family.output, 0.0, state.wanted)
            usd, prefix = run_turn(family.tiers[tier], state.caches[tier], turn, state.prompt, 0.0)
            yield p_steps * (1 - another), usd, None
            if not another:
                continue
            caches = (*state.caches[:tier], prefix, *state.caches[tier + 1 :])
            prompt = state.prompt + steps * family.growth
            for p_gap, gap in self._pauses:
                kept = self._aged(caches, turn_seconds(turn) + gap)
                for wanted, p_new in enumerate(family.first_wanted):
                    p = (1 - family.keeps) * p_new + family.keeps * (wanted == state.wanted)
                    after = SmallState(state.number + 1, wanted, tier, prompt, kept)
                    yield p_steps * another * p_gap * p, usd, after

    def _aged(self, caches: tuple[CachedPrefix, ...], seconds: float) -> tuple[CachedPrefix, ...]:
        aged = (CachedPrefix(prefix.tokens, prefix.at - seconds) for prefix in caches)
        return tuple(
            prefix if prefix.tokens and -prefix.at <= tier.cache_seconds else CachedPrefix()
            for prefix, tier in zip(aged, self.family.tiers, strict=True)
        )
