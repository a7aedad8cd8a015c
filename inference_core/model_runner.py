"""Runs StepPlans operator by operator through torch: where no native kernels were built, and as their oracle."""

import numpy as np
import torch
from numpy.typing import NDArray

from inference_core.attention.backend import AttentionBackend, AttentionBatch
from inference_core.kv_layout import KVLayout
from inference_core.logits_runner import LogitsRunner
from inference_core.models.decoder import Decoder
from inference_core.protocol import ModelInfo
from inference_core.step_plan import ScheduledSequence


class DecoderRunner(LogitsRunner):
    """A decoder over the shared arena. `slab_bytes` turns block ids into byte offsets (see `kv_layout`)."""

    def __init__(
        self, info: ModelInfo, decoder: Decoder, layout: KVLayout, attention: AttentionBackend, slab_bytes: int
    ) -> None:
        self.info = info
        self.config = decoder.config
        self.layout = layout
        self.decoder = decoder
        self.attention = attention
        self._slab_bytes = slab_bytes
        self._blocks_per_slab = layout.blocks_per_slab(slab_bytes)

    def logits(self, sequences: list[ScheduledSequence], rows: list[int] | None = None) -> torch.Tensor:
        token_ids = [token for sequence in sequences for token in sequence.token_ids]
        wanted = _sampled_rows(sequences) if rows is None else rows
        with torch.inference_mode():
            return self.decoder.forward(token_ids, self._batch(sequences), self.attention, wanted)

    def copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        arena, size = self.attention.arena, self.layout.block_bytes
        for pair in copies:
            source, target = self._offsets(list(pair)).tolist()
            arena[target : target + size] = arena[source : source + size]

    def _batch(self, sequences: list[ScheduledSequence]) -> AttentionBatch:
        lengths = np.array([len(s.token_ids) for s in sequences], np.int32)
        starts = np.array([s.start for s in sequences], np.int32)
        tables = [self._offsets(s.block_table) for s in sequences]
        table_lengths = np.array([len(table) for table in tables], np.int32)
        ranges = [np.arange(s.start, s.start + len(s.token_ids)) for s in sequences]
        positions = np.concatenate(ranges)
        slots = np.concatenate([t[r // self.layout.block_size] for t, r in zip(tables, ranges, strict=True)])
        return AttentionBatch(
            positions=torch.from_numpy(positions.astype(np.int32)),
            slots=torch.from_numpy(slots),
            block_offsets=torch.from_numpy(np.concatenate(tables)),
            table_start=torch.from_numpy(np.cumsum(table_lengths, dtype=np.int32) - table_lengths),
            query_start=torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)),
            context_len=torch.from_numpy(starts + lengths),
        )

    def _offsets(self, block_table: list[int]) -> NDArray[np.int64]:
        slab, index = np.divmod(np.array(block_table, np.int64), self._blocks_per_slab)
        offsets: NDArray[np.int64] = slab * self._slab_bytes + index * self.layout.block_bytes
        return offsets


def _sampled_rows(sequences: list[ScheduledSequence]) -> list[int]:
    """The last row of every sequence that samples."""
    ends = np.cumsum([len(s.token_ids) for s in sequences])
    return [int(end) - 1 for end, s in zip(ends, sequences, strict=True) if s.sample is not None]
