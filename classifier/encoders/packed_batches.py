"""Form batches of prompts by a token budget, without padding."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.intp]


class Run(NamedTuple):
    """Sequences of equal length that are adjacent in a packed batch, from token `start` on."""

    start: int
    rows: int
    length: int

    @property
    def end(self) -> int:
        return self.start + self.rows * self.length


def batches_by_length(lengths: Sequence[int], budget: int) -> list[Indices]:
    """Return all rows in batches of at most `budget` tokens, shortest first; a longer row is a batch of its own.

    Neighbours have similar lengths, so that attention finds long runs of equal ones.
    """
    return cut(np.argsort(np.asarray(lengths), kind="stable"), lengths, budget)


def shuffled_batches(lengths: Sequence[int], budget: int, seed: Sequence[int]) -> list[Indices]:
    """Return the same batches in random order, for training; equal seeds give equal batches."""
    return cut(np.random.default_rng(list(seed)).permutation(len(lengths)), lengths, budget)


def cut(order: Indices, lengths: Sequence[int], budget: int) -> list[Indices]:
    """Split `order` into batches of at most `budget` tokens each."""
    batches: list[Indices] = []
    start = tokens = 0
    for place, row in enumerate(order):
        if place > start and tokens + lengths[row] > budget:
            batches.append(order[start:place])
            start, tokens = place, 0
        tokens += lengths[row]
    if len(order):
        batches.append(order[start:])
    return batches


def runs(sorted_lengths: Sequence[int]) -> list[Run]:
    """Group adjacent sequences, sorted by length, into runs of equal length."""
    found: list[Run] = []
    start = 0
    for length, count in zip(*np.unique(np.asarray(sorted_lengths, np.intp), return_counts=True), strict=True):
        found.append(Run(start, int(count), int(length)))
        start = found[-1].end
    return found
