"""The waiting sequences of a model in service order, and the running ones split by what each needs next.

With them stand the first-token deadlines of a model's sequences, sorted, so that the earliest is read in constant
time, and the token budget of the step being planned.

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
after `precedence.IDLE_LIFTS` lifts.

Continuous batching (Yu et al., "Orca", 2022) is the default; the other two are its baselines (SPEC BS-01 to BS-03)
for the same model, memory and load:

- *static*: the sequences that wait when a batch has ended are the next batch, up to `max_num_seqs`;
- *dynamic*: the same, but a batch is held back until it has one of the preferred sizes, or its oldest member has waited
  for `max_queue_delay_ms`, whichever comes first.

Under continuous batching the delay and the sizes hold back prompts only while others decode, so that several prompts
share the steps that slow those others down.
"""

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from inference_core.engine.sequence import Rank, Sequence, Status
from inference_core.engine.sequence_kv import SequenceKV
from inference_core.errors import IntegrityError
from inference_core.kv_cache.block_pool import BlockPool
from inference_core.protocol import Knobs
from inference_core.step_plan import PENDING, ScheduledSequence

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
            insort(dues, _due(sequence))

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence that has its first token or has ended."""
        for dues in self._lists_of(sequence):
            del dues[bisect_left(dues, _due(sequence))]

    def check_integrity(self, live: Iterable[Sequence]) -> None:
        """Exactly the live sequences without a first token are here. Raises `IntegrityError`."""
        due = sorted(_due(s) for s in live if s.precedence.deadline < math.inf and not s.output_token_ids)
        if due != self._due or [d for d in due if d[2].request.strict_deadline] != self._strictly_due:
            raise IntegrityError(f"first tokens are due {due}, not {self._due} and strictly {self._strictly_due}")

    def _lists_of(self, sequence: Sequence) -> tuple[list[Due], ...]:
        if sequence.precedence.deadline == math.inf:
            return ()
        return (self._due, self._strictly_due) if sequence.request.strict_deadline else (self._due,)


def _due(sequence: Sequence) -> Due:
    return sequence.precedence.deadline, sequence.precedence.number, sequence


class RunningSet:
    """`running` by id: `decodes` need one token, `prefilling` need more, the last token of `ending` is in flight.

    `reserved_blocks`: what they still need for their known tokens, plus one block each to continue. All counts are
    updated incrementally, so a step in which no sequence joins or leaves costs a few operations per sequence.
    """

    def __init__(self, pool: BlockPool) -> None:
        self.running: dict[str, Sequence] = {}
        self.decodes: dict[str, Sequence] = {}
        self.prefilling: dict[str, Sequence] = {}
        self.ending: dict[str, Sequence] = {}
        self.reserved_blocks = 0
        self._pool = pool
        self._classes: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self.running)

    @property
    def lowest_class(self) -> int:
        """The lowest priority class (the largest number) among the running sequences; there is one."""
        return max(self._classes)

    @property
    def best_class(self) -> int | None:
        """The highest priority class (the smallest number) among the running sequences; None without any."""
        return min(self._classes, default=None)

    def add(self, sequence: Sequence) -> None:
        """Add an admitted sequence, with its class and its first blocks set."""
        self.running[sequence.id] = self.prefilling[sequence.id] = sequence
        self._classes[sequence.precedence.held_class] += 1
        self.reserved_blocks += self._reserved_for(sequence.kv)

    def remove(self, sequence: Sequence) -> None:
        """Remove a running sequence; the caller then releases its blocks."""
        del self.running[sequence.id]
        if sequence.precedence.waiting_since is not None:
            del self.prefilling[sequence.id]
        elif self.decodes.pop(sequence.id, None) is None:
            del self.ending[sequence.id]
        held_class = sequence.precedence.held_class
        self._classes[held_class] -= 1
        if not self._classes[held_class]:
            del self._classes[held_class]
        self.reserved_blocks -= self._reserved_for(sequence.kv)

    def start_decoding(self, sequence: Sequence) -> None:
        """Move `sequence` to `decodes`: from now on it needs one token per step."""
        self.decodes[sequence.id] = self.prefilling.pop(sequence.id)

    def append_pending(self, sequences: Iterable[Sequence]) -> None:
        """Append a pending token to each of these decoding sequences, which the step in flight draws."""
        size = self._pool.block_size
        for sequence in sequences:
            if sequence.kv.num_computed_tokens % size == 0:
                self.reserved_blocks += 1
            outputs = sequence.output_token_ids
            outputs.append(PENDING)
            sequence.token_ids.append(PENDING)
            sequence.num_pending += 1
            if len(outputs) >= sequence.max_output_tokens:
                self.ending[sequence.id] = self.decodes.pop(sequence.id)

    def check_integrity(self) -> None:
        """Check the incremental counts against the sequences, and block tables against computed tokens. Raises
        `IntegrityError`."""
        prefilling = {i: s for i, s in self.running.items() if s.precedence.waiting_since is not None}
        decodes = {i: s for i, s in self.running.items() if s.precedence.waiting_since is None}
        ending = {i: s for i, s in decodes.items() if len(s.output_token_ids) >= s.max_output_tokens}
        if self.prefilling != prefilling or self.ending != ending or self.decodes | ending != decodes:
            raise IntegrityError(f"{list(decodes)} decode and {list(prefilling)} catch up, not as noted")
        if Counter(s.precedence.held_class for s in self.running.values()) != self._classes:
            raise IntegrityError(f"{self._classes} are not the classes that run")
        if self.reserved_blocks != sum(self._reserved_for(s.kv) for s in self.running.values()):
            raise IntegrityError(f"{self.reserved_blocks} blocks are not what is reserved")
        for sequence in self.running.values():
            kv = sequence.kv
            needed = self._pool.blocks_for(kv.num_computed_tokens)
            if sequence.status is not Status.RUNNING or len(kv.block_table) != needed:
                raise IntegrityError(
                    f"{sequence.id} ({sequence.status.value}) holds {len(kv.block_table)} blocks for "
                    f"{kv.num_computed_tokens} computed tokens; {needed} are needed"
                )
            least = 0 if sequence.request.prefill else 1
            if not least <= kv.num_uncomputed_tokens <= len(kv.token_ids):
                raise IntegrityError(f"{sequence.id} runs with {kv.num_uncomputed_tokens} tokens to compute")

    def _reserved_for(self, kv: SequenceKV) -> int:
        return self._pool.blocks_for(len(kv.token_ids)) + 1 - len(kv.block_table)


# Each scored row takes a row of logits as wide as the vocabulary; prompts are rarely scored, so the limit is low.
MAX_SCORED_ROWS = 128


@dataclass(slots=True)
class StepBudget:
    """The token budget of the step being planned: `left` of `total` tokens are not assigned yet."""

    total: int
    """Tokens of the whole step."""
    left: int = field(init=False)
    """Tokens that are not assigned yet."""
    shares: dict[Sequence, ScheduledSequence] = field(default_factory=dict)
    preempted: set[Sequence] = field(default_factory=set)
    kv_seconds: dict[Sequence, float] = field(default_factory=dict)
    """What looking up and allocating blocks took, for each sequence that has its first token still to come."""
    memory_short: bool = False
    """A running sequence was preempted for memory, so no sequence is admitted in this step."""
    queue_blocked: bool = False
    """The head of the queue could not be admitted, so none behind it is (no overtaking)."""
    reclaimed: bool = False
    """The memory lent to drafters was taken back in this step."""
    scores_left: int = MAX_SCORED_ROWS
    """Prompt rows that may still be scored in this step."""

    def __post_init__(self) -> None:
        self.left = self.total

    def room_for(self, sequence: Sequence) -> int:
        """The most tokens that `sequence` may compute in this step."""
        readings = sequence.readings
        return self.left if readings is None or not readings.scores_prompt else min(self.left, self.scores_left)

    def hand_out(self, sequence: Sequence, tokens: int) -> None:
        """Assign the next `tokens` tokens of `sequence` to this step."""
        start = sequence.kv.num_computed_tokens
        share, readings = sequence.share, sequence.readings
        share.start = start
        share.token_ids = sequence.token_ids[start : start + tokens]
        ends = start + tokens == len(sequence.token_ids) and sequence.draws
        share.sample = sequence.sample_spec if ends else None
        share.state = None if readings is None else readings.state_spec(start, tokens)
        share.score = None if readings is None else readings.score_spec(start, tokens)
        if share.score is not None:
            self.scores_left -= len(share.score.token_ids)
        share.num_drafts = 0
        sequence.sample_spec.position = len(sequence.output_token_ids)
        self.shares[sequence] = share
        self.left -= tokens

    def hand_out_decodes(self, sequences: Iterable[Sequence]) -> None:
        """`hand_out` one token to each of these decoding sequences, none of which has a share yet."""
        shares = self.shares
        before = len(shares)
        for sequence in sequences:
            share = sequence.share
            share.start = sequence.kv.num_computed_tokens
            share.token_ids = sequence.token_ids[-1:]
            spec = sequence.sample_spec
            spec.position = len(sequence.output_token_ids)
            share.sample = spec
            share.num_drafts = 0
            shares[sequence] = share
        self.left -= len(shares) - before

    def take_back(self, sequence: Sequence) -> None:
        """Return the share of a preempted sequence to the budget."""
        share = self.shares.pop(sequence, None)
        if share is not None:
            self.left += len(share.token_ids)
            if share.score is not None:
                self.scores_left += len(share.score.token_ids)
        self.kv_seconds.pop(sequence, None)
        self.preempted.add(sequence)

    def charge_planning(self, seconds: float) -> None:
        """Charge a planning of so many seconds to the sequences that wait for their first token."""
        for sequence, kv_seconds in self.kv_seconds.items():
            sequence.times.charge_planning(seconds - kv_seconds, kv_seconds)

    def check_integrity(self) -> None:
        """Check the shares against the budget. Raises `IntegrityError`."""
        if sum(len(s.token_ids) for s in self.shares.values()) + self.left != self.total or self.left < 0:
            raise IntegrityError(f"{self.shares} does not keep a budget of {self.total} tokens")


ServiceOrder = tuple[int, float, int, float, int]


def service_order(sequence: Sequence, now: float, ageing_seconds: float) -> ServiceOrder:
    """Smaller is served first."""
    rights = sequence.precedence
    level = rights.aged_class(now, ageing_seconds)
    return (level, rights.deadline, sequence.kv.num_prefill_tokens, rights.arrival, rights.number)


def holding_rank(sequence: Sequence) -> Rank:
    """Greater is preempted first: the worst class, then the least computed, then the newest."""
    return (sequence.precedence.held_class, -sequence.kv.num_computed_tokens, sequence.precedence.number)


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
        return now - next(iter(self._by_id.values())).times.queued_since

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
        self._priorities[sequence.precedence.priority] += 1

    def remove(self, sequence: Sequence) -> None:
        del self._by_id[sequence.id]
        self._unfile(sequence)
        priority = sequence.precedence.priority
        self._priorities[priority] -= 1
        if not self._priorities[priority]:
            del self._priorities[priority]

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
        """Check that each sequence has an entry, in order, a next lift and no block. Raises `IntegrityError`."""
        for sequence in self._by_id.values():
            kv = sequence.kv
            if sequence.status is not Status.WAITING or kv.block_table or kv.num_computed_tokens:
                raise IntegrityError(f"{sequence.id} ({sequence.status.value}) waits but holds {kv.block_table}")
        numbers = {s.precedence.number for s in self._by_id.values()}
        queued = [entry[-1].precedence.number for entry in self._order]
        if set(queued) != numbers or len(queued) != len(numbers) or self._entries.keys() != numbers:
            raise IntegrityError(f"{queued} are queued, but {numbers} wait")
        if self._order != sorted(self._order) or self._lifts != sorted(self._lifts):
            raise IntegrityError(f"the queue is out of order: {queued}")
        if {number for _, number, _ in self._lifts} != numbers or len(self._lifts) != len(numbers):
            raise IntegrityError(f"{len(numbers)} wait, but {len(self._lifts)} have a next lift")
        if Counter(entry[-1].precedence.priority for entry in self._order) != self._priorities:
            raise IntegrityError(f"{self._priorities} are not the classes that wait")

    def _file(self, sequence: Sequence, now: float) -> None:
        entry = (*service_order(sequence, now, self._ageing_seconds), sequence)
        number = sequence.precedence.number
        due = now + sequence.precedence.seconds_to_next_lift(now, self._ageing_seconds)
        insort(self._order, entry)
        insort(self._lifts, (due, number, sequence))
        self._entries[number] = (entry, due)

    def _unfile(self, sequence: Sequence) -> None:
        number = sequence.precedence.number
        entry, due = self._entries.pop(number)
        del self._order[bisect_left(self._order, entry)]
        del self._lifts[bisect_left(self._lifts, (due, number, sequence))]


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
