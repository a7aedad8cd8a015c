"""A Llama-family decoder (Llama, SmolLM2, Mistral, Qwen2, Qwen3) over ragged batches of the paged cache."""

from dataclasses import dataclass
from typing import Protocol

import torch

from inference_core.attention.backend import AttentionBackend, AttentionBatch
from inference_core.linear.linear import Linear
from inference_core.lora.reference import AdaptedRows
from inference_core.model_config import ModelConfig
from inference_core.models.elementwise import rms_norm, silu_mul


class Embedding(Protocol):
    """Rows of the token embedding."""

    def rows(self, token_ids: list[int]) -> torch.Tensor:
        """float32 [T, hidden], freshly allocated."""


@dataclass(slots=True, frozen=True)
class DecoderLayer:
    """One block's weights; `qkv` and `gate_up` are fused projections."""

    attention_norm: torch.Tensor
    qkv: Linear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    output: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


@dataclass(slots=True, frozen=True)
class Decoder:
    """The whole network. Stateless: keys and values live in the attention backend's arena."""

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
        """Compute T tokens and return logits float32 [len(sample_rows), vocabulary] of the rows asked for.

        Only those rows pass through the vocabulary projection. `adapted`: which of the T go through which adapter.
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
        """Those layers of T tokens, whose hidden states float32 [T, hidden] change in place."""
        config, tokens = self.config, len(hidden)
        adapted = adapted or AdaptedRows([])
        normed = torch.empty_like(hidden)
        qkv = torch.empty(tokens, (config.num_heads + 2 * config.num_kv_heads) * config.head_dim)
        mixed = torch.empty(tokens, config.num_heads * config.head_dim)
        gate_up = torch.empty(tokens, 2 * config.intermediate_size)
        activated = torch.empty(tokens, config.intermediate_size)
        for index in layers:
            layer = self.layers[index]
            rms_norm(hidden, layer.attention_norm, config.rms_eps, normed)
            layer.qkv.apply(normed, qkv)
            adapted.add(index, "qkv", normed, qkv)
            attention.rope_and_write(qkv, index, batch, layer.q_norm, layer.k_norm)
            attention.attend(qkv, index, batch, mixed)
            layer.output.apply(mixed, hidden, accumulate=True)
            adapted.add(index, "output", mixed, hidden)
            rms_norm(hidden, layer.mlp_norm, config.rms_eps, normed)
            layer.gate_up.apply(normed, gate_up)
            adapted.add(index, "gate_up", normed, gate_up)
            silu_mul(gate_up, activated)
            layer.down.apply(activated, hidden, accumulate=True)
            adapted.add(index, "down", activated, hidden)

    def logits(self, hidden: torch.Tensor, sample_rows: list[int]) -> torch.Tensor:
        """float32 [len(sample_rows), vocabulary] of those rows of the last layer's hidden states."""
        last = hidden[sample_rows]
        final = torch.empty_like(last)
        rms_norm(last, self.final_norm, self.config.rms_eps, final)
        logits = torch.empty(len(sample_rows), self.config.vocab_size)
        if sample_rows:
            self.head.apply(final, logits)
        return logits
