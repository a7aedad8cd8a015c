"""Simulated sessions under policies, and the exact optimum in hindsight: the product's rule and the usual ones."""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import msgspec
import numpy as np

from benchmarks.sessions.exact import SmallCase
from benchmarks.sessions.families import FAMILIES, Family, draw_session
from benchmarks.sessions.policies import Boundary, Policy, policies_of
from benchmarks.sessions.provider_cache import CachedPrefix, SimulatedTurn, after_evictions, run_turn, turn_seconds


class PolicyRow(msgspec.Struct, frozen=True):
    """`above_exact`: the expected cost over that of the best policy without hindsight, less 1, on the family's small
    case. `above_hindsight`: the same of summed costs over the optimum that knows each session's future, on drawn
    sessions. `below_wanted`: share of their turns on a tier that is not good enough for them. `moves`: of a session, on
    average."""

    above_exact: float
    above_hindsight: float
    below_wanted: float
    moves: float


class FamilyRow(msgspec.Struct, frozen=True):
    """The policies on one family. US dollars: `exact_usd`, expected at best of a session of its small case;
    `hindsight_usd`, of its drawn sessions at best."""

    name: str
    exact_usd: float
    hindsight_usd: float
    policies: dict[str, PolicyRow]


def played(family: Family, turns: Sequence[SimulatedTurn], policy: Policy) -> tuple[float, list[int]]:
    """Return the US dollars of a session under `policy`, and the tier of each turn."""
    caches = (CachedPrefix(),) * len(family.tiers)
    believed = list(caches)
    prompt, now, usd = family.start_tokens, 0.0, 0.0
    tiers: list[int] = []
    for number, turn in enumerate(turns):
        now += turn.gap
        caches = after_evictions(caches, turn)
        # An eviction does not show before the next answer's usage.
        warmth = tuple(prefix.warmth(now) for prefix in believed)
        tier = policy(Boundary(tiers[-1] if tiers else None, turn.wanted, warmth, prompt, number))
        paid, prefix = run_turn(family.tiers[tier], caches[tier], turn, prompt, now)
        caches = (*caches[:tier], prefix, *caches[tier + 1 :])
        believed[tier] = prefix
        usd, now, prompt = usd + paid, now + turn_seconds(turn), prompt + turn.steps * turn.growth
        tiers.append(tier)
    return usd, tiers


def optimum(family: Family, turns: Sequence[SimulatedTurn]) -> float:
    """Return the least US dollars of the session by dynamic programming over the tiers of its turns.

    Each turn runs on a tier that is good enough for it. The optimum knows all turns, pauses and evictions beforehand,
    so that no policy costs less at this quality.
    """
    starts: list[tuple[int, float]] = []
    prompt, now = family.start_tokens, 0.0
    for turn in turns:
        now += turn.gap
        starts.append((prompt, now))
        prompt, now = prompt + turn.steps * turn.growth, now + turn_seconds(turn)

    @cache
    def least(number: int, caches: tuple[CachedPrefix, ...]) -> float:
        if number == len(turns):
            return 0.0
        turn, (prompt_tokens, at) = turns[number], starts[number]
        kept = after_evictions(caches, turn)
        best = float("inf")
        for tier in range(turn.wanted, len(family.tiers)):
            usd, prefix = run_turn(family.tiers[tier], kept[tier], turn, prompt_tokens, at)
            best = min(best, usd + least(number + 1, (*kept[:tier], prefix, *kept[tier + 1 :])))
        return best

    return least(0, (CachedPrefix(),) * len(family.tiers))


def compare(sessions: int, seed: int, families: Sequence[Family] = FAMILIES) -> list[FamilyRow]:
    """Return the policies on `sessions` sessions of each family, and on its small case."""
    rows = []
    for place, family in enumerate(families):
        rng = np.random.default_rng([seed, place])
        drawn = [draw_session(family, rng) for _ in range(sessions)]
        best = sum(optimum(family, turns) for turns in drawn)
        case = SmallCase(family)
        exact = case.optimum()
        policies = {
            name: _row(family, drawn, policy, best, case.cost(policy) / exact - 1)
            for name, policy in policies_of(family).items()
        }
        rows.append(FamilyRow(family.name, exact, best, policies))
    return rows


def _row(
    family: Family, drawn: Sequence[Sequence[SimulatedTurn]], policy: Policy, best: float, above_exact: float
) -> PolicyRow:
    usd, below, turns, moves = 0.0, 0, 0, 0
    for session in drawn:
        paid, tiers = played(family, session, policy)
        usd += paid
        turns += len(tiers)
        below += sum(tier < turn.wanted for tier, turn in zip(tiers, session, strict=True))
        moves += sum(one != other for one, other in pairwise(tiers))
    return PolicyRow(above_exact, usd / best - 1, below / turns, moves / len(drawn))
