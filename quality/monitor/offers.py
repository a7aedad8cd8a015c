"""What the monitor has still to decide on: finished requests, bounded in number and bytes, and calls that failed."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from quality.records.record import Record
from quality.verification.comparison import VerifiedComparison
from quality.verification.job import Turn
from quality.verification.sampling import Purpose, SamplingSettings

# Of the newest drawn answers, whose results may still come.
_MOST_CALLS = 2000
# Of all turns that wait for a decision.
MOST_BYTES = 64 << 20

ToCompare = Callable[[Purpose], VerifiedComparison | None]
"""Return the cheap tiers whose answers the verification of a request compares; None for none."""


def compare_none(purpose: Purpose) -> None:
    """Compare no answers."""
    return


class Offer(NamedTuple):
    """A finished request to decide on. `sampling`: under whose ceilings it was let in; None for the current ones."""

    record: Record
    to_compare: ToCompare = compare_none
    turn: Turn | None = None
    sampling: SamplingSettings | None = None

    @property
    def num_bytes(self) -> int:
        """About what its turn holds in memory; texts alone are held by its record."""
        return 0 if self.turn is None else self.turn.num_bytes


class FailedCall(NamedTuple):
    """An offered answer of which a call failed."""

    request_id: str


class Offers:
    """A queue, first in, first out. `most`: of requests."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: deque[tuple[Offer | FailedCall, int]] = deque()
        self._num_bytes = 0
        # The request of each call, by the caller's key and the call's id.
        self._calls: dict[tuple[str | None, str], str] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, offer: Offer) -> bool:
        """Let `offer` wait; False if too many wait, or too much."""
        size = offer.num_bytes
        if len(self._waiting) >= self._most or (self._num_bytes and self._num_bytes + size > MOST_BYTES):
            return False
        self._waiting.append((offer, size))
        self._num_bytes += size
        for call in offer.turn.calls if offer.turn is not None else ():
            self._calls[offer.record.key_id, call.id] = offer.record.request_id
        while len(self._calls) > _MOST_CALLS:
            del self._calls[next(iter(self._calls))]
        return True

    def calls_failed(self, key_id: str | None, call_ids: Sequence[str]) -> None:
        """Let it be noted, after the decision on the answer that made them, that these calls failed."""
        for call_id in call_ids:
            request_id = self._calls.pop((key_id, call_id), None)
            if request_id is not None:
                self._waiting.append((FailedCall(request_id), 0))

    def first(self) -> Offer | FailedCall | None:
        """Return what has waited longest; it goes on waiting until `done`."""
        return self._waiting[0][0] if self._waiting else None

    def done(self) -> None:
        """Remove the first."""
        self._num_bytes -= self._waiting.popleft()[1]

    def clear(self) -> None:
        """Forget all that wait."""
        self._waiting.clear()
        self._num_bytes = 0
