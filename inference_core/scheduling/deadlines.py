"""The first-token deadlines of a model's sequences, sorted, so that the earliest is read in constant time."""

import math
from bisect import bisect_left, insort
from collections.abc import Iterable

from inference_core.errors import IntegrityError
from inference_core.scheduling.sequence import Sequence

Due = tuple[float, int, Sequence]


class Deadlines:
    """Deadlines of the sequences without a first token; strict ones are listed apart (SPEC BS-04)."""

    def __init__(self) -> None:
        self._due: list[Due] = []
        self._strictly_due: list[Due] = []

    @property
    def earliest(self) -> float:
        """The earliest deadline; infinity if there is none."""
        return self._due[0][0] if self._due else math.inf

    def too_late(self, now: float) -> list[Sequence]:
        """Return the sequences whose strict deadline has passed."""
        if not self._strictly_due or self._strictly_due[0][0] >= now:
            return []
        return [sequence for _, _, sequence in self._strictly_due[: bisect_left(self._strictly_due, (now, -1))]]

    def add(self, sequence: Sequence) -> None:
        for dues in self._lists_of(sequence):
            insort(dues, (sequence.deadline, sequence.number, sequence))

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence that has its first token or has ended."""
        for dues in self._lists_of(sequence):
            del dues[bisect_left(dues, (sequence.deadline, sequence.number, sequence))]

    def check_integrity(self, live: Iterable[Sequence]) -> None:
        """Exactly the live sequences without a first token are here. Raises `IntegrityError`."""
        due = sorted((s.deadline, s.number, s) for s in live if s.deadline < math.inf and not s.output_token_ids)
        if due != self._due or [d for d in due if d[2].strict_deadline] != self._strictly_due:
            raise IntegrityError(f"first tokens are due {due}, not {self._due} and strictly {self._strictly_due}")

    def _lists_of(self, sequence: Sequence) -> tuple[list[Due], ...]:
        if sequence.deadline == math.inf:
            return ()
        return (self._due, self._strictly_due) if sequence.strict_deadline else (self._due,)
