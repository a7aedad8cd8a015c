"""A Llama-family decoder (Llama, Mistral, Qwen2, Qwen3) made of custom ops: the same code on CPU and CUDA."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch.nn import functional

from inference_core.device.adapter_bank import DeviceAdapterBank
from inference_core.device.batch import DeviceBatch
from inference_core.linear.linear import Linear
from inference_core.lora.adapter import Projection
from inference_core.model_config import ModelConfig
from inference_core.models.transformer import DecoderLayer
from inference_core.triton_kernels import decoder_ops
from inference_core.triton_kernels.attention.layer_cache import LayerCache

# All-reduce over the ranks that share a layer: sums in place and returns the sum.
RankSum = Callable[[torch.Tensor], torch.Tensor]


def of_one_rank(part: torch.Tensor) -> torch.Tensor:
    """The all-reduce of a rank that shares its layers with no other: the identity."""
    return part


@dataclass(slots=True, frozen=True)
class DeviceDecoder:
    """The network, or one rank's shard of it, over the paged cache of its layers.

    `config`: the shard's. Activations have `dtype`. `embedding`: [own vocabulary rows, hidden]; it is None, and so are
    `final_norm` and `head`, if another pipeline stage holds them. `vocabulary`: the range of own vocabulary rows, None
    for all. `cos_sin`: float32 [max position, head_dim]. `caches`: one per layer. `rank_sum` is called twice in every
    layer, and for a sharded embedding (SPEC PX-01). `adapters`: adapter slots, sharded like the layers, so `rank_sum`
    adds up the low-rank products too.
    """

    config: ModelConfig
    dtype: torch.dtype
    embedding: torch.Tensor | None
    layers: list[DecoderLayer]
    caches: list[LayerCache]
    final_norm: torch.Tensor | None
    head: Linear | None
    cos_sin: torch.Tensor
    vocabulary: range | None = None
    rank_sum: RankSum = of_one_rank
    adapters: DeviceAdapterBank | None = None

    def over(self, arena: torch.Tensor) -> "DeviceDecoder":
        """The same weights over another arena."""
        return replace(self, caches=[replace(cache, arena=arena) for cache in self.caches])

    def forward(self, tokens: torch.Tensor, batch: DeviceBatch) -> torch.Tensor:
        """Compute `tokens` int64 [T] of a whole network and return logits [R, vocabulary] of the sampled rows.

        It neither waits for the device nor reads its data, so the call can be captured as a graph.
        """
        hidden = self.compute(self.embed(tokens), batch)
        # Only sampled rows pass through the last norm and the vocabulary projection.
        return self.logits(hidden.index_select(0, batch.sample_rows))

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """[T, hidden] of `tokens` int64 [T]; each rank looks up its own rows and adds zeros for the others'."""
        rows, scale = self._rows(tokens), self.config.embedding_scale
        return rows if scale == 1.0 else rows * scale

    def _rows(self, tokens: torch.Tensor) -> torch.Tensor:
        assert self.embedding is not None  # called on first stages only
        if self.vocabulary is None:
            return functional.embedding(tokens, self.embedding)
        own = tokens - self.vocabulary.start
        held = (own >= 0) & (own < len(self.vocabulary))
        rows = functional.embedding(torch.where(held, own, 0), self.embedding)
        return self.rank_sum(rows.masked_fill_(~held[:, None], 0))

    def compute(self, hidden: torch.Tensor, batch: DeviceBatch) -> torch.Tensor:
        """Apply these layers to `hidden` [T, hidden] in place; writes the tokens' keys and values."""
        eps = self.config.rms_eps
        normed = torch.empty_like(hidden)
        torch.ops.aio.rms_norm(normed, hidden, self.layers[0].attention_norm, eps)
        for index, (layer, cache) in enumerate(zip(self.layers, self.caches, strict=True)):
            mixed = self._attention(index, cache, normed, batch)
            x = self.rank_sum(self._adapted(index, "output", layer.output, mixed, batch))
            torch.ops.aio.add_rms_norm(normed, hidden, x, layer.mlp_norm, eps)
            gate_up = self._adapted(index, "gate_up", layer.gate_up, normed, batch)
            activated = gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2)
            torch.ops.aio.swiglu(activated, gate_up)
            x = self.rank_sum(self._adapted(index, "down", layer.down, activated, batch))
            if index + 1 < len(self.layers):
                following = self.layers[index + 1].attention_norm
                torch.ops.aio.add_rms_norm(normed, hidden, x, following, eps)
        return hidden.add_(x)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [R, own vocabulary rows] of `hidden` [R, hidden]."""
        assert self.final_norm is not None  # called on last stages only
        assert self.head is not None
        normed = torch.empty_like(hidden)
        torch.ops.aio.rms_norm(normed, hidden, self.final_norm, self.config.rms_eps)
        return _product(self.head, normed)

    def _adapted(
        self, layer: int, projection: Projection, linear: Linear, x: torch.Tensor, batch: DeviceBatch
    ) -> torch.Tensor:
        """A `projection` of x [T, in_features] plus the updates of the rows' adapters."""
        out = _product(linear, x)
        if batch.adapted is not None:
            assert self.adapters is not None  # without adapters, no step names a slot
            self.adapters.add(layer, projection, x, out, batch.adapted)
        return out

    def _attention(self, index: int, cache: LayerCache, normed: torch.Tensor, batch: DeviceBatch) -> torch.Tensor:
        layer, numbers = self.layers[index], decoder_ops.cache_numbers(cache)
        qkv = self._adapted(index, "qkv", layer.qkv, normed, batch)
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
        mixed = qkv.new_empty(len(qkv), self.config.num_heads * self.config.head_dim)
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
