"""Attention on the native kernels: one pass over the blocks with an online softmax, K/V read once per query group."""

import torch

from inference_core.attention.backend import AttentionBackend, AttentionBatch
from inference_core.native.cpu import KV_DTYPES, extension


class CpuAttention(AttentionBackend):
    """Batch-invariant: the order of summation depends on a token's own position only.

    `prompt`: uint8 [tokens], which tokens of the next calls are computed in prompt arithmetic; None for none.
    """

    prompt: torch.Tensor | None = None

    def rope_and_write(
        self,
        qkv: torch.Tensor,
        layer: int,
        batch: AttentionBatch,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
    ) -> None:
        config, layout = self.config, self.layout
        extension().rope_and_write(
            qkv.data_ptr(),
            qkv.stride(0),
            self.table_of(layer).data_ptr(),
            batch.positions.data_ptr(),
            batch.slots.data_ptr(),
            self.arena.data_ptr(),
            layer * layout.layer_bytes,
            0 if q_norm is None else q_norm.data_ptr(),
            0 if k_norm is None else k_norm.data_ptr(),
            config.rms_eps,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            layout.block_size,
            KV_DTYPES[layout.dtype],
            qkv.shape[0],
        )

    def attend(
        self,
        qkv: torch.Tensor,
        layer: int,
        batch: AttentionBatch,
        out: torch.Tensor,
        sinks: torch.Tensor | None = None,
    ) -> None:
        config, layout = self.config, self.layout
        extension().attend(
            qkv.data_ptr(),
            qkv.stride(0),
            out.data_ptr(),
            out.stride(0),
            self.arena.data_ptr(),
            batch.block_offsets.data_ptr(),
            batch.table_start.data_ptr(),
            batch.query_start.data_ptr(),
            batch.context_len.data_ptr(),
            batch.context_len.shape[0],
            layer * layout.layer_bytes,
            config.head_dim**-0.5,
            config.window_of(layer) or 0,
            config.attention_softcap or 0.0,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            layout.block_size,
            KV_DTYPES[layout.dtype],
            0 if self.prompt is None else self.prompt.data_ptr(),
            0 if sinks is None else sinks.data_ptr(),
        )
