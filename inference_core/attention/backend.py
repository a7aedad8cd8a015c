"""The interface of attention: ragged batches over the paged KV arena."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from inference_core.kv_cache.layout import KVLayout
from inference_core.model_config import ModelConfig


@dataclass(slots=True, frozen=True)
class AttentionBatch:
    """Positions and cache slots of the T tokens of S sequences, on the arena's device.

    `positions` int32 [T]; `slots` int64 [T]: byte offset in the arena of the block that takes each token
    (negative: a row of padding, of which nothing is read or kept; the CPU's batches have none);
    `block_offsets` int64 [sum of table lengths]: byte offsets of every sequence's blocks, one table after another,
    beginning at `table_start` int32 [S]; `query_start` int32 [S + 1]: cumulative query lengths;
    `context_len` int32 [S]: tokens up to and including the last one of this step. Padding: sequences without queries.
    `max_query_len`: an upper bound of the query lengths; None: T.
    """

    positions: torch.Tensor
    slots: torch.Tensor
    block_offsets: torch.Tensor
    table_start: torch.Tensor
    query_start: torch.Tensor
    context_len: torch.Tensor
    max_query_len: int | None = None


class AttentionBackend(ABC):
    """Contract: call `rope_and_write` of a layer before its `attend`. Causal, grouped-query, optionally windowed
    (`config.window_of`) and capped (`config.attention_softcap`); softmax and accumulation in float32.

    `qkv` is [T, (heads + 2 kv_heads) * head_dim]: queries, keys, values; float32 on the CPU.
    """

    def __init__(self, config: ModelConfig, layout: KVLayout, arena: torch.Tensor, cos_sin: torch.Tensor) -> None:
        """`arena`: uint8 [bytes]. `cos_sin`: float32 [tables x max position, head_dim], see `models.rotary`."""
        self.config = config
        self.layout = layout
        self.arena = arena
        self.cos_sin = cos_sin
        self._positions = len(cos_sin) // config.rope_tables

    def table_of(self, layer: int) -> torch.Tensor:
        """The rotary table of `layer`, float32 [max position, head_dim]."""
        first = self.config.rope_of(layer) * self._positions
        return self.cos_sin[first : first + self._positions]

    @abstractmethod
    def rope_and_write(
        self,
        qkv: torch.Tensor,
        layer: int,
        batch: AttentionBatch,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
    ) -> None:
        """Normalise (Qwen3) and rotate (Su et al. 2021) queries and keys in place; write keys and values to slots."""

    @abstractmethod
    def attend(
        self,
        qkv: torch.Tensor,
        layer: int,
        batch: AttentionBatch,
        out: torch.Tensor,
        sinks: torch.Tensor | None = None,
    ) -> None:
        """out [T, heads * head_dim], in qkv's dtype: softmax(q K^T / sqrt(head_dim)) V over each sequence's blocks.

        `sinks`: float32 [heads], a further score in every softmax of a head, whose value is zero."""
