"""The waiting sequences in service order, which ageing changes over time."""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator

from inference_core.errors import IntegrityError
from inference_core.scheduling.priority import seconds_to_next_lift, service_order
from inference_core.scheduling.sequence import Sequence

QueueEntry = tuple[int, float, int, float, int, Sequence]


class WaitingQueue:
    """Sorted by `service_order`; a step in which no sequence ages costs nothing, however many wait.

    `lift` raises the class of sequences that have waited long enough. Each has one entry in `_order` and one in
    `_lifts`, which is sorted by the time of the next lift. The lists are short enough to insert into.
    """

    def __init__(self, ageing_seconds: float) -> None:
        self._ageing_seconds = ageing_seconds
        self._order: list[QueueEntry] = []
        self._lifts: list[tuple[float, int, Sequence]] = []
        self._entries: dict[int, tuple[QueueEntry, float]] = {}
        self._priorities: Counter[int] = Counter()
        self._by_id: dict[str, Sequence] = {}

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[str]:
        """Ids, in the order of joining the queue."""
        return iter(self._by_id)

    def values(self) -> Iterable[Sequence]:
        """The sequences, in the order of joining the queue."""
        return self._by_id.values()

    def oldest_wait(self, now: float) -> float:
        """Seconds since the first of the sequences joined the queue; there is one."""
        return now - next(iter(self._by_id.values())).queued_since

    @property
    def best_priority(self) -> int | None:
        """The best priority class in the queue, before ageing; None if it is empty."""
        return min(self._priorities, default=None)

    @property
    def best_class(self) -> int | None:
        """The best priority class in the queue, as aged by the last `lift`; None if it is empty."""
        return self._order[0][0] if self._order else None

    def entries(self) -> list[QueueEntry]:
        """(*`service_order`, sequence), best first: a copy."""
        return self._order.copy()

    def push(self, sequence: Sequence, now: float) -> None:
        self._by_id[sequence.id] = sequence
        self._file(sequence, now)
        self._priorities[sequence.priority] += 1

    def remove(self, sequence: Sequence) -> None:
        del self._by_id[sequence.id]
        self._unfile(sequence)
        self._priorities[sequence.priority] -= 1
        if not self._priorities[sequence.priority]:
            del self._priorities[sequence.priority]

    def lift(self, now: float, ageing_seconds: float) -> None:
        """Update the order for `now` and for a changed `ageing_seconds`."""
        if ageing_seconds != self._ageing_seconds:
            self._ageing_seconds = ageing_seconds
            due = [entry[-1] for entry in self._order]
        elif self._lifts and self._lifts[0][0] <= now:
            due = [sequence for _, _, sequence in self._lifts[: bisect_left(self._lifts, (now, 1 << 63))]]
        else:
            return
        for sequence in due:
            self._unfile(sequence)
            self._file(sequence, now)

    def check_integrity(self) -> None:
        """Check that each sequence has one entry, in order, and one next lift. Raises `IntegrityError`."""
        numbers = {s.number for s in self._by_id.values()}
        queued = [entry[-1].number for entry in self._order]
        if set(queued) != numbers or len(queued) != len(numbers) or self._entries.keys() != numbers:
            raise IntegrityError(f"{queued} are queued, but {numbers} wait")
        if self._order != sorted(self._order) or self._lifts != sorted(self._lifts):
            raise IntegrityError(f"the queue is out of order: {queued}")
        if {number for _, number, _ in self._lifts} != numbers or len(self._lifts) != len(numbers):
            raise IntegrityError(f"{len(numbers)} wait, but {len(self._lifts)} have a next lift")
        if Counter(entry[-1].priority for entry in self._order) != self._priorities:
            raise IntegrityError(f"{self._priorities} are not the classes that wait")

    def _file(self, sequence: Sequence, now: float) -> None:
        entry = (*service_order(sequence, now, self._ageing_seconds), sequence)
        due = now + seconds_to_next_lift(sequence, now, self._ageing_seconds)
        insort(self._order, entry)
        insort(self._lifts, (due, sequence.number, sequence))
        self._entries[sequence.number] = (entry, due)

    def _unfile(self, sequence: Sequence) -> None:
        entry, due = self._entries.pop(sequence.number)
        del self._order[bisect_left(self._order, entry)]
        del self._lifts[bisect_left(self._lifts, (due, sequence.number, sequence))]
