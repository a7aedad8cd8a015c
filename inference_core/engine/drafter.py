"""Drafters propose the next tokens of sequences: their interface, their costs, and prompt lookup.

Measured step time by the number of rows computed is the cost of verifying drafts (SPEC SD-05). Prompt lookup drafts
the tokens that followed an earlier occurrence of the last few tokens (Saxena, "Prompt Lookup Decoding", 2023; as Yang
et al., "Inference with Reference", 2023). It pays if answers copy: summaries, edits, code, quotations (SPEC SD-11).
"""

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import NamedTuple

from inference_core.engine.sequence import Sequence
from inference_core.kv_cache.layout import KVLayout
from inference_core.protocol import Knobs
from inference_core.step_plan import DraftLaw


@dataclass(slots=True, frozen=True)
class Draft:
    """Tokens proposed to follow a sequence."""

    token_ids: list[int]
    laws: list[DraftLaw] | None = None
    """The distribution [vocabulary] that each was drawn from, for rejection sampling; None if the tokens are
    deterministic, or drawn with the model's own random numbers.
    """


class Reach(NamedTuple):
    """How many tokens can be proposed now, and how likely they are accepted."""

    most: int
    promise: int = 0
    """A small class number by expected acceptance, which is measured per class."""


class Drafter(ABC):
    """Proposes continuations of running sequences whose tokens are all known (SPEC SD-12).

    A wrong proposal costs time and never changes the answer. Methods are called between steps, by one thread.
    """

    @abstractmethod
    def reach(self, sequence: Sequence, knobs: Knobs, most: int) -> Reach:
        """Return what could be proposed now, up to `most` tokens. Called in every step, so it must be cheap."""

    @abstractmethod
    def propose(self, wanted: list[tuple[Sequence, int]], knobs: Knobs) -> list[Draft]:
        """Propose up to so many tokens for each of these; a draft may be empty."""

    @abstractmethod
    def seconds(self, sequences: int) -> float:
        """Seconds to propose one more token for so many sequences."""

    @abstractmethod
    def forget(self, sequence: Sequence) -> None:
        """Free what is held for `sequence`, which stops running; it may be unknown."""

    def give_way(self) -> bool:
        """Free all arena memory held; return whether there was any."""
        return False

    def lay_out(self, model: str, layout: KVLayout) -> None:  # noqa: B027  most have no blocks
        """The blocks of `model` have another `layout` from now on; what is held of them is freed."""

    def check_integrity(self) -> None:  # noqa: B027  most hold no memory
        """Raises `IntegrityError` if more or less memory is held than running sequences need."""


class StepCosts:
    """Moving averages of seconds by rows: exact up to 16 rows, rounded to an eighth of an octave above.

    A step is bound by memory first and by arithmetic later, so costs are flat and then rise. Between measurements the
    cost is extrapolated with the slope before (flat if there is none), but no higher than the interpolation, so that
    cheap sizes are tried and then measured. Beyond the largest measurement the mean slope applies; below the smallest
    the cost is unknown. Costs are made monotonic and at most proportional to rows, since other values are noise.
    """

    _WEIGHT = 0.1  # of a new measurement
    _OUTLIER = 3.0  # a measurement counts as at most so many times the known value
    _OUT_OF_PROPORTION = 1.5

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._measured: dict[int, float] = {}
        self._seconds: dict[int, float] = {}

    def observe(self, rows: int, seconds: float, steps: int = 1) -> None:
        """Record that each of `steps` steps of `rows` took `seconds`."""
        rows = _rounded(rows)
        measured = self._measured.get(rows)
        if measured is None:
            index = bisect_left(self._rows, rows)
            if index:
                below = self._rows[index - 1]
                seconds = min(seconds, self._seconds[below] * rows / below * self._OUT_OF_PROPORTION)
            insort(self._rows, rows)
            self._measured[rows] = seconds
        else:
            weight = 1 - (1 - self._WEIGHT) ** steps
            self._measured[rows] = measured + weight * (min(seconds, self._OUTLIER * measured) - measured)
        least = self._measured[self._rows[-1]]
        for known_rows in reversed(self._rows):
            self._seconds[known_rows] = least = min(least, self._measured[known_rows])

    def seconds(self, rows: int) -> float | None:
        """Return the seconds of a step of `rows`; None if none as small was measured."""
        measured_rows = self._rows
        index = bisect_left(measured_rows, rows)
        if index < len(measured_rows) and measured_rows[index] == rows:
            return self._seconds[rows]
        if index == 0:
            return None
        low = measured_rows[index - 1]
        if index < len(measured_rows):
            high = measured_rows[index]
            share = (rows - low) / (high - low)
            between = self._seconds[low] * (1 - share) + self._seconds[high] * share
            return min(between, self._seconds[low] + self._slope_before(index - 1) * (rows - low))
        first, last = self._seconds[measured_rows[0]], self._seconds[low]
        slope = max(0.0, last - first) / (low - measured_rows[0]) if low > measured_rows[0] else 0.0
        return last + slope * (rows - low)

    def _slope_before(self, index: int) -> float:
        """Seconds per row from the measurement before the one at `index` to it; 0 if there is none."""
        if index == 0:
            return 0.0
        before, here = self._rows[index - 1], self._rows[index]
        return (self._seconds[here] - self._seconds[before]) / (here - before)


