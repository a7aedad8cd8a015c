"""Trouble inside a tool loop: its signs, and whether they move the session, by a mode and a randomised share.

On recorded runs such signs tell failures from successes weakly (docs/results/sessions.md), so that the default only
observes them. A randomised share of moves, each with its propensity, is what can show their worth.
"""

from typing import Literal

import msgspec

from classifier.policy.sessions.session_view import LoopCounters

TroubleMode = Literal["off", "observe", "act"]
MOST_BAD_CALLS = 3
"""A tier that forms so many calls in a row that no tool can read goes no further in the loop."""
TROUBLE_FROM = 5
"""The first step of a loop whose signs count."""
ERROR_SHARE, MOST_REPEATS, FAILED_EXIT_SHARE = 0.5, 3, 0.5
"""Errors in such a share of steps, so many repeated calls, or failed exits in such a share of the known ones (of which
there are at least `TROUBLE_FROM`)."""


class TroubleMove(msgspec.Struct, frozen=True):
    """`signs`: in words. `moves`: whether the next step goes one tier up. `propensity`: the probability with which this
    was drawn; 1 where nothing was."""

    signs: str
    moves: bool
    propensity: float


def trouble_signs(counters: LoopCounters) -> str:
    """Return in words why a loop seems to be in trouble; "" where it does not."""
    if counters.steps < TROUBLE_FROM:
        return ""
    if counters.errors >= ERROR_SHARE * counters.steps:
        return f"{counters.errors} errors in {counters.steps} steps"
    if counters.repeats >= MOST_REPEATS:
        return f"{counters.repeats} repeated calls in {counters.steps} steps"
    if counters.exits >= TROUBLE_FROM and counters.failed_exits >= FAILED_EXIT_SHARE * counters.exits:
        return f"{counters.failed_exits} of {counters.exits} exit codes failed"
    return ""


def trouble_move(
    mode: TroubleMode, counters: LoopCounters, consents: bool, share: float, draw: float
) -> TroubleMove | None:
    """Return what the trouble of a loop does; None without signs, or with `mode` off.

    `observe` moves the `share` of consenting sessions: those whose `draw` (uniform in [0, 1), the session's own, so
    that each of its steps draws alike) is below it. `act` moves all.
    """
    if mode == "off" or not (signs := trouble_signs(counters)):
        return None
    if mode == "act":
        return TroubleMove(signs, True, 1.0)
    if not consents or share <= 0:
        return TroubleMove(signs, False, 1.0)
    moves = draw < share
    return TroubleMove(signs, moves, share if moves else 1.0 - share)
