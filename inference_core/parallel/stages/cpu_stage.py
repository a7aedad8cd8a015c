"""A stage on the CPU: native kernels operator by operator, or plain torch where they were not built."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from inference_core.attention.backend import AttentionBackend
from inference_core.attention.batches import BlockAddresses
from inference_core.execution.host_blocks import HostBlocks
from inference_core.linear.linear import Linear
from inference_core.lora.reference import AdaptedRows, TorchAdapterBank
from inference_core.model_config import ModelConfig
from inference_core.models.elementwise import rms_norm, silu_mul
from inference_core.models.transformer import DecoderLayer, Embedding
from inference_core.parallel.communication.collectives import TensorGroup
from inference_core.parallel.stages.stage import Stage
from inference_core.step_plan import ScheduledSequence

# Adds what a layer's adapters give of x [T, inputs] to [T, outputs].
_Add = Callable[[torch.Tensor, torch.Tensor], None]


@dataclass(slots=True, frozen=True)
class StageWeights:
    """What a rank holds of the network; the parts that its stage lacks are None."""

    config: ModelConfig
    vocabulary: range
    embedding: Embedding | None
    layers: list[DecoderLayer]
    final_norm: torch.Tensor | None
    head: Linear | None


class CpuStage(Stage):
    """`attention` and `addresses` are of this rank's KV heads and layers, over its own arena."""

    dtype = torch.float32
    device = torch.device("cpu")

    def __init__(
        self,
        weights: StageWeights,
        attention: AttentionBackend,
        addresses: BlockAddresses,
        group: TensorGroup,
        adapters: TorchAdapterBank | None = None,
    ) -> None:
        self.config = weights.config
        self.weights = weights
        self.attention = attention
        self._addresses = addresses
        self._group = group
        self.adapters = self._bank = adapters
        self._host = HostBlocks(attention.arena, addresses.offsets, addresses.block_bytes)

    def _embed(self, sequences: list[ScheduledSequence]) -> torch.Tensor:
        """Each rank looks up the tokens of its own vocabulary rows and adds zeros for the others."""
        weights = self.weights
        assert weights.embedding is not None  # the mesh asks first stages only
        token_ids = [token for sequence in sequences for token in sequence.token_ids]
        mine = [weights.vocabulary.start <= token < weights.vocabulary.stop for token in token_ids]
        if all(mine) and self._group.size == 1:
            return weights.embedding.rows(token_ids)
        hidden = torch.zeros(len(token_ids), self.config.hidden_size)
        if any(mine):
            own = [token - weights.vocabulary.start for token, held in zip(token_ids, mine, strict=True) if held]
            hidden[torch.tensor(mine)] = weights.embedding.rows(own)
        return self._group.all_reduce(hidden)

    def compute(self, sequences: list[ScheduledSequence], hidden: torch.Tensor | None = None) -> torch.Tensor:
        hidden = self._embed(sequences) if hidden is None else hidden
        config, tokens = self.config, hidden.shape[0]
        batch = self._addresses.batch(sequences)
        adapted = (self._bank and self._bank.rows(sequences)) or AdaptedRows([])
        normed = torch.empty_like(hidden)
        qkv = torch.empty(tokens, (config.num_heads + 2 * config.num_kv_heads) * config.head_dim)
        mixed = torch.empty(tokens, config.num_heads * config.head_dim)
        gate_up = torch.empty(tokens, 2 * config.intermediate_size)
        activated = torch.empty(tokens, config.intermediate_size)
        for index, layer in enumerate(self.weights.layers):
            rms_norm(hidden, layer.attention_norm, config.rms_eps, normed)
            layer.qkv.apply(normed, qkv)
            adapted.add(index, "qkv", normed, qkv)
            self.attention.rope_and_write(qkv, index, batch, layer.q_norm, layer.k_norm)
            self.attention.attend(qkv, index, batch, mixed)
            self._add(layer.output, partial(adapted.add, index, "output"), mixed, hidden)
            rms_norm(hidden, layer.mlp_norm, config.rms_eps, normed)
            layer.gate_up.apply(normed, gate_up)
            adapted.add(index, "gate_up", normed, gate_up)
            silu_mul(gate_up, activated)
            self._add(layer.down, partial(adapted.add, index, "down"), activated, hidden)
        return hidden

    def _add(self, linear: Linear, add_adapters: _Add, x: torch.Tensor, hidden: torch.Tensor) -> None:
        """hidden += the row-parallel `linear` of `x` and what adapters add to it, summed over the ranks."""
        if self._group.size == 1:
            linear.apply(x, hidden, accumulate=True)
            add_adapters(x, hidden)
            return
        part = torch.empty_like(hidden)
        linear.apply(x, part)
        add_adapters(x, part)
        hidden += self._group.all_reduce(part)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        weights = self.weights
        assert weights.final_norm is not None  # the mesh asks last stages only
        assert weights.head is not None
        final = torch.empty_like(hidden)
        rms_norm(hidden, weights.final_norm, self.config.rms_eps, final)
        logits = torch.empty(hidden.shape[0], len(weights.vocabulary))
        weights.head.apply(final, logits)
        return logits

    def copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        self._addresses.copy(self.attention.arena, copies)

    def offload_blocks(self, offloads: list[tuple[int, int]]) -> None:
        self._host.offload(offloads)

    def restore_blocks(self, restores: list[tuple[int, int]]) -> None:
        self._host.restore(restores)
