"""Builds the tensors that attention backends take from a step's sequences."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from inference_core.attention.backend import AttentionBatch
from inference_core.step_plan import ScheduledSequence


@dataclass(slots=True, frozen=True)
class BlockAddresses:
    """Maps one model's block ids to byte offsets in the arena: `block_bytes` apart within slabs of `slab_bytes`.

    If a mesh is split unevenly, its ranks have blocks of different sizes under the same ids; `block_bytes` is then the
    largest rank's on all ranks, and the others leave the rest of each block unused.
    """

    block_size: int
    block_bytes: int
    slab_bytes: int

    def offsets(self, block_table: list[int]) -> NDArray[np.int64]:
        """Byte offsets in the arena, int64 [blocks]."""
        slab, index = np.divmod(np.array(block_table, np.int64), self.slab_bytes // self.block_bytes)
        offsets: NDArray[np.int64] = slab * self.slab_bytes + index * self.block_bytes
        return offsets

    def batch(self, sequences: list[ScheduledSequence]) -> AttentionBatch:
        """The positions, slots and tables of all tokens of `sequences`, on the CPU."""
        lengths = np.array([len(s.token_ids) for s in sequences], np.int32)
        starts = np.array([s.start for s in sequences], np.int32)
        tables = [self.offsets(s.block_table) for s in sequences]
        table_lengths = np.array([len(table) for table in tables], np.int32)
        ranges = [np.arange(s.start, s.start + len(s.token_ids)) for s in sequences]
        positions = np.concatenate(ranges)
        slots = np.concatenate([t[r // self.block_size] for t, r in zip(tables, ranges, strict=True)])
        return AttentionBatch(
            positions=torch.from_numpy(positions.astype(np.int32)),
            slots=torch.from_numpy(slots),
            block_offsets=torch.from_numpy(np.concatenate(tables)),
            table_start=torch.from_numpy(np.cumsum(table_lengths, dtype=np.int32) - table_lengths),
            query_start=torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)),
            context_len=torch.from_numpy(starts + lengths),
        )

    def copy(self, arena: torch.Tensor, copies: list[tuple[int, int]]) -> None:
        """Copy whole blocks (from, to) within `arena` uint8 [bytes]."""
        for pair in copies:
            source, target = self.offsets(list(pair)).tolist()
            arena[target : target + self.block_bytes] = arena[source : source + self.block_bytes]
