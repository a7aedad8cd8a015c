"""Block tables of a model whose window layers have blocks of their own, which are released behind the window."""

from collections.abc import Iterator
from dataclasses import dataclass

from inference_core.engine.block_tables import BlockTables, PrefixHit
from inference_core.engine.sequence import Sequence
from inference_core.engine.sequence_kv import SequenceKV
from inference_core.errors import IntegrityError
from inference_core.kv_cache.layout import RELEASED, CachedKey, WindowGroups


@dataclass(slots=True, frozen=True)
class WindowedHit(PrefixHit):
    """A hit of `length` positions: the places of its `blocks`, and of what is `kept`."""

    length: int
    found_at: list[CachedKey]
    kept_at: list[CachedKey]


class WindowedTables(BlockTables):
    """`BlockTables` of a pool with `windows`. Sequences have a table per group; blocks behind the window are released
    when their tables grow, which is when a later step can use them, and before new ones are taken.

    Prompts are computed in chunks of at most `windows.most_chunk` tokens, so that `windows.blocks_for` bounds what a
    sequence holds. Pinned prefixes keep the blocks of all groups: they are found at any length.
    """

    @property
    def _windows(self) -> WindowGroups:
        windows = self.pool.windows
        assert windows is not None  # such a pool has `BlockTables`
        return windows

    @property
    def per_position(self) -> int:  # type: ignore[override]
        return self._windows.num_tables

    def _tables(self, kv: SequenceKV) -> list[list[int]]:
        return [kv.block_table, *kv.window_tables]

    def cached_blocks(self, digests: list[bytes]) -> int:
        return self._windows.longest_hit(digests, self._is_cached)

    def cache_keys(self, digests: list[bytes]) -> list[bytes]:
        return self._windows.all_keys(digests)

    def _is_cached(self, key: bytes) -> bool:
        return self.pool.cached(key) is not None

    def _is_here(self, key: bytes) -> bool:
        return self.pool.cached(key) is not None or self.pool.host.keeps(key)

    def look_up(self, digests: list[bytes]) -> WindowedHit:
        length, host = self.cached_blocks(digests), self.pool.host
        if host.num_kept:
            longer = self._windows.longest_hit(digests, self._is_here)
            if longer > length:
                hit = self._hit(digests[:longer])
                if host.swap_cost.worth_restoring(length, longer - length, len(hit.kept)):
                    return hit
        return self._hit(digests[:length])

    def _hit(self, digests: list[bytes]) -> WindowedHit:
        """Return where the blocks are that continuing behind `digests` needs: on the device or in host memory."""
        found_at: list[CachedKey] = []
        kept_at: list[CachedKey] = []
        blocks: list[int] = []
        for key in self._windows.needed(digests):
            block = self.pool.cached(key.key)
            if block is None:
                kept_at.append(key)
            else:
                found_at.append(key)
                blocks.append(block)
        return WindowedHit(blocks, [key.key for key in kept_at], len(digests), found_at, kept_at)

    def begin(self, kv: SequenceKV, hit: PrefixHit) -> None:
        assert isinstance(hit, WindowedHit)  # of `look_up`
        windows, pool, length = self._windows, self.pool, hit.length
        pool.acquire(hit.blocks)
        restored = pool.restore(hit.kept, [key.position for key in hit.kept_at])
        tables = [[RELEASED] * length for _ in range(windows.num_tables)]
        for keys, blocks in ((hit.found_at, hit.blocks), (hit.kept_at, restored)):
            for key, block in zip(keys, blocks, strict=True):
                tables[key.table][key.position] = block
        kv.block_table = tables[0]
        kv.window_tables = tables[1:]
        kv.num_behind = windows.first_visible(length * pool.block_size)
        # Restored blocks are cached once the step that fills them is done; to cache the others again changes nothing.
        kv.num_registered_blocks = min((key.position for key in hit.kept_at), default=length)

    def expect(self, sequence: Sequence) -> None:
        full = sequence.kv.num_computed_tokens // self.pool.block_size
        needed = self._windows.needed(sequence.kv.digests[:full])
        self.pool.host.expect(sequence.id, [key.key for key in needed], [key.position for key in needed])

    def register_full(self, kv: SequenceKV, full: int) -> None:
        pool, windows = self.pool, self._windows
        num_cached = min(max(kv.num_registered_blocks, kv.num_public_blocks), full)
        kv.extend_digests(full, pool.block_size)
        keys = [windows.keys(digest) for digest in kv.digests[num_cached:full]]
        for number, table in enumerate(self._tables(kv)):
            # Steps planned since may have released the first of these blocks.
            held = num_cached if windows.keeps_all and not number else max(num_cached, min(kv.num_behind, full))
            pool.register(table[held:full], [each[number] for each in keys[held - num_cached :]])
        kv.num_registered_blocks = full

    def most_chunk(self, chunk: int) -> int:
        return min(chunk, self._windows.most_chunk)

    def grow_decodes(self, sequences: list[Sequence]) -> list[Sequence]:
        size, each = self.pool.block_size, self.per_position
        growing = [s for s in sequences if s.kv.num_computed_tokens % size == 0]
        for sequence in growing:
            self._release_behind(sequence.kv)
        blocks = self.pool.allocate(len(growing) * each) if growing else None
        if blocks is None:
            return growing
        for number, sequence in enumerate(growing):
            self.extend(sequence.kv, blocks[number * each : (number + 1) * each])
        return []

    def make_room(self, kv: SequenceKV, tokens: int) -> int:
        lacking = super().make_room(kv, tokens)
        if lacking > 0:
            self._release_behind(kv)
        return lacking * self.per_position

    def pinned_blocks(self, kv: SequenceKV, lacking: int) -> list[int]:
        """Acquire the next blocks of a sequence that fills pinned ones, table after table."""
        first, each = len(kv.block_table), len(kv.pinned) // self.per_position
        positions = lacking // self.per_position
        starts = range(first, len(kv.pinned), each)
        blocks = [block for start in starts for block in kv.pinned[start : start + positions]]
        self.pool.acquire(blocks)
        return blocks

    def extend(self, kv: SequenceKV, blocks: list[int]) -> None:
        """Append `blocks`, those of one table after those of another."""
        tables = self._tables(kv)
        each = len(blocks) // len(tables)
        for number, table in enumerate(tables):
            table += blocks[number * each : (number + 1) * each]
        self._running_set.reserved_blocks -= each

    def reserved_bytes(self) -> int:
        return self.pool.block_bytes * sum(map(self._reserved_for, self._running_set.running.values()))

    def _reserved_for(self, sequence: Sequence) -> int:
        """Blocks that `sequence` still needs for its known tokens, and to continue."""
        windows, positions = self._windows, len(sequence.kv.block_table)
        lacking = max(0, self.pool.blocks_for(len(sequence.token_ids)) + 1 - positions)
        chunk = 1 if sequence.precedence.waiting_since is None else windows.most_chunk
        behind = min(lacking, max(0, windows.window_blocks(chunk) - (positions - sequence.kv.num_behind)))
        return lacking + (windows.num_tables - 1) * behind if windows.keeps_all else behind

    def blocks_of(self, kv: SequenceKV) -> list[int]:
        return [block for table in self._tables(kv) for block in table if block != RELEASED]

    def _release_behind(self, kv: SequenceKV) -> None:
        """Release the blocks that no token sees from the next one on."""
        first, windows = kv.num_behind, self._windows
        visible = windows.first_visible(kv.num_computed_tokens)
        if visible <= first or kv.pinned:
            return
        released: list[int] = []
        for table in kv.window_tables if windows.keeps_all else (kv.block_table,):
            released += table[first:visible]
            table[first:visible] = [RELEASED] * (visible - first)
        kv.num_behind = visible
        self.pool.release(released)

    def release(self, kv: SequenceKV) -> None:
        super().release(kv)
        kv.window_tables = []
        kv.num_behind = 0

    def take_back(self, kv: SequenceKV) -> None:
        # Drafts are behind no window: it moves with tokens that are known.
        needed = self.pool.blocks_for(kv.num_computed_tokens)
        drafted = len(kv.block_table) - needed
        if drafted > 0:
            self.pool.release([block for table in self._tables(kv) for block in table[needed:]])
            self._running_set.reserved_blocks += drafted
            kv.block_table = kv.block_table[:needed]
            for table in kv.window_tables:
                del table[needed:]

    def check_integrity(self) -> None:
        super().check_integrity()
        windows = self._windows
        for sequence in self._running_set.running.values():
            kv = sequence.kv
            for table, has_window in self._tables_with_windows(kv):
                behind = kv.num_behind if has_window else 0
                if len(table) != len(kv.block_table) or table[:behind] != [RELEASED] * behind:
                    raise IntegrityError(f"{sequence.id}: {table} is not a table with {behind} released blocks")
                if RELEASED in table[behind:]:
                    raise IntegrityError(f"{sequence.id}: {table} lacks blocks that are seen")
            if kv.num_behind > windows.first_visible(kv.num_computed_tokens):
                raise IntegrityError(f"{sequence.id}: {kv.num_behind} blocks were released too early")

    def _tables_with_windows(self, kv: SequenceKV) -> Iterator[tuple[list[int], bool]]:
        """Yield the tables of a sequence, and whether each has a window."""
        yield kv.block_table, not self._windows.keeps_all
        for table in kv.window_tables:
            yield table, True
