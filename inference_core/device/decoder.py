"""A Llama-family decoder (Llama, Mistral, Qwen2, Qwen3) on a device, from the custom ops: one code for CPU and CUDA."""

from dataclasses import dataclass, replace

import torch
from torch.nn import functional

from inference_core.device.batch import DeviceBatch
from inference_core.linear.linear import Linear
from inference_core.model_config import ModelConfig
from inference_core.triton_kernels import ops
from inference_core.triton_kernels.layer_cache import LayerCache


@dataclass(slots=True, frozen=True)
class DeviceLayer:
    """One block's weights; `qkv` and `gate_up` are fused projections."""

    attention_norm: torch.Tensor
    qkv: Linear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    output: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear
    cache: LayerCache


@dataclass(slots=True, frozen=True)
class DeviceDecoder:
    """The network over the paged cache of its layers. `embedding`: [vocabulary, hidden] in the activations' dtype.

    `cos_sin`: float32 [max position, head_dim]. Heads are those of this rank, which may be fewer than the model's.
    """

    config: ModelConfig
    num_heads: int
    embedding: torch.Tensor
    layers: list[DeviceLayer]
    final_norm: torch.Tensor
    head: Linear
    cos_sin: torch.Tensor

    def over(self, arena: torch.Tensor) -> "DeviceDecoder":
        """The same weights over another arena."""
        layers = [replace(layer, cache=replace(layer.cache, arena=arena)) for layer in self.layers]
        return replace(self, layers=layers)

    def forward(self, tokens: torch.Tensor, batch: DeviceBatch) -> torch.Tensor:
        """Compute `tokens` int64 [T] and return logits [R, vocabulary] of the rows that draw.

        Nothing here waits for the device or depends on what is on it, so that the call can be captured as a graph.
        """
        residual = functional.embedding(tokens, self.embedding)
        normed = torch.empty_like(residual)
        torch.ops.aio.rms_norm(normed, residual, self.layers[0].attention_norm, self.config.rms_eps)
        for index, layer in enumerate(self.layers):
            x = _product(layer.output, self._attention(layer, normed, batch))
            torch.ops.aio.add_rms_norm(normed, residual, x, layer.mlp_norm, self.config.rms_eps)
            gate_up = _product(layer.gate_up, normed)
            activated = gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2)
            torch.ops.aio.swiglu(activated, gate_up)
            x = _product(layer.down, activated)
            if index + 1 < len(self.layers):
                following = self.layers[index + 1].attention_norm
                torch.ops.aio.add_rms_norm(normed, residual, x, following, self.config.rms_eps)
        # Only the rows that draw pass through the last norm and the vocabulary projection.
        rows = batch.sample_rows
        residual, x = residual.index_select(0, rows), x.index_select(0, rows)
        normed = torch.empty_like(residual)
        torch.ops.aio.add_rms_norm(normed, residual, x, self.final_norm, self.config.rms_eps)
        return _product(self.head, normed)

    def _attention(self, layer: DeviceLayer, normed: torch.Tensor, batch: DeviceBatch) -> torch.Tensor:
        cache = layer.cache
        numbers = ops.cache_numbers(cache)
        qkv = _product(layer.qkv, normed)
        torch.ops.aio.rope_and_write(
            qkv,
            cache.arena,
            self.cos_sin,
            batch.positions,
            batch.slots,
            layer.q_norm,
            layer.k_norm,
            self.config.rms_eps,
            *numbers,
        )
        mixed = qkv.new_empty(len(qkv), self.num_heads * self.config.head_dim)
        torch.ops.aio.paged_attention(
            mixed,
            qkv,
            cache.arena,
            batch.tables,
            batch.table_start,
            batch.query_start,
            batch.context_len,
            batch.shape.longest_query,
            self.config.sliding_window or 0,
            *numbers,
        )
        return mixed


def _product(linear: Linear, x: torch.Tensor) -> torch.Tensor:
    """[T, in_features] -> [T, out_features] in the dtype of `x`, freshly allocated."""
    out = x.new_empty(len(x), linear.out_features)
    linear.apply(x, out)
    return out
