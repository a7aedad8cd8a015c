"""Simulated sessions under policies, and the exact optimum in hindsight: the product's rule beside the usual ones."""

from collections.abc import Callable, Sequence
from functools import cache

import msgspec
import numpy as np

from benchmarks.sessions.families import FAMILIES, MOST_TURNS, Family, draw_session
from benchmarks.sessions.provider_cache import CachedPrefix, SimulatedTurn, after_evictions, run_turn, turn_seconds
from classifier.policy.sessions.choose import choose_at_boundary
from classifier.policy.sessions.session_view import SessionView, Warmth

# Before anything is learned: steps of a turn, of which two are expected, and seconds of a pause.
UNLEARNED_STEPS, UNLEARNED_GAP = 6.0, 60.0


class Boundary(msgspec.Struct, frozen=True):
    """What a policy sees before a turn: the tier of the last one (an index; None before the first), the cheapest one
    that is good enough now, what it believes of the caches, the prompt's tokens and the number of turns before it."""

    current: int | None
    wanted: int
    warmth: tuple[Warmth, ...]
    prompt_tokens: int
    turns: int


Policy = Callable[[Boundary], int]


class PolicyRow(msgspec.Struct, frozen=True):
    """`above_optimum`: the summed cost of the sessions over the summed optimum's, less 1. `below_wanted`: share of
    turns on a tier that is not good enough for them. `moves`: of a session, on average."""

    above_optimum: float
    below_wanted: float
    moves: float


class FamilyRow(msgspec.Struct, frozen=True):
    """The policies on one family, the US dollars of whose `sessions` cost `optimum_usd` at best."""

    name: str
    sessions: int
    optimum_usd: float
    policies: dict[str, PolicyRow]


def policies_of(family: Family) -> dict[str, Policy]:
    """Return the policies by name. Those of LiteLLM: its auto router classifies each request without regard to caches,
    and with session pinning keeps the first choice; its prompt caching check binds a prompt to a deployment of one
    model, which a choice between models does not concern."""
    return {
        "rest of the session": _product(family, is_learned=True),
        "the same, nothing known": _product(family, is_learned=False),
        "cheapest each turn": lambda at: at.wanted,
        "never move": lambda at: at.wanted if at.current is None else at.current,
        "never move down": lambda at: max(at.wanted, at.current or 0),
        "always strongest": lambda _: len(family.tiers) - 1,
    }


def _product(family: Family, *, is_learned: bool) -> Policy:
    """The product's own rule, which knows nothing of the session's future: with the family's averages, or, before
    anything is learned, with fixed ones."""
    turns_left = [_turns_after(family, turn) for turn in range(MOST_TURNS)]

    def choose(at: Boundary) -> int:
        new = (1 - family.keeps) * np.array(family.first_wanted)
        new[at.wanted] += family.keeps
        turn_steps = family.turn_steps if is_learned else UNLEARNED_STEPS
        view = SessionView(
            current=None if at.current is None else at.current + 1,
            warmth=at.warmth,
            prompt_tokens=at.prompt_tokens,
            growth_tokens=family.growth,
            output_tokens=family.output,
            turn_steps=turn_steps,
            remaining_steps=turn_steps * (1 + turns_left[at.turns]) if is_learned else 2 * turn_steps,
            gap_seconds=family.gap_seconds if is_learned else UNLEARNED_GAP,
            next_wanted=tuple(new.tolist()) if is_learned else (),
        )
        p_ok = [float(k >= at.wanted) for k in range(len(family.tiers))]
        return choose_at_boundary(view, family.tiers, p_ok, 0.5).tier - 1

    return choose


def _turns_after(family: Family, turn: int) -> float:
    """Expected turns after the one of this number, counted from 0."""
    return sum(family.another**further for further in range(1, MOST_TURNS - turn))


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
    """Return the policies on `sessions` sessions of each family."""
    rows = []
    for place, family in enumerate(families):
        rng = np.random.default_rng([seed, place])
        drawn = [draw_session(family, rng) for _ in range(sessions)]
        best = sum(optimum(family, turns) for turns in drawn)
        policies = {name: _row(family, drawn, policy, best) for name, policy in policies_of(family).items()}
        rows.append(FamilyRow(family.name, sessions, best, policies))
    return rows


def _row(family: Family, drawn: Sequence[Sequence[SimulatedTurn]], policy: Policy, best: float) -> PolicyRow:
    usd, below, turns, moves = 0.0, 0, 0, 0
    for session in drawn:
        paid, tiers = played(family, session, policy)
        usd += paid
        turns += len(tiers)
        below += sum(tier < turn.wanted for tier, turn in zip(tiers, session, strict=True))
        moves += sum(one != other for one, other in zip(tiers, tiers[1:], strict=False))
    return PolicyRow(usd / best - 1, below / turns, moves / len(drawn))
