"""Policies of where a session's turns run: the product's own rule, and the usual ones."""

from collections.abc import Callable

import msgspec
import numpy as np

from benchmarks.sessions.families import MOST_TURNS, Family
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
