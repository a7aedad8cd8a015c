"""A decoder of any supported architecture over ragged batches of the paged cache, by the features of its config.

Norm and activation run on native kernels if built, else in plain torch. The tables of rotary embeddings (Su et al.
2021) have the frequency scalings of long-context checkpoints.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import torch
from torch.nn import functional

from inference_core.attention import AttentionBackend, AttentionBatch
from inference_core.linear.linear import Linear
from inference_core.loaders.rope_scaling import llama3_factors
from inference_core.lora.adapter import Projection
from inference_core.lora.packing import AdaptedRows
from inference_core.model_config import ModelConfig, RopeScaling, RotaryEmbedding
from inference_core.native import cpu

if TYPE_CHECKING:
    from inference_core.linear.device import ExpertLinear


def reference_rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor) -> None:
    """out[T, D] = x / sqrt(mean(x^2) + eps) * weight."""
    torch.mul(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps), weight, out=out)


def reference_silu_mul(gate_up: torch.Tensor, out: torch.Tensor) -> None:
    """out[T, I] = silu(gate) * up for gate_up [T, 2 I]."""
    gate, up = gate_up.chunk(2, dim=-1)
    torch.mul(functional.silu(gate), up, out=out)


def reference_gelu_mul(gate_up: torch.Tensor, out: torch.Tensor) -> None:
    """out[T, I] = gelu(gate) * up for gate_up [T, 2 I], with gelu's approximation by tanh."""
    gate, up = gate_up.chunk(2, dim=-1)
    torch.mul(functional.gelu(gate, approximate="tanh"), up, out=out)


def reference_clamped_swiglu(gate_up: torch.Tensor, out: torch.Tensor, alpha: float, limit: float) -> None:
    """out[T, I] = gate * sigmoid(alpha * gate) * (up + 1) for gate_up [T, 2 I], clamped at `limit` first (gpt-oss)."""
    gate, up = gate_up.chunk(2, dim=-1)
    gate = gate.clamp(max=limit)
    torch.mul(gate * torch.sigmoid(alpha * gate), up.clamp(-limit, limit) + 1, out=out)


def reference_cap_values(x: torch.Tensor, cap: float) -> None:
    """x = cap * tanh(x / cap) in place."""
    x.div_(cap).tanh_().mul_(cap)


rms_norm = cpu.rms_norm if cpu.AVAILABLE else reference_rms_norm
silu_mul = cpu.silu_mul if cpu.AVAILABLE else reference_silu_mul
gelu_mul = cpu.gelu_mul if cpu.AVAILABLE else reference_gelu_mul
clamped_swiglu = cpu.clamped_swiglu if cpu.AVAILABLE else reference_clamped_swiglu
cap_values = cpu.cap_values if cpu.AVAILABLE else reference_cap_values


def gated_activation(config: ModelConfig) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """What makes out[T, I] of gate_up [T, 2 I] in a network behind attention."""
    if config.activation == "clamped-swiglu":
        return partial(clamped_swiglu, alpha=config.swiglu_alpha, limit=config.swiglu_limit)
    return silu_mul if config.activation == "silu" else gelu_mul


