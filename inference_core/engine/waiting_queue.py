"""The waiting sequences in service order, which ageing changes over time, and when they may join the running ones.

The two orders behind every decision of the scheduler are total (they end in the sequence's unique number), so the
result is deterministic. Why there is neither starvation nor livelock:

- *Service* orders by (class after ageing, deadline, prompt tokens left, arrival, number): the shortest remaining prompt
  first, which gives the least mean time to the first token (Schrage 1968). Waiting or prefilling for `ageing_seconds`
  lifts a sequence by one class, without a floor, so only finitely many later arrivals can be served before it.
- *Preemption* orders by (held class, tokens computed, number), worst first. The best holder is never preempted, and
  the others free the memory that it needs, so it always advances.
- A waiting sequence preempts only holders of a class strictly worse than its own priority *without* ageing. The
  reverse preemption is then impossible, so a chain of preemptions climbs the classes and ends.

Classes beyond `LAST_CLASS` are idle work: it runs only while no model of the core has other work. A step is planned
without it as soon as there is some; then it waits, and ages as all do, so that a core that is never idle gets to it
after `sequence.IDLE_LIFTS` lifts.

Continuous batching (Yu et al., "Orca", 2022) is the default; the other two are its baselines (SPEC BS-01 to BS-03)
for the same model, memory and load:

- *static*: the sequences that wait when a batch has ended are the next batch, up to `max_num_seqs`;
- *dynamic*: the same, but a batch is held back until it has one of the preferred sizes, or its oldest member has waited
  for `max_queue_delay_ms`, whichever comes first.

Under continuous batching the delay and the sizes hold back prompts only while others decode, so that several prompts
share the steps that slow those others down.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator

from inference_core.engine.sequence import Sequence
from inference_core.errors import IntegrityError
from inference_core.protocol import Knobs

ServiceOrder = tuple[int, float, int, float, int]
Rank = tuple[int, int, int]


def waited_seconds(sequence: Sequence, now: float) -> float:
    """Seconds spent waiting or prefilling so far."""
    if sequence.waiting_since is None:
        return sequence.waited_seconds
    return sequence.waited_seconds + now - sequence.waiting_since


def aged_class(sequence: Sequence, now: float, ageing_seconds: float) -> int:
    """The priority class lifted by one for every `ageing_seconds` spent waiting or prefilling."""
    return sequence.priority - int(waited_seconds(sequence, now) / ageing_seconds)


def seconds_to_next_lift(sequence: Sequence, now: float, ageing_seconds: float) -> float:
    """Seconds until ageing changes the `aged_class` of a waiting or prefilling sequence."""
    waited = waited_seconds(sequence, now)
    return (int(waited / ageing_seconds) + 1) * ageing_seconds - waited


def service_order(sequence: Sequence, now: float, ageing_seconds: float) -> ServiceOrder:
    """Smaller is served first."""
    level = aged_class(sequence, now, ageing_seconds)
    return (level, sequence.deadline, sequence.num_prefill_tokens, sequence.arrival, sequence.number)


def arrival_order(sequence: Sequence, now: float, ageing_seconds: float) -> tuple[int, float, float, int]:
    """`service_order` without lengths: tokens of different models do not compare."""
    return (aged_class(sequence, now, ageing_seconds), sequence.deadline, sequence.arrival, sequence.number)


def holding_rank(sequence: Sequence) -> Rank:
    """Greater is preempted first: the worst class, then the least computed, then the newest."""
    return (sequence.held_class, -sequence.num_computed_tokens, sequence.number)


def newcomer_claim(sequence: Sequence) -> Rank:
    """The end of the sequence's own class: it may preempt only holders of a greater rank."""
    return (sequence.priority, 1, 0)


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


class Batch:
    """Which sequences may join now: all, or under the baselines the members of the batch."""

    def __init__(self) -> None:
        self._members: set[str] | None = None

    @property
    def is_open(self) -> bool:
        """Whether all sequences may join: batching is continuous."""
        return self._members is None

    def __contains__(self, sequence_id: str) -> bool:
        return self._members is None or sequence_id in self._members

    def form(self, knobs: Knobs, running: Iterable[str], waiting: WaitingQueue, now: float) -> None:
        """Choose the next members once all have ended, if enough wait or the oldest has waited long enough."""
        if knobs.batching == "continuous":
            self._members = None
            return
        if self._members is None:
            self._members = set(running)
        if not self._members and waiting:
            size = batch_size(knobs, waiting=len(waiting), oldest_wait=waiting.oldest_wait(now))
            self._members = {sequence.id for *_, sequence in waiting.entries()[:size]}

    def discard(self, sequence_id: str) -> None:
        """A sequence has ended."""
        if self._members is not None:
            self._members.discard(sequence_id)

    def seconds_held(self, knobs: Knobs, waiting: WaitingQueue, now: float) -> float:
        """Seconds that waiting sequences are still held back so that their batch can grow; 0 if they are not."""
        if self._members or knobs.batching != "dynamic" or not waiting:
            return 0.0
        wait = waiting.oldest_wait(now)
        if batch_size(knobs, waiting=len(waiting), oldest_wait=wait):
            return 0.0
        return knobs.max_queue_delay_ms / 1e3 - wait


def batch_size(knobs: Knobs, *, waiting: int, oldest_wait: float) -> int:
    """Return how many of `waiting` form the next batch now, 0 to wait for more. `oldest_wait` is in seconds."""
    if knobs.batching == "static" or _waited_enough(knobs, oldest_wait):
        return min(waiting, knobs.max_num_seqs)
    return max((size for size in _sizes(knobs) if size <= waiting), default=0)


def joins_now(knobs: Knobs, *, decoding: int, waiting: int, oldest_wait: float) -> bool:
    """Whether continuous batching computes prompts now, while `decoding` sequences decode."""
    if not decoding or _waited_enough(knobs, oldest_wait):
        return True
    return waiting >= min(_sizes(knobs))


def _waited_enough(knobs: Knobs, oldest_wait: float) -> bool:
    """Compare to a microsecond: a clock advanced by exactly the rest may fall short of it by rounding."""
    return oldest_wait >= knobs.max_queue_delay_ms / 1e3 - 1e-6


def _sizes(knobs: Knobs) -> list[int]:
    """The preferred batch sizes and the full batch."""
    full = knobs.max_num_seqs
    return [*(min(size, full) for size in knobs.preferred_batch_sizes), full]
