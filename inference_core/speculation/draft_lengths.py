"""Chooses the draft length of each sequence in a step to maximise throughput (SPEC SD-04, SD-05)."""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import NamedTuple


class Candidate(NamedTuple):
    """A sequence for which up to `most` tokens can be drafted, with its `Acceptance.rates`."""

    first: float
    later: float
    most: int


def draft_lengths(
    candidates: list[Candidate],
    rows: int,
    room: int,
    verify_seconds: Callable[[int], float],
    draft_seconds: Callable[[int], float],
    least_gain: float,
) -> list[int]:
    """Return the tokens to draft for each candidate, at most `room` in all, on top of `rows`, one per sequence.

    Drafts are added by likelihood, so each total has its best choice of drafts; the total with the most expected tokens
    per second is taken if it gains more than `least_gain` (a share) over no drafts.
    `verify_seconds`: of a step of so many rows; `draft_seconds`: of one more token for so many sequences.
    """
    heap = [(-c.first, i) for i, c in enumerate(candidates) if c.most > 0]
    heapify(heap)
    lengths = [0] * len(candidates)
    rounds: list[int] = []
    order: list[int] = []
    tokens, drafting, count = float(rows), 0.0, 0
    best = rows / verify_seconds(rows) * (1 + least_gain)
    while heap and len(order) < room:
        chance, index = heappop(heap)
        depth = lengths[index]
        if depth == len(rounds):
            rounds.append(0)
        drafting += draft_seconds(rounds[depth] + 1) - (draft_seconds(rounds[depth]) if rounds[depth] else 0.0)
        rounds[depth] += 1
        lengths[index] += 1
        order.append(index)
        tokens -= chance
        speed = tokens / (verify_seconds(rows + len(order)) + drafting)
        if speed > best:
            best, count = speed, len(order)
        if lengths[index] < candidates[index].most:
            heappush(heap, (chance * candidates[index].later, index))
    for index in order[count:]:
        lengths[index] -= 1
    return lengths
