"""Policies of where a session's turns run: the product's own rule, and the usual ones."""

from collections.abc import Callable
from typing import Literal

import msgspec
import numpy as np

from benchmarks.sessions.families import MOST_TURNS, Family
from benchmarks.sessions.rest_of_session import SessionView, least_rest
from classifier.policy.sessions import PRIOR_STEPS, Warmth

Knows = Literal["all", "turns", "nothing"]
UNLEARNED_GROWTH = 1000
"""Tokens of growth from step to step that the gateway expects of every session."""


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
        "rest of the session": _product(family, "all"),
        "this turn alone": _product(family, "turns"),
        "this turn, not learned": _product(family, "nothing"),
        "cheapest each turn": lambda at: at.wanted,
        "never move": lambda at: at.wanted if at.current is None else at.current,
        "never move down": lambda at: max(at.wanted, at.current or 0),
        "always strongest": lambda _: len(family.tiers) - 1,
    }


def _product(family: Family, knows: Knows) -> Policy:
    """The product's own rule, which never knows a session's future.

    It knows `all` averages of the family; those of its `turns`' lengths, as the gateway learns them, with no turn after
    this one expected; or `nothing`, before any session ended.
    """
    turns_left = [_turns_after(family, turn) if knows == "all" else 0.0 for turn in range(MOST_TURNS)]
    turn_steps = PRIOR_STEPS if knows == "nothing" else family.turn_steps

    def choose(at: Boundary) -> int:
        new = (1 - family.keeps) * np.array(family.first_wanted)
        new[at.wanted] += family.keeps
        view = SessionView(
            current=None if at.current is None else at.current + 1,
            warmth=at.warmth,
            prompt_tokens=at.prompt_tokens,
            growth_tokens=family.growth if knows == "all" else UNLEARNED_GROWTH,
            output_tokens=family.output,
            turn_steps=turn_steps,
            remaining_steps=turn_steps * (1 + turns_left[at.turns]),
            gap_seconds=family.gap_seconds,
            next_wanted=tuple(new.tolist()),
        )
        return least_rest(view, family.tiers, [k >= at.wanted for k in range(len(family.tiers))])

    return choose


def _turns_after(family: Family, turn: int) -> float:
    """Expected turns after the one of this number, counted from 0."""
    return sum(family.another**further for further in range(1, MOST_TURNS - turn))
