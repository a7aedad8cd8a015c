"""A card's FP8 cache on the CPU: what it loses can be compared without a card (SPEC KV-07, QZ-09)."""

import torch

from inference_core.attention import AttentionBackend, AttentionBatch
from inference_core.triton_kernels.reference import rounded_to_fp8


class Fp8Attention(AttentionBackend):
    """`inner` over a float32 cache, whose keys and values are rounded as the cards' kernels store them: to E4M3 with a
    scale per token and head. Products are those of `inner`."""

    def __init__(self, inner: AttentionBackend) -> None:
        if inner.layout.dtype != "float32":
            raise ValueError(f"the cache is of {inner.layout.dtype}; only float32 holds every number of FP8")
        super().__init__(inner.config, inner.layout, inner.arena, inner.cos_sin)
        self._inner = inner

    def rope_and_write(
        self,
        qkv: torch.Tensor,
        layer: int,
        batch: AttentionBatch,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
    ) -> None:
        """See `AttentionBackend.rope_and_write`."""
        self._inner.rope_and_write(qkv, layer, batch, q_norm, k_norm)
        numbers = self.arena[: self.arena.numel() // 4 * 4].view(torch.float32)
        for places in self._written(layer, batch):
            numbers[places] = rounded_to_fp8(numbers[places])

    def attend(
        self,
        qkv: torch.Tensor,
        layer: int,
        batch: AttentionBatch,
        out: torch.Tensor,
        sinks: torch.Tensor | None = None,
    ) -> None:
        """See `AttentionBackend.attend`."""
        self._inner.attend(qkv, layer, batch, out, sinks)

    def _written(self, layer: int, batch: AttentionBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Places of the keys and the values [tokens, kv_heads, head_dim] of a step in the arena's float32 numbers."""
        layout = self.layout
        heads = torch.arange(layout.num_kv_heads) * (layout.head_bytes // 4)
        first = ((batch.slots + layer * layout.layer_bytes) // 4)[:, None, None] + heads[None, :, None]
        at = (batch.positions.long() % layout.block_size)[:, None, None]
        dims = torch.arange(layout.head_dim)
        keys = first + dims * layout.block_size + at
        values = first + layout.head_dim * layout.block_size + at * layout.head_dim + dims
        return keys, values
