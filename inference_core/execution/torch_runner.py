"""Runs StepPlans operator by operator through torch: without native kernels, and as their oracle."""

import numpy as np
import torch

from inference_core.attention.backend import AttentionBackend
from inference_core.attention.batches import BlockAddresses
from inference_core.execution.host_blocks import HostBlocks
from inference_core.execution.layered_forward import LayeredForward
from inference_core.execution.logits_runner import LogitsRunner
from inference_core.kv_cache.block_io import HostBlockBytes
from inference_core.kv_cache.layout import KVLayout
from inference_core.lora.reference import TorchAdapterBank
from inference_core.models.transformer import Decoder
from inference_core.protocol import ModelInfo
from inference_core.step_plan import ScheduledSequence


class DecoderRunner(LogitsRunner):
    """A decoder over the shared arena. `slab_bytes` turns block ids into byte offsets (see `kv_cache.layout`)."""

    def __init__(
        self,
        info: ModelInfo,
        decoder: Decoder,
        layout: KVLayout,
        attention: AttentionBackend,
        slab_bytes: int,
        adapters: TorchAdapterBank | None = None,
    ) -> None:
        self.info = info
        self.config = decoder.config
        self.layout = layout
        self.decoder = decoder
        self.attention = attention
        self.adapters = self._bank = adapters
        self._addresses = BlockAddresses(layout.block_size, layout.block_bytes, slab_bytes)
        self._host = HostBlocks(attention.arena, self._addresses.offsets, layout.block_bytes)
        self.blocks = HostBlockBytes(attention.arena.numpy(), self._addresses.offsets, layout.block_bytes)

    def logits(self, sequences: list[ScheduledSequence], rows: list[int] | None = None) -> torch.Tensor:
        token_ids = [token for sequence in sequences for token in sequence.token_ids]
        wanted = sampled_rows(sequences) if rows is None else rows
        with torch.inference_mode():
            adapted = None if self._bank is None else self._bank.rows(sequences)
            return self.decoder.forward(token_ids, self._addresses.batch(sequences), self.attention, wanted, adapted)

    def layered_forward(self, sequences: list[ScheduledSequence]) -> LayeredForward:
        return LayeredForward(self, sequences)

    def layers(
        self, sequences: list[ScheduledSequence], hidden: torch.Tensor | None, begin: int, end: int
    ) -> torch.Tensor:
        """See `LayeredModel.layers`."""
        if hidden is None:
            hidden = self.decoder.embedding.rows([token for sequence in sequences for token in sequence.token_ids])
        if not sequences:
            return hidden  # all have ended at an earlier layer
        batch, adapted = self._addresses.batch(sequences), None if self._bank is None else self._bank.rows(sequences)
        self.decoder.compute(hidden, batch, self.attention, adapted, range(begin, end))
        return hidden

    def head(
        self, sequences: list[ScheduledSequence], hidden: torch.Tensor, begin: int, rows: list[int] | None
    ) -> torch.Tensor:
        """See `LayeredModel.head`."""
        hidden = self.layers(sequences, hidden, begin, len(self.decoder.layers))
        return self.decoder.logits(hidden, sampled_rows(sequences) if rows is None else rows)

    def copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        self._addresses.copy(self.attention.arena, copies)

    def offload_blocks(self, offloads: list[tuple[int, int]]) -> None:
        self._host.offload(offloads)

    def restore_blocks(self, restores: list[tuple[int, int]]) -> None:
        self._host.restore(restores)


def sampled_rows(sequences: list[ScheduledSequence]) -> list[int]:
    """Return the last row of every sequence that samples."""
    ends = np.cumsum([len(s.token_ids) for s in sequences])
    return [int(end) - 1 for end, s in zip(ends, sequences, strict=True) if s.sample is not None]