def _rounded(rows: int) -> int:
    grain = 1 << max(0, rows.bit_length() - 4)
    return rows if rows <= 16 else round(rows / grain) * grain


@dataclass(slots=True)
class _Index:
    """An index of one sequence: where each run of `length` tokens last occurred."""

    length: int
    indexed: int = 0
    """How many tokens of the sequence the index covers."""
    follows: dict[tuple[int, ...], int] = field(default_factory=dict)
    match: int = 0
    """The position after the last run's earlier occurrence."""

    def extend(self, token_ids: list[int]) -> None:
        first, end = max(self.indexed - self.length, 0), len(token_ids)
        new = token_ids[first:]
        runs = zip(*(new[start:] for start in range(self.length)), strict=False)
        self.follows.update(zip(runs, range(first + self.length, end), strict=False))
        self.indexed = end


class PromptLookup(Drafter):
    """Indexes prompt and answer as they grow, so that a proposal costs one look-up at any length."""

    def __init__(self) -> None:
        self._indexes: dict[Sequence, _Index] = {}

    def reach(self, sequence: Sequence, knobs: Knobs, most: int) -> Reach:
        index, token_ids = self._indexes.get(sequence), sequence.token_ids
        if index is None or index.length != knobs.lookup_ngram:
            index = self._indexes[sequence] = _Index(knobs.lookup_ngram)
        if len(token_ids) != index.indexed:
            index.extend(token_ids)
        index.match = index.follows.get(tuple(token_ids[-index.length :]), 0)
        return Reach(most, _promise(token_ids, index.match, index.length)) if index.match else Reach(0)

    def propose(self, wanted: list[tuple[Sequence, int]], knobs: Knobs) -> list[Draft]:
        return [Draft(_continuation(s.token_ids, self._indexes[s].match, count)) for s, count in wanted]

    def seconds(self, sequences: int) -> float:
        return 0.0

    def forget(self, sequence: Sequence) -> None:
        self._indexes.pop(sequence, None)


def _promise(token_ids: list[int], match: int, length: int) -> int:
    """Return the class by the length of the match: copied text matches far back, a common phrase does not."""
    agreed, most, last = length, min(4 * length, match), len(token_ids)
    while agreed < most and token_ids[match - agreed - 1] == token_ids[last - agreed - 1]:
        agreed += 1
    return 0 if agreed < 2 * length else 1 if agreed < 4 * length else 2


def _continuation(token_ids: list[int], start: int, count: int) -> list[int]:
    """Return `count` tokens from `start` on, repeating them periodically past the end of the text."""
    period = len(token_ids) - start
    return [token_ids[start + i % period] for i in range(count)]
