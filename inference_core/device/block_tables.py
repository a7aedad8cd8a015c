"""Block tables that live on the device: only what has changed since the last step travels there."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inference_core.errors import CoreError
from inference_core.kv_cache.layout import KVLayout
from inference_core.step_plan import ScheduledSequence


class TooManySequencesError(CoreError):
    """A step has more sequences than its runner has rows for."""


@dataclass(slots=True, frozen=True)
class TableUpdate:
    """What the device must write before a step: `values` int64 (byte offsets of blocks) at `places` int64 of the flat
    tables; and `starts` int32 [S]: where each sequence's table begins."""

    places: NDArray[np.int64]
    values: NDArray[np.int64]
    starts: NDArray[np.int32]


class _Row:
    """What the device knows of one sequence: the first `length` entries of `table`, a list that only grows."""

    __slots__ = ("length", "number", "table")

    def __init__(self, number: int) -> None:
        self.number = number
        self.table: list[int] | None = None
        self.length = 0


class BlockTables:
    """`rows` tables of `row_blocks` entries each. A sequence keeps its row while it is in steps; who has been in none
    for longest gives way. Cost per step: a few operations per sequence, and per new block.
    """

    def __init__(self, layout: KVLayout, slab_bytes: int, *, rows: int, row_blocks: int) -> None:
        self.rows = rows
        self.row_blocks = row_blocks
        self.block_size = layout.block_size
        self._block_bytes = layout.block_bytes
        self._slab_bytes = slab_bytes
        self._blocks_per_slab = layout.blocks_per_slab(slab_bytes)
        self._known: dict[str, _Row] = {}

    def update(self, sequences: list[ScheduledSequence], *, renamed: bool) -> TableUpdate:
        """Place the tables of a step's sequences. `renamed`: blocks were moved, so that lists changed in the middle.

        Raises `TooManySequencesError`, or ValueError for a table that is longer than a row.
        """
        if len(sequences) > self.rows:
            raise TooManySequencesError(f"{len(sequences)} sequences in one step; there is room for {self.rows}")
        if renamed:
            self.forget()
        starts: list[int] = []
        places: list[int] = []
        blocks: list[int] = []
        for sequence in sequences:
            row, table = self._row(sequence.sequence_id), sequence.block_table
            if len(table) > self.row_blocks:
                raise ValueError(
                    f"{sequence.sequence_id} has {len(table)} blocks; a row of the tables takes {self.row_blocks}"
                )
            if row.table is not table or row.length > len(table):
                row.table, row.length = table, 0
            start = row.number * self.row_blocks
            starts.append(start)
            if row.length < len(table):
                places += range(start + row.length, start + len(table))
                blocks += table[row.length :]
                row.length = len(table)
        return TableUpdate(np.array(places, np.int64), self.byte_offsets(blocks), np.array(starts, np.int32))

    def offsets(self, block_table: list[int], start: int, count: int) -> NDArray[np.int64]:
        """Byte offset int64 [count] of the block that takes each of the tokens at positions `start` and after."""
        size = self.block_size
        first = start // size
        blocks = self.byte_offsets(block_table[first : (start + count - 1) // size + 1])
        return blocks[np.arange(start, start + count) // size - first] if count > 1 else blocks

    def byte_offsets(self, blocks: list[int]) -> NDArray[np.int64]:
        """Where blocks lie in the arena, int64 [n]."""
        slab, index = np.divmod(np.array(blocks, np.int64), self._blocks_per_slab)
        offsets: NDArray[np.int64] = slab * self._slab_bytes + index * self._block_bytes
        return offsets

    def forget(self) -> None:
        """What the device holds may be anything: every table travels again."""
        for row in self._known.values():
            row.table = None

    def _row(self, sequence_id: str) -> _Row:
        row = self._known.pop(sequence_id, None)
        if row is None:
            if len(self._known) < self.rows:
                row = _Row(len(self._known))
            else:
                # The first was asked for longest ago: nobody whom this step, of at most `rows`, has placed already.
                row = self._known.pop(next(iter(self._known)))
                row.table = None
        self._known[sequence_id] = row
        return row
