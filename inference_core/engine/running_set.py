"""The running sequences of a model, split by what each needs next, their blocks, and what it cost to join them.

With them stand the first-token deadlines of a model's sequences, sorted, so that the earliest is read in constant
time, the token budget of the step being planned, and a scheduler's totals since start.
"""

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from inference_core.engine.sequence import Sequence, Status
from inference_core.errors import IntegrityError
from inference_core.kv_cache.block_pool import BlockPool
from inference_core.protocol import JoinStats
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
            insort(dues, (sequence.deadline, sequence.number, sequence))

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence that has its first token or has ended."""
        for dues in self._lists_of(sequence):
            del dues[bisect_left(dues, (sequence.deadline, sequence.number, sequence))]

    def check_integrity(self, live: Iterable[Sequence]) -> None:
        """Exactly the live sequences without a first token are here. Raises `IntegrityError`."""
        due = sorted((s.deadline, s.number, s) for s in live if s.deadline < math.inf and not s.output_token_ids)
        if due != self._due or [d for d in due if d[2].request.strict_deadline] != self._strictly_due:
            raise IntegrityError(f"first tokens are due {due}, not {self._due} and strictly {self._strictly_due}")

    def _lists_of(self, sequence: Sequence) -> tuple[list[Due], ...]:
        if sequence.deadline == math.inf:
            return ()
        return (self._due, self._strictly_due) if sequence.request.strict_deadline else (self._due,)


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
        self._classes[sequence.held_class] += 1
        self.reserved_blocks += self._reserved_for(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Remove a running sequence; the caller then releases its blocks."""
        del self.running[sequence.id]
        if sequence.waiting_since is not None:
            del self.prefilling[sequence.id]
        elif self.decodes.pop(sequence.id, None) is None:
            del self.ending[sequence.id]
        self._classes[sequence.held_class] -= 1
        if not self._classes[sequence.held_class]:
            del self._classes[sequence.held_class]
        self.reserved_blocks -= self._reserved_for(sequence)

    def start_decoding(self, sequence: Sequence) -> None:
        """Move `sequence` to `decodes`: from now on it needs one token per step."""
        self.decodes[sequence.id] = self.prefilling.pop(sequence.id)

    def append_pending(self, sequences: Iterable[Sequence]) -> None:
        """Append a pending token to each of these decoding sequences, which the step in flight draws."""
        size = self._pool.block_size
        for sequence in sequences:
            if sequence.num_computed_tokens % size == 0:
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
        prefilling = {i: s for i, s in self.running.items() if s.waiting_since is not None}
        decodes = {i: s for i, s in self.running.items() if s.waiting_since is None}
        ending = {i: s for i, s in decodes.items() if len(s.output_token_ids) >= s.max_output_tokens}
        if self.prefilling != prefilling or self.ending != ending or self.decodes | ending != decodes:
            raise IntegrityError(f"{list(decodes)} decode and {list(prefilling)} catch up, not as noted")
        if Counter(s.held_class for s in self.running.values()) != self._classes:
            raise IntegrityError(f"{self._classes} are not the classes that run")
        if self.reserved_blocks != sum(map(self._reserved_for, self.running.values())):
            raise IntegrityError(f"{self.reserved_blocks} blocks are not what is reserved")
        for sequence in self.running.values():
            needed = self._pool.blocks_for(sequence.num_computed_tokens)
            if sequence.status is not Status.RUNNING or len(sequence.block_table) != needed:
                raise IntegrityError(
                    f"{sequence.id} ({sequence.status.value}) holds {len(sequence.block_table)} blocks for "
                    f"{sequence.num_computed_tokens} computed tokens; {needed} are needed"
                )
            least = 0 if sequence.request.prefill else 1
            if not least <= sequence.num_uncomputed_tokens <= len(sequence.token_ids):
                raise IntegrityError(f"{sequence.id} runs with {sequence.num_uncomputed_tokens} tokens to compute")

    def _reserved_for(self, sequence: Sequence) -> int:
        return self._pool.blocks_for(len(sequence.token_ids)) + 1 - len(sequence.block_table)


@dataclass(slots=True)
class _Joins:
    count: int = 0
    seconds: float = 0.0
    tokens: int = 0


class JoinStatistics:
    """First-token latency since start, by powers of two of the sequences that decoded when one joined (SPEC BS-12)."""

    def __init__(self) -> None:
        self._by_occupancy: dict[int, _Joins] = {}

    def record(self, sequence: Sequence, now: float) -> None:
        """Record the first token of `sequence`, which was never preempted."""
        joins = self._by_occupancy.setdefault(sequence.joined_beside.bit_length(), _Joins())
        joins.count += 1
        joins.seconds += now - sequence.joined_at
        joins.tokens += len(sequence.prompt_token_ids) - sequence.cached_tokens

    def rows(self) -> list[JoinStats]:
        """Return the statistics, fewest decoding sequences first."""
        return [
            JoinStats(1 << level >> 1, joins.count, joins.seconds / joins.count, joins.seconds / joins.tokens)
            for level, joins in sorted(self._by_occupancy.items())
        ]


# Each scored row takes a row of logits as wide as the vocabulary; prompts are rarely scored, so the limit is low.
MAX_SCORED_ROWS = 128


@dataclass(slots=True)
class SchedulerTotals:
    """Counts since start.

    Prompts count once per request, prefix look-ups once per choice, generated tokens as drawn, stop tokens too.
    """

    prompt_tokens: int = 0
    generated_tokens: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    preemptions: int = 0
    deadline_refusals: int = 0
    repetitions_ended: int = 0


@dataclass(slots=True)
class StepBudget:
    """The token budget of the step being planned: `left` of `total` tokens are not assigned yet.

    `memory_short`: a running sequence was preempted for memory, so no sequence is admitted in this step.
    `queue_blocked`: the head of the queue could not be admitted, so none behind it is (no overtaking).
    `scores_left`: prompt rows that may still be scored in this step.
    `reclaimed`: the memory lent to drafters was taken back in this step.
    `kv_seconds`: what looking up and allocating blocks took, for each sequence that has its first token still to come.
    """

    total: int
    left: int = field(init=False)
    shares: dict[Sequence, ScheduledSequence] = field(default_factory=dict)
    preempted: set[Sequence] = field(default_factory=set)
    kv_seconds: dict[Sequence, float] = field(default_factory=dict)
    memory_short: bool = False
    queue_blocked: bool = False
    reclaimed: bool = False
    scores_left: int = MAX_SCORED_ROWS

    def __post_init__(self) -> None:
        self.left = self.total

    def room_for(self, sequence: Sequence) -> int:
        """The most tokens that `sequence` may compute in this step."""
        return min(self.left, self.scores_left) if sequence.scores_prompt else self.left

    def hand_out(self, sequence: Sequence, tokens: int) -> None:
        """Assign the next `tokens` tokens of `sequence` to this step."""
        start = sequence.num_computed_tokens
        share = sequence.share
        share.start = start
        share.token_ids = sequence.token_ids[start : start + tokens]
        ends = start + tokens == len(sequence.token_ids) and sequence.draws
        share.sample = sequence.sample_spec if ends else None
        share.state = sequence.state_spec(start, tokens)
        share.score = sequence.score_spec(start, tokens)
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
            share.start = sequence.num_computed_tokens
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
            sequence.charge_planning(seconds - kv_seconds, kv_seconds)
