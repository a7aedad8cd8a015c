"""Where the keys and values of a model's sequences are: the cached blocks that a prompt begins with, and a table of
blocks for each running sequence, which grows with it and is given back."""

from dataclasses import dataclass
from itertools import count, islice

from inference_core.engine.queues import RunningSet
from inference_core.engine.sequence import Sequence
from inference_core.engine.sequence_kv import SequenceKV
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

    def begin(self, kv: SequenceKV, hit: PrefixHit) -> None:
        """Give a sequence that is admitted the blocks of its cached prefix."""
        self.pool.acquire(hit.blocks)
        restored = self.pool.restore(hit.kept, count(len(hit.blocks))) if hit.kept else []
        kv.block_table = hit.blocks + restored
        kv.num_registered_blocks = len(hit.blocks)

    def expect(self, sequence: Sequence) -> None:
        """Note which cached blocks `sequence`, about to be preempted, needs to continue."""
        full = sequence.kv.num_computed_tokens // self.pool.block_size
        self.pool.host.expect(sequence.id, sequence.kv.digests[:full], count())

    def register_full(self, kv: SequenceKV, full: int) -> None:
        """Cache the first `full` blocks of a sequence, which are computed."""
        # A public prefix is cached by its pin alone: what one tenant has computed is not shared with another.
        num_cached = min(max(kv.num_registered_blocks, kv.num_public_blocks), full)
        kv.extend_digests(full, self.pool.block_size)
        self.pool.register(kv.block_table[num_cached:full], kv.digests[num_cached:full])
        kv.num_registered_blocks = full

    def most_chunk(self, chunk: int) -> int:
        """The most prompt tokens of a sequence in one step, where `chunk` are asked for."""
        return chunk

    def grow_decodes(self, sequences: list[Sequence]) -> list[Sequence]:
        """Extend each table whose last block is full, in one call; without blocks, return those that need one."""
        size = self.pool.block_size
        growing = [s for s in sequences if s.kv.num_computed_tokens % size == 0]
        if not growing:
            return growing
        blocks = self.pool.allocate(len(growing))
        if blocks is None:
            return growing
        self._running_set.reserved_blocks -= len(blocks)
        for sequence, block in zip(growing, blocks, strict=True):
            sequence.kv.block_table.append(block)
        return []

    def make_room(self, kv: SequenceKV, tokens: int) -> int:
        """Return how many blocks `tokens` more tokens lack, after release of those that these tokens do not see."""
        return self.pool.blocks_for(kv.num_computed_tokens + tokens) - len(kv.block_table)

    def pinned_blocks(self, kv: SequenceKV, lacking: int) -> list[int]:
        """Acquire the next blocks of a sequence that fills pinned ones."""
        own = kv.pinned[len(kv.block_table) :][:lacking]
        self.pool.acquire(own)
        return own

    def extend(self, kv: SequenceKV, blocks: list[int]) -> None:
        """Append `blocks` to the table."""
        kv.block_table += blocks
        self._running_set.reserved_blocks -= len(blocks)

    def grow_for_drafts(self, kv: SequenceKV, drafts: int) -> int:
        """Return for how many of `drafts` tokens behind the next one there are blocks, new ones if they suffice."""
        start, table = kv.share.start, kv.block_table
        lacking = self.pool.blocks_for(start + 1 + drafts) - len(table)
        if lacking > 0:
            blocks = self.pool.allocate(lacking * self.per_position)
            if blocks is None:
                return len(table) * self.pool.block_size - start - 1
            self.extend(kv, blocks)
        return drafts

    def reserve_decode_steps(self, plan: StepPlan, most: int) -> int:
        """Return how many decode steps may follow each other in `plan`, at most `most`, with blocks for them: 1 if a
        sequence does not decode, or draws what the host has to know, or no block is free. No answer's end is passed."""
        running, pool = self._running_set, self.pool
        decodes = list(running.decodes.values())
        if not len(decodes) == len(running) == len(plan.sequences) or pool.windows is not None:
            return 1
        for sequence in decodes:
            readings = sequence.readings
            if sequence.sample_spec.matcher is not None or (readings is not None and readings.wants_evidence):
                return 1
            most = min(most, sequence.max_output_tokens - len(sequence.output_token_ids))
        if most < 2:
            return 1
        lacking = [pool.blocks_for(s.kv.num_computed_tokens + most) - len(s.kv.block_table) for s in decodes]
        blocks = pool.allocate(sum(lacking)) if any(lacking) else []
        if blocks is None:
            return 1
        for sequence, wanted in zip(decodes, lacking, strict=True):
            self.extend(sequence.kv, blocks[:wanted])
            del blocks[:wanted]
        return most

    def reserved_bytes(self) -> int:
        """Bytes that running sequences still need for their known tokens, plus one block each to continue."""
        return self.pool.block_bytes * self._running_set.reserved_blocks

    def blocks_of(self, kv: SequenceKV) -> list[int]:
        """The blocks that a sequence holds."""
        return kv.block_table

    def release(self, kv: SequenceKV) -> None:
        """Release all blocks of a sequence that stops running: it has computed nothing then."""
        self.pool.release(self.blocks_of(kv))
        kv.block_table = []
        kv.num_registered_blocks = 0
        kv.num_computed_tokens = 0

    def take_back(self, kv: SequenceKV) -> None:
        """Release the blocks without a computed token: those of rejected drafts (SPEC SD-08), and of decode steps that
        were not taken."""
        table = kv.block_table
        needed = self.pool.blocks_for(kv.num_computed_tokens)
        if len(table) > needed:
            self.pool.release(table[needed:])
            self._running_set.reserved_blocks += len(table) - needed
            # Runners that cache tables identify a list by its identity and assume that it only grows.
            kv.block_table = table[:needed]

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
            for table in self._tables(sequence.kv):
                table[:] = [moves.get(block, block) for block in table]

    def _tables(self, kv: SequenceKV) -> list[list[int]]:
        return [kv.block_table]

    def check_integrity(self) -> None:
        """Check that running sequences hold what the pool has given. Raises `IntegrityError`."""
        self.pool.check_integrity(self.blocks_of(s.kv) for s in self._running_set.running.values())
