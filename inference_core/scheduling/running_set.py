"""The running sequences of a model, split by what each needs next, their blocks, and what it cost to join them."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from inference_core.errors import IntegrityError
from inference_core.kv_cache.block_pool import BlockPool
from inference_core.protocol import JoinStats
from inference_core.scheduling.sequence import Sequence, Status
from inference_core.step_plan import PENDING


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
            least = 0 if sequence.prefills else 1
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
