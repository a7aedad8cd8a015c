"""Who runs in a model, split by what each needs next, and how many blocks they are promised; kept by differences."""

from collections import Counter
from collections.abc import Iterable

from inference_core.errors import IntegrityError
from inference_core.kv_cache.block_pool import BlockPool
from inference_core.scheduling.sequence import Sequence, Status
from inference_core.step_plan import PENDING


class RunningSet:
    """The running sequences (`running`, by id) are `decodes`, which lack one token; `prefilling`, which lack more; or
    `ending`, whose last token is under way.

    `reserved_blocks`: what they will still take for their known tokens, and a block each to go on with. A step in which
    nobody comes or goes costs a fixed few operations per sequence, because nothing here is counted anew.
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
        """The largest number of a priority class that holds a seat; somebody does."""
        return max(self._classes)

    def add(self, sequence: Sequence) -> None:
        """A sequence that lags has been admitted, with its class and its first blocks."""
        self.running[sequence.id] = self.prefilling[sequence.id] = sequence
        self._classes[sequence.held_class] += 1
        self.reserved_blocks += self._reserved_for(sequence)

    def remove(self, sequence: Sequence) -> None:
        """A running sequence gives its seat back, and then its blocks."""
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
        """From now on one token a step is all that `sequence` needs."""
        self.decodes[sequence.id] = self.prefilling.pop(sequence.id)

    def append_pending(self, sequences: Iterable[Sequence]) -> None:
        """A step under way draws a token of each of these, which decode: room is made for it."""
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
        """What is kept by differences equals what it stands for; tables cover computed tokens with less than a block to
        spare. Raises `IntegrityError`."""
        prefilling = {i: s for i, s in self.running.items() if s.waiting_since is not None}
        decodes = {i: s for i, s in self.running.items() if s.waiting_since is None}
        ending = {i: s for i, s in decodes.items() if len(s.output_token_ids) >= s.max_output_tokens}
        if self.prefilling != prefilling or self.ending != ending or self.decodes | ending != decodes:
            raise IntegrityError(f"{list(decodes)} decode and {list(prefilling)} catch up, not as noted")
        if Counter(s.held_class for s in self.running.values()) != self._classes:
            raise IntegrityError(f"{self._classes} are not the classes that hold seats")
        if self.reserved_blocks != sum(map(self._reserved_for, self.running.values())):
            raise IntegrityError(f"{self.reserved_blocks} blocks are not what is promised")
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