def rotary_table(config: ModelConfig, max_context: int) -> torch.Tensor:
    """float32 [tables x max_context, head_dim]: cosines of the half-split angles, then sines, by position. A second
    table is that of layers without positions, or of those with a window and a theta of their own
    (`ModelConfig.rope_of`).

    A factor of scores other than 1 / sqrt(head dim) is in the tables: its root in queries and in keys.
    """
    rope, head_dim, scale = config.rope, config.head_dim, _root_of_scale(config)
    size = rope.dim or head_dim
    factor = 1.0 if rope.scaling is None else rope.scaling.attention_factor
    tables = [_table(_frequencies(rope, size, max_context), head_dim, max_context, factor, scale)]
    if rope.skipped_layers:
        tables.append(_table(torch.zeros(size // 2), head_dim, max_context, 1.0, scale))
    elif rope.local_theta is not None:
        tables.append(_table(_inverse(rope.local_theta, size // 2), head_dim, max_context, 1.0, scale))
    return torch.cat(tables)


def _root_of_scale(config: ModelConfig) -> float:
    scale = config.attention.scale
    return 1.0 if scale is None else math.sqrt(scale * math.sqrt(config.head_dim))


def _table(inverse: torch.Tensor, head_dim: int, max_context: int, factor: float, scale: float) -> torch.Tensor:
    """The cosines and sines times `factor`; numbers of a head that are not rotated have the angle 0, and no factor."""
    angles = torch.outer(torch.arange(max_context).float(), inverse)
    still = torch.zeros(max_context, head_dim // 2 - len(inverse))
    cosines = torch.cat([angles.cos() * factor, torch.ones_like(still)], dim=1)
    sines = torch.cat([angles.sin() * factor, still], dim=1)
    return (torch.cat([cosines, sines], dim=1) * scale).contiguous()


def _inverse(theta: float, half: int) -> torch.Tensor:
    exponents = torch.arange(0, 2 * half, 2, dtype=torch.int64).float() / (2 * half)
    return 1.0 / theta**exponents


def _frequencies(rope: RotaryEmbedding, size: int, max_context: int) -> torch.Tensor:
    """float32 [size / 2]: radians from one position to the next, where `size` numbers of a head are rotated."""
    inverse, scaling = _inverse(rope.theta, size // 2), rope.scaling
    if scaling is None:
        return inverse
    if scaling.kind == "linear":
        return inverse / scaling.factor
    if scaling.kind == "llama3":
        return inverse / torch.from_numpy(llama3_factors(scaling, rope.theta, size)).float()
    if scaling.kind == "yarn":
        return _yarn(inverse, scaling, rope.theta)
    # One table serves all lengths: that of the longest context which is served decides.
    divisors = scaling.long if max_context > scaling.original_max_position else scaling.short
    return inverse / torch.tensor(divisors)


def _yarn(inverse: torch.Tensor, scaling: RopeScaling, theta: float) -> torch.Tensor:
    """Frequencies that turn more than `beta_fast` times within the original length stay, those with less than
    `beta_slow` turns are divided by the factor, with a ramp in between (Peng et al. 2023, section 3.2)."""
    half = len(inverse)

    def index_of(turns: float) -> float:
        length = scaling.original_max_position / (turns * 2 * math.pi)
        return half * math.log(length) / math.log(theta)

    low, high = index_of(scaling.beta_fast), index_of(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * half - 1)
    ramp = ((torch.arange(half).float() - low) / ((high - low) or 0.001)).clamp(0, 1)
    return inverse / scaling.factor * ramp + inverse * (1 - ramp)


class Embedding(Protocol):
    """Rows of the token embedding."""

    def rows(self, token_ids: list[int]) -> torch.Tensor:
        """float32 [T, hidden], freshly allocated."""


@dataclass(slots=True, frozen=True)
class DenseMlp:
    """The network behind attention: `gate_up` is a fused projection."""

    gate_up: Linear
    down: Linear


@dataclass(slots=True, frozen=True)
class Experts:
    """A mixture of experts (Shazeer et al. 2017): `router` gives a number per expert."""

    router: Linear
    experts: list[DenseMlp]


@dataclass(slots=True, frozen=True)
class StackedExperts:
    """The same on a device: each projection of all experts is one stack."""

    router: Linear
    gate_up: "ExpertLinear"
    down: "ExpertLinear"


@dataclass(slots=True, frozen=True)
class DecoderLayer:
    """One layer's weights. Norms that an architecture lacks are None."""

    attention_norm: torch.Tensor | None
    qkv: Linear
    """A fused projection."""
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    output: Linear
    mlp_norm: torch.Tensor | None
    mlp: DenseMlp | Experts | StackedExperts
    sinks: torch.Tensor | None = None
    """float32 [heads]."""
    attention_post_norm: torch.Tensor | None = None
    mlp_post_norm: torch.Tensor | None = None

    @property
    def dense(self) -> DenseMlp:
        """The network of a layer without experts."""
        assert isinstance(self.mlp, DenseMlp)  # what has experts is refused before
        return self.mlp

    @property
    def gate_up(self) -> Linear:
        return self.dense.gate_up

    @property
    def down(self) -> Linear:
        return self.dense.down


@dataclass(slots=True, frozen=True)
class Decoder:
    """The whole network. Stateless: keys and values are in the attention backend's arena."""

    config: ModelConfig
    embedding: Embedding
    layers: list[DecoderLayer]
    final_norm: torch.Tensor
    head: Linear

    def forward(
        self,
        token_ids: list[int],
        batch: AttentionBatch,
        attention: AttentionBackend,
        sample_rows: list[int],
        adapted: AdaptedRows | None = None,
    ) -> torch.Tensor:
        """Compute T tokens and return logits float32 [len(sample_rows), vocabulary] of `sample_rows`.

        Only those rows pass through the vocabulary projection. `adapted`: which rows use which adapter.
        """
        hidden = self.embedding.rows(token_ids)
        self.compute(hidden, batch, attention, adapted, range(len(self.layers)))
        return self.logits(hidden, sample_rows)

    def compute(
        self,
        hidden: torch.Tensor,
        batch: AttentionBatch,
        attention: AttentionBackend,
        adapted: AdaptedRows | None,
        layers: range,
    ) -> None:
        """Apply `layers` to T tokens; updates their hidden states, float32 [T, hidden], in place."""
        config, tokens = self.config, len(hidden)
        adapted = adapted or AdaptedRows([])
        normed = torch.empty_like(hidden)
        qkv = torch.empty(tokens, (config.num_heads + 2 * config.num_kv_heads) * config.head_dim)
        mixed = torch.empty(tokens, config.num_heads * config.head_dim)
        gate_up = torch.empty(tokens, 2 * config.intermediate_size)
        activated = torch.empty(tokens, config.intermediate_size)
        activate = gated_activation(config)
        for index in layers:
            layer = self.layers[index]
            inputs = self._normed(hidden, layer.attention_norm, normed)
            layer.qkv.apply(inputs, qkv)
            adapted.add(index, "qkv", inputs, qkv)
            if config.attention.qk_norm_whole:
                self._norm_heads(qkv, layer)
                attention.rope_and_write(qkv, index, batch, None, None)
            else:
                attention.rope_and_write(qkv, index, batch, layer.q_norm, layer.k_norm)
            attention.attend(qkv, index, batch, mixed, layer.sinks)
            self._add(index, "output", layer.output, mixed, hidden, layer.attention_post_norm, adapted)
            inputs = self._normed(hidden, layer.mlp_norm, normed)
            if isinstance(layer.mlp, Experts):
                self._mix(layer.mlp, inputs, hidden)
                continue
            layer.gate_up.apply(inputs, gate_up)
            adapted.add(index, "gate_up", inputs, gate_up)
            activate(gate_up, activated)
            self._add(index, "down", layer.down, activated, hidden, layer.mlp_post_norm, adapted)

    def _mix(self, mixture: Experts, x: torch.Tensor, hidden: torch.Tensor) -> None:
        """hidden += the results of the experts that each row of `x` takes, by ascending expert."""
        config, features, rows = self.config, self.config.experts, x.shape[0]
        assert features is not None  # the layer has experts
        routed = torch.empty(rows, features.count)
        mixture.router.apply(x, routed)
        order = routed.sort(dim=-1, descending=True, stable=True).indices[:, : features.per_token]
        weights = torch.zeros_like(routed)
        chosen = routed.gather(1, order)
        shifted = (chosen - chosen[:, :1]).exp()
        total = shifted if features.normalised else (routed - chosen[:, :1]).exp()
        weights.scatter_(1, order, shifted / total.sum(-1, keepdim=True))
        activate = gated_activation(config)
        for number, expert in enumerate(mixture.experts):
            taking = weights[:, number].nonzero()[:, 0]
            if len(taking) == 0:
                continue
            gate_up, out = torch.empty(len(taking), 2 * config.intermediate_size), torch.empty(len(taking), x.shape[1])
            activated = torch.empty(len(taking), config.intermediate_size)
            expert.gate_up.apply(x[taking], gate_up)
            activate(gate_up, activated)
            expert.down.apply(activated, out)
            hidden[taking] += weights[taking, number, None] * out

    def _normed(self, hidden: torch.Tensor, weight: torch.Tensor | None, normed: torch.Tensor) -> torch.Tensor:
        if weight is None:
            return hidden
        rms_norm(hidden, weight, self.config.rms_eps, normed)
        return normed

    def _norm_heads(self, qkv: torch.Tensor, layer: DecoderLayer) -> None:
        """Normalise all queries, and all keys, of a token at once (OLMo 2)."""
        query = self.config.num_heads * self.config.head_dim
        key = query + self.config.num_kv_heads * self.config.head_dim
        for part, weight in ((qkv[:, :query], layer.q_norm), (qkv[:, query:key], layer.k_norm)):
            assert weight is not None  # the config says that it has one
            rms_norm(part, weight, self.config.rms_eps, part)

    def _add(
        self,
        index: int,
        name: Projection,
        linear: Linear,
        x: torch.Tensor,
        hidden: torch.Tensor,
        post_norm: torch.Tensor | None,
        adapted: AdaptedRows,
    ) -> None:
        """hidden += the projection of `x`, normalised where a norm stands behind it."""
        if post_norm is None:
            linear.apply(x, hidden, accumulate=True)
            adapted.add(index, name, x, hidden)
            return
        y = torch.empty_like(hidden)
        linear.apply(x, y)
        adapted.add(index, name, x, y)
        rms_norm(y, post_norm, self.config.rms_eps, y)
        hidden += y

    def logits(self, hidden: torch.Tensor, sample_rows: list[int]) -> torch.Tensor:
        """Logits float32 [len(sample_rows), vocabulary] of these rows of the last layer's hidden states."""
        last = hidden[sample_rows]
        final = torch.empty_like(last)
        rms_norm(last, self.final_norm, self.config.rms_eps, final)
        logits = torch.empty(len(sample_rows), self.config.vocab_size)
        if sample_rows:
            self.head.apply(final, logits)
        if self.config.final_softcap is not None:
            cap_values(logits, self.config.final_softcap)
        return logits
