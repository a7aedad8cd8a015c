"""Attention through the custom ops of `triton_kernels`: Triton on CUDA, their torch references on the CPU."""

import torch

from inference_core.attention.backend import AttentionBackend, AttentionBatch
from inference_core.kv_cache.layout import KVLayout
from inference_core.model_config import ModelConfig
from inference_core.triton_kernels import decoder_ops
from inference_core.triton_kernels.attention.layer_cache import LayerCache


class TritonAttention(AttentionBackend):
    """Head-major blocks (see `triton_kernels.attention.layer_cache`). `qkv` and `out`: float32, float16 or bfloat16.

    `kv_scales`: for an FP8 cache one (key, value) scale per layer; None is 1 throughout.
    """

    def __init__(
        self,
        config: ModelConfig,
        layout: KVLayout,
        arena: torch.Tensor,
        cos_sin: torch.Tensor,
        kv_scales: list[tuple[float, float]] | None = None,
    ) -> None:
        """Raises MemoryPlanError for a layout that the kernels cannot read."""
        super().__init__(config, layout, arena, cos_sin)
        scales = kv_scales or [(1.0, 1.0)] * layout.num_layers
        self._layers = [
            decoder_ops.cache_numbers(LayerCache(arena, layout, layer, *pair)) for layer, pair in enumerate(scales)
        ]

    def rope_and_write(
        self,
        qkv: torch.Tensor,
        layer: int,
        batch: AttentionBatch,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
    ) -> None:
        """The keys of `qkv` stay as they are: nobody reads them again."""
        torch.ops.aio.rope_and_write(
            qkv,
            self.arena,
            self.cos_sin,
            batch.positions,
            batch.slots,
            q_norm,
            k_norm,
            self.config.rms_eps,
            *self._layers[layer],
        )

    def attend(self, qkv: torch.Tensor, layer: int, batch: AttentionBatch, out: torch.Tensor) -> None:
        torch.ops.aio.paged_attention(
            out,
            qkv,
            self.arena,
            batch.block_offsets,
            batch.table_start,
            batch.query_start,
            batch.context_len,
            batch.max_query_len or qkv.shape[0],
            self.config.sliding_window or 0,
            *self._layers[layer],
        )
