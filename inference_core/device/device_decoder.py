"""A decoder of any supported architecture, by its config's features, made of custom ops: one code on CPU and CUDA."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch.nn import functional

from inference_core.device.adapter_bank import DeviceAdapterBank
from inference_core.device.batch import DeviceBatch
from inference_core.linear.device import EightBitLinear
from inference_core.linear.linear import Linear
from inference_core.lora.adapter import Projection
from inference_core.model_config import ModelConfig
from inference_core.models.transformer import DecoderLayer, StackedExperts
from inference_core.triton_kernels import ops
from inference_core.triton_kernels.layer_cache import LayerCache
from inference_core.triton_kernels.ops import Activations, codes_and_scales, route
from inference_core.triton_kernels.weights import QuantizedRows

# All-reduce over the ranks that share a layer: sums in place and returns the sum.
RankSum = Callable[[torch.Tensor], torch.Tensor]


def of_one_rank(part: torch.Tensor) -> torch.Tensor:
    """The all-reduce of a rank that shares its layers with no other: the identity."""
    return part


@dataclass(slots=True, frozen=True)
class DeviceDecoder:
    """The network, or one rank's shard of it, over the paged cache of its layers."""

    config: ModelConfig
    """The shard's configuration."""
    dtype: torch.dtype
    """The type of activations."""
    embedding: torch.Tensor | None
    """[own vocabulary rows, hidden]; None, as are `final_norm` and `head`, if another pipeline stage holds them."""
    layers: list[DecoderLayer]
    caches: list[LayerCache]
    """One per layer."""
    final_norm: torch.Tensor | None
    head: Linear | None
    cos_sin: torch.Tensor
    """float32 [tables x max position, head_dim]; see `rotary_table`."""
    vocabulary: range | None = None
    """The range of own vocabulary rows, None for all."""
    rank_sum: RankSum = of_one_rank
    """Called twice in every layer, and for a sharded embedding (SPEC PX-01)."""
    adapters: DeviceAdapterBank | None = None
    """Adapter slots, sharded like the layers, so `rank_sum` adds up the low-rank products too."""

    @property
    def logits_dtype(self) -> torch.dtype:
        """Capped logits are computed, and kept, in float32."""
        return self.dtype if self.config.final_softcap is None else torch.float32

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
        normed = torch.empty_like(hidden)
        x: torch.Tensor | None = None
        post_norm: torch.Tensor | None = None
        for index, (layer, cache) in enumerate(zip(self.layers, self.caches, strict=True)):
            takes = _takes(layer.qkv, batch)
            inputs = self._add(hidden, x, post_norm, layer.attention_norm, normed, takes)
            mixed = self._attention(index, cache, inputs, batch)
            x = self.rank_sum(self._adapted(index, "output", layer.output, mixed, batch))
            takes = None if isinstance(layer.mlp, StackedExperts) else _takes(layer.gate_up, batch)
            inputs = self._add(hidden, x, layer.attention_post_norm, layer.mlp_norm, normed, takes)
            x, post_norm = self.rank_sum(self._mlp(index, inputs, batch)), layer.mlp_post_norm
        self._add(hidden, x, post_norm, None, normed)
        return hidden

    def _add(
        self,
        hidden: torch.Tensor,
        x: torch.Tensor | None,
        post_norm: torch.Tensor | None,
        norm: torch.Tensor | None,
        normed: torch.Tensor,
        takes: torch.dtype | None = None,
    ) -> Activations:
        """hidden += x, a sublayer's result, normalised if a `post_norm` stands behind it (None: nothing is added).
        Returns the next sublayer's inputs: `hidden` normalised, in `normed` or as codes it `takes`, or itself."""
        eps = self.config.rms_eps
        if x is not None and post_norm is not None:
            torch.ops.aio.rms_norm(x, x, post_norm, eps)
        if norm is None:
            return hidden if x is None else hidden.add_(x)
        result = normed if takes is None else QuantizedRows.empty(hidden.shape, takes, hidden.device)
        out, scales = codes_and_scales(result)
        if x is None:
            torch.ops.aio.rms_norm(out, hidden, norm, eps, scales)
        else:
            torch.ops.aio.add_rms_norm(out, hidden, x, norm, eps, scales)
        return result

    def _mlp(self, index: int, x: Activations, batch: DeviceBatch) -> torch.Tensor:
        layer = self.layers[index]
        if isinstance(layer.mlp, StackedExperts):
            assert isinstance(x, torch.Tensor)
            return self._mix(layer.mlp, x, batch)
        gate_up = self._adapted(index, "gate_up", layer.gate_up, x, batch)
        return self._adapted(index, "down", layer.down, self._activated(gate_up, _takes(layer.down, batch)), batch)

    def _mix(self, mixture: StackedExperts, x: torch.Tensor, batch: DeviceBatch) -> torch.Tensor:
        """The weighted results of the experts that each row of `x` takes."""
        experts = self.config.experts
        assert experts is not None  # the layer has some
        taken = experts.per_token
        rows = route(self._product(mixture.router, x), batch.slots, taken, normalise=experts.normalised)
        gate_up = x.new_empty(len(x) * taken, mixture.gate_up.out_features)
        mixture.gate_up.apply(x, gate_up, rows, taken)
        parts = x.new_empty(len(x) * taken, mixture.down.out_features)
        activated = self._activated(gate_up, None)
        assert isinstance(activated, torch.Tensor)
        mixture.down.apply(activated, parts, rows, 0)
        out = torch.empty_like(x)
        torch.ops.aio.add_experts(out, parts, rows.experts, rows.weights)
        return out

    def _activated(self, gate_up: torch.Tensor, takes: torch.dtype | None) -> Activations:
        shape = len(gate_up), gate_up.shape[1] // 2
        activated = gate_up.new_empty(shape) if takes is None else QuantizedRows.empty(shape, takes, gate_up.device)
        out, scales = codes_and_scales(activated)
        if self.config.activation == "silu":
            torch.ops.aio.swiglu(out, gate_up, scales)
        else:
            torch.ops.aio.geglu(out, gate_up, scales)
        return activated

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [R, own vocabulary rows] of `hidden` [R, hidden], in `logits_dtype`."""
        assert self.final_norm is not None  # called on last stages only
        assert self.head is not None
        normed = torch.empty_like(hidden)
        torch.ops.aio.rms_norm(normed, hidden, self.final_norm, self.config.rms_eps)
        logits, cap = self._product(self.head, normed), self.config.final_softcap
        return logits if cap is None else logits.float().div_(cap).tanh_().mul_(cap)

    def _adapted(
        self, layer: int, projection: Projection, linear: Linear, x: Activations, batch: DeviceBatch
    ) -> torch.Tensor:
        """A `projection` of x [T, in_features] plus the updates of the rows' adapters."""
        out = self._product(linear, x)
        if batch.adapted is not None:
            assert self.adapters is not None  # without adapters, no step names a slot
            assert isinstance(x, torch.Tensor)
            self.adapters.add(layer, projection, x, out, batch.adapted)
        return out

    def _product(self, linear: Linear, x: Activations) -> torch.Tensor:
        """[T, in_features] -> [T, out_features], freshly allocated."""
        numbers, _ = codes_and_scales(x)
        out = numbers.new_empty(len(numbers), linear.out_features, dtype=self.dtype)
        if isinstance(linear, EightBitLinear):
            linear.apply(x, out)
        else:
            linear.apply(numbers, out)
        return out

    def _attention(self, index: int, cache: LayerCache, inputs: Activations, batch: DeviceBatch) -> torch.Tensor:
        config, layer, numbers = self.config, self.layers[index], ops.cache_numbers(cache)
        window = config.window_of(index) or 0
        qkv = self._adapted(index, "qkv", layer.qkv, inputs, batch)
        if config.attention.qk_norm_whole:
            self._norm_heads(qkv, layer)
        torch.ops.aio.rope_and_write(
            qkv,
            cache.arena,
            self._rotary_table(index),
            batch.positions,
            batch.slots,
            None if config.attention.qk_norm_whole else layer.q_norm,
            None if config.attention.qk_norm_whole else layer.k_norm,
            config.rms_eps,
            *numbers,
        )
        mixed = qkv.new_empty(len(qkv), config.num_heads * config.head_dim)
        torch.ops.aio.paged_attention(
            mixed,
            qkv,
            cache.arena,
            batch.tables,
            batch.table_start,
            batch.query_start,
            batch.context_len,
            batch.shape.longest_query,
            0 if window else batch.shape.context_blocks,
            [] if window else list(batch.shape.prompts),
            window,
            config.attention.softcap or 0.0,
            *numbers,
        )
        return mixed

    def _norm_heads(self, qkv: torch.Tensor, layer: DecoderLayer) -> None:
        """Normalise all queries, and all keys, of a token at once (OLMo 2)."""
        query = self.config.num_heads * self.config.head_dim
        key = query + self.config.num_kv_heads * self.config.head_dim
        for part, weight in ((qkv[:, :query], layer.q_norm), (qkv[:, query:key], layer.k_norm)):
            torch.ops.aio.rms_norm(part, part, weight, self.config.rms_eps)

    def _rotary_table(self, index: int) -> torch.Tensor:
        """The rotary table of a layer, float32 [max position, head_dim]."""
        tables = self.config.rope.num_tables
        return self.cos_sin if tables == 1 else self.cos_sin.chunk(tables)[self.config.rope_of(index)]


def _takes(linear: Linear, batch: DeviceBatch) -> torch.dtype | None:
    """The dtype of codes that `linear` takes, or None for activations, which adapters of the `batch` read too."""
    return linear.takes if isinstance(linear, EightBitLinear) and batch.adapted is None else None
