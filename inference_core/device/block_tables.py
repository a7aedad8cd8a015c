"""The sizes of a step on a device, and its block tables. No torch.

Some step sizes are captured as CUDA graphs; other steps of few tokens are padded to one of them (SPEC AT-08). Block
tables are updated incrementally: a step copies only the changes since the last one.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inference_core.errors import CoreError
from inference_core.kv_cache.layout import KVLayout
from inference_core.step_plan import ScheduledSequence

LONGEST_QUERY = 16
# The device computes longer prompts for longer than the host takes to launch their kernels one by one.
_MOST_PROMPT_TOKENS = 512
_PROMPT_ROWS = (8, 64)


@dataclass(slots=True, frozen=True)
class Padding:
    """What a step is padded to: `tokens`, and `rows` of sequences and of draws."""

    tokens: int
    rows: int


@dataclass(slots=True, frozen=True)
class StepBuckets:
    """Numbers of tokens, ascending."""

    decodes: tuple[int, ...] = ()
    """Of steps in which each sequence computes at most `LONGEST_QUERY` tokens (decodes with their drafts), with as many
    rows.
    """
    prompts: tuple[int, ...] = ()
    """Of other steps, each with one of `prompt_rows` rows."""
    prompt_rows: tuple[int, ...] = ()

    @classmethod
    def up_to(cls, tokens: int, draws: int) -> "StepBuckets":
        """For steps of at most `tokens` and `draws`. Decodes: 1, 2, 4, then multiples of 8 up to 256 and of 16 beyond,
        and the most. Prompts: multiples of 32 up to 256, and of 64 up to 512.

        From 64 tokens on, less than an eighth of a step of decodes is padding, and of prompts less than half.
        """
        most = min(tokens, draws)
        decodes = {1, 2, 4, *range(8, 256, 8), *range(256, most + 1, 16), most}
        prompts = (*range(32, 256, 32), *range(256, _MOST_PROMPT_TOKENS + 1, 64))
        return cls(
            tuple(sorted(size for size in decodes if size <= most)),
            tuple(size for size in prompts if size <= tokens),
            (*(rows for rows in _PROMPT_ROWS if rows < most), most),
        )

    @property
    def most_tokens(self) -> int:
        """Tokens of the largest step; 0 if none is captured."""
        return max((*self.decodes, *self.prompts), default=0)

    def padding(self, sequences: Sequence[ScheduledSequence]) -> Padding | None:
        """The smallest bucket for a step; None if it has more tokens or rows than the largest."""
        lengths = [len(s.token_ids) for s in sequences]
        if max(lengths, default=0) <= LONGEST_QUERY:
            tokens = rows = _smallest(self.decodes, sum(lengths))
        else:
            draws = sum(s.num_drafts + 1 for s in sequences if s.sample is not None)
            tokens = _smallest(self.prompts, sum(lengths))
            rows = _smallest(self.prompt_rows, max(len(sequences), draws))
        return None if tokens is None or rows is None else Padding(tokens, rows)


def _smallest(sizes: tuple[int, ...], wanted: int) -> int | None:
    """The smallest of `sizes` of at least `wanted`."""
    index = bisect_left(sizes, wanted)
    return sizes[index] if index < len(sizes) else None


class TooManySequencesError(CoreError):
    """A step has more sequences than its runner has rows for."""


@dataclass(slots=True, frozen=True)
class TableUpdate:
    """Writes for the device before a step."""

    places: NDArray[np.int64]
    """int64: indices of the flat tables that take the values."""
    values: NDArray[np.int64]
    """int64: byte offsets of blocks."""
    starts: NDArray[np.int32]
    """int32 [S]: index of each sequence's table."""


class _Row:
    """What the device has of one sequence: the first `length` entries of `table`, a list that only grows."""

    __slots__ = ("length", "number", "table")

    def __init__(self, number: int) -> None:
        self.number = number
        self.table: list[int] | None = None
        self.length = 0


class BlockTables:
    """`rows` tables of `row_blocks` entries each. A sequence keeps its row between steps; the least recently scheduled
    sequence is evicted. Cost per step: a few operations per sequence and per new block.
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
        """Assign rows to a step's sequences and return the changes. `renamed`: moved blocks changed tables inside.

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
        """Byte offsets int64 [count] of the blocks of the tokens at positions `start` and after."""
        size = self.block_size
        first = start // size
        blocks = self.byte_offsets(block_table[first : (start + count - 1) // size + 1])
        return blocks[np.arange(start, start + count) // size - first] if count > 1 else blocks

    def byte_offsets(self, blocks: list[int]) -> NDArray[np.int64]:
        """Byte offsets of blocks in the arena, int64 [n]."""
        slab, index = np.divmod(np.array(blocks, np.int64), self._blocks_per_slab)
        offsets: NDArray[np.int64] = slab * self._slab_bytes + index * self._block_bytes
        return offsets

    def forget(self) -> None:
        """Forget what the device has, so that every table is copied again."""
        for row in self._known.values():
            row.table = None

    def _row(self, sequence_id: str) -> _Row:
        row = self._known.pop(sequence_id, None)
        if row is None:
            if len(self._known) < self.rows:
                row = _Row(len(self._known))
            else:
                # The first is the least recently used. A step has at most `rows` sequences, so it is not of this step.
                row = self._known.pop(next(iter(self._known)))
                row.table = None
        self._known[sequence_id] = row
        return row
