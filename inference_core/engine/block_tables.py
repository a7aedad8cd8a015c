"""Where the keys and values of a model's sequences are: the cached blocks that a prompt begins with, and a table of
blocks for each running sequence, which grows with it and is given back."""

from dataclasses import dataclass
from itertools import count, islice

from inference_core.engine.queues import RunningSet
from inference_core.engine.sequence import Sequence
from inference_core.kv_cache.block_pool import BlockPool
from inference_core.step_plan import StepPlan


@dataclass(slots=True, frozen=True)
class PrefixHit:
    """What of a prompt's blocks is on the device, and the digests under which host memory keeps more of them."""

    blocks: list[int]
    kept: list[bytes]


class BlockTables:
    """The blocks of the sequences in `running_set`, taken from `pool`; where it has too few, nothing changes. Every
    block holds all layers; `windowed_tables` overrides what differs otherwise."""

    per_position = 1
    """Blocks that hold the layers of the same tokens."""

    def __init__(self, pool: BlockPool, running_set: RunningSet) -> None:
        self.pool = pool
        self._running_set = running_set

    def cached_blocks(self, digests: list[bytes]) -> int:
        """How many blocks of a chain, from the first on, a sequence could begin with now."""
        return len(self.pool.match(digests))

    def cache_keys(self, digests: list[bytes]) -> list[bytes]:
        """The names of all blocks of a chain, which is to be found at any length."""
        return digests

    def look_up(self, digests: list[bytes]) -> PrefixHit:
        """Return the longest prefix of a chain that is cached, and what follows in host memory; changes nothing."""
        hits = self.pool.match(digests)
        kept = self.pool.host.match(islice(digests, len(hits), None), len(hits)) if self.pool.host.num_kept else []
        return PrefixHit(hits, kept)

    def begin(self, sequence: Sequence, hit: PrefixHit) -> None:
        """Give `sequence`, which is admitted, the blocks of its cached prefix."""
        self.pool.acquire(hit.blocks)
        restored = self.pool.restore(hit.kept, count(len(hit.blocks))) if hit.kept else []
        sequence.block_table = sequence.share.block_table = hit.blocks + restored
        sequence.num_registered_blocks = len(hit.blocks)

    def expect(self, sequence: Sequence) -> None:
        """Note which cached blocks `sequence`, about to be preempted, needs to continue."""
        full = sequence.num_computed_tokens // self.pool.block_size
        self.pool.host.expect(sequence.id, sequence.digests[:full], count())

    def register_full(self, sequence: Sequence, full: int) -> None:
        """Cache the first `full` blocks of `sequence`, which are computed."""
        # A public prefix is cached by its pin alone: what one tenant has computed is not shared with another.
        known = min(max(sequence.num_registered_blocks, sequence.num_public_blocks), full)
        sequence.extend_digests(full, self.pool.block_size)
        self.pool.register(sequence.block_table[known:full], sequence.digests[known:full])
        sequence.num_registered_blocks = full

    def most_chunk(self, chunk: int) -> int:
        """The most prompt tokens of a sequence in one step, where `chunk` are asked for."""
        return chunk

    def grow_decodes(self, sequences: list[Sequence]) -> list[Sequence]:
        """Extend each table whose last block is full, in one call; without blocks, return those that need one."""
        size = self.pool.block_size
        growing = [s for s in sequences if s.num_computed_tokens % size == 0]
        if not growing:
            return growing
        blocks = self.pool.allocate(len(growing))
        if blocks is None:
            return growing
        self._running_set.reserved_blocks -= len(blocks)
        for sequence, block in zip(growing, blocks, strict=True):
            sequence.block_table.append(block)
        return []

    def make_room(self, sequence: Sequence, tokens: int) -> int:
        """Return how many blocks `tokens` more tokens lack, after release of those that these tokens do not see."""
        return self.pool.blocks_for(sequence.num_computed_tokens + tokens) - len(sequence.block_table)

    def pinned_blocks(self, sequence: Sequence, lacking: int) -> list[int]:
        """Acquire the next blocks of a sequence that fills pinned ones."""
        own = sequence.pinned[len(sequence.block_table) :][:lacking]
        self.pool.acquire(own)
        return own

    def extend(self, sequence: Sequence, blocks: list[int]) -> None:
        """Append `blocks` to the table."""
        sequence.block_table += blocks
        self._running_set.reserved_blocks -= len(blocks)

    def grow_for_drafts(self, sequence: Sequence, drafts: int) -> int:
        """Return for how many of `drafts` tokens behind the next one there are blocks, new ones if they suffice."""
        start, table = sequence.share.start, sequence.block_table
        lacking = self.pool.blocks_for(start + 1 + drafts) - len(table)
        if lacking > 0:
            blocks = self.pool.allocate(lacking * self.per_position)
            if blocks is None:
                return len(table) * self.pool.block_size - start - 1
            self.extend(sequence, blocks)
        return drafts

    def reserve_decode_steps(self, plan: StepPlan, most: int) -> int:
        """Return how many decode steps may follow each other in `plan`, at most `most`, with blocks for them: 1 if a
        sequence does not decode, or draws what the host has to know, or no block is free. No answer's end is passed."""
        running, pool = self._running_set, self.pool
        decodes = list(running.decodes.values())
        if not len(decodes) == len(running) == len(plan.sequences) or pool.windows is not None:
            return 1
        for sequence in decodes:
            if sequence.sample_spec.matcher is not None or sequence.wants_evidence:
                return 1
            most = min(most, sequence.max_output_tokens - len(sequence.output_token_ids))
        if most < 2:
            return 1
        lacking = [pool.blocks_for(s.num_computed_tokens + most) - len(s.block_table) for s in decodes]
        blocks = pool.allocate(sum(lacking)) if any(lacking) else []
        if blocks is None:
            return 1
        for sequence, wanted in zip(decodes, lacking, strict=True):
            self.extend(sequence, blocks[:wanted])
            del blocks[:wanted]
        return most

    def reserved_bytes(self) -> int:
        """Bytes that running sequences still need for their known tokens, plus one block each to continue."""
        return self.pool.block_bytes * self._running_set.reserved_blocks

    def blocks_of(self, sequence: Sequence) -> list[int]:
        """The blocks that `sequence` holds."""
        return sequence.block_table

    def release(self, sequence: Sequence) -> None:
        """Release all blocks of a sequence that stops running: it has computed nothing then."""
        self.pool.release(self.blocks_of(sequence))
        sequence.block_table = sequence.share.block_table = []
        sequence.num_registered_blocks = 0
        sequence.num_computed_tokens = 0

    def take_back(self, sequence: Sequence) -> None:
        """Release the blocks without a computed token: those of rejected drafts (SPEC SD-08), and of decode steps that
        were not taken."""
        table = sequence.block_table
        needed = self.pool.blocks_for(sequence.num_computed_tokens)
        if len(table) > needed:
            self.pool.release(table[needed:])
            self._running_set.reserved_blocks += len(table) - needed
            # Runners that cache tables identify a list by its identity and assume that it only grows.
            sequence.block_table = sequence.share.block_table = table[:needed]

    def plan_moves(self, most: int) -> list[tuple[int, int]]:
        """Return at most `most` copies that empty slabs. No block is allocated or freed until `end_copies`."""
        moves = self.pool.plan_moves(most)
        self._rename(moves)
        return list(moves.items())

    def end_copies(self, plan: StepPlan, *, copied: bool) -> None:
        """The copies of `plan`, between blocks and from and to host memory, are done, or never will be."""
        if plan.copies:
            if copied:
                self.pool.finish_moves()
            else:
                self.pool.undo_moves()
                self._rename({target: block for block, target in plan.copies})
        if self.pool.host.capacity:
            self.pool.host.end(copied=copied)

    def _rename(self, moves: dict[int, int]) -> None:
        for sequence in self._running_set.running.values() if moves else ():
            for table in self._tables(sequence):
                table[:] = [moves.get(block, block) for block in table]

    def _tables(self, sequence: Sequence) -> list[list[int]]:
        return [sequence.block_table]

    def check_integrity(self) -> None:
        """Check that running sequences hold what the pool has given. Raises `IntegrityError`."""
        self.pool.check_integrity(map(self.blocks_of, self._running_set.running.values()))
