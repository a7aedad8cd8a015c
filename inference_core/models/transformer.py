"""A decoder of any supported architecture over ragged batches of the paged cache, by the features of its config."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from inference_core.attention.backend import AttentionBackend, AttentionBatch
from inference_core.linear.linear import Linear
from inference_core.lora.adapter import Projection
from inference_core.lora.reference import AdaptedRows
from inference_core.model_config import ModelConfig
from inference_core.models.elementwise import cap_values, gated_activation, rms_norm

if TYPE_CHECKING:
    # Only devices have stacks.
    from inference_core.linear.device_experts import ExpertLinear


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
    """One layer's weights; `qkv` is a fused projection; `sinks` float32 [heads]. Norms that an architecture lacks are
    None."""

    attention_norm: torch.Tensor | None
    qkv: Linear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    output: Linear
    mlp_norm: torch.Tensor | None
    mlp: DenseMlp | Experts | StackedExperts
    sinks: torch.Tensor | None = None
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
            if config.qk_norm_whole:
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
        config, rows = self.config, x.shape[0]
        routed = torch.empty(rows, config.num_experts)
        mixture.router.apply(x, routed)
        order = routed.sort(dim=-1, descending=True, stable=True).indices[:, : config.experts_per_token]
        weights = torch.zeros_like(routed)
        chosen = routed.gather(1, order)
        shifted = (chosen - chosen[:, :1]).exp()
        total = shifted if config.normalise_experts else (routed - chosen[:, :1]).exp()
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
