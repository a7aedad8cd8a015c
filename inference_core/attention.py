"""Attention over the paged KV arena: the interface of ragged batches, its reference in torch, and the native kernels.

The reference computes one sequence at a time: the oracle of all other backends. The native kernels pass over the blocks
once with an online softmax, K/V read once per query group.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from inference_core.kv_cache.layout import KVLayout
from inference_core.model_config import ModelConfig
from inference_core.native.cpu import KV_DTYPES, extension
from inference_core.step_plan import ScheduledSequence


@dataclass(slots=True, frozen=True)
class AttentionBatch:
    """Positions and cache slots of the T tokens of S sequences, on the arena's device."""

    positions: torch.Tensor
    """int32 [T]."""
    slots: torch.Tensor
    """int64 [T]: byte offset in the arena of the block that takes each token (negative: a row of padding, of which
    nothing is read or kept; the CPU's batches have none).
    """
    block_offsets: torch.Tensor
    """int64 [sum of table lengths]: byte offsets of every sequence's blocks, one table after another."""
    table_start: torch.Tensor
    """int32 [S]: where each sequence's table begins in `block_offsets`."""
    query_start: torch.Tensor
    """int32 [S + 1]: cumulative query lengths."""
    context_len: torch.Tensor
    """int32 [S]: tokens up to and including the last one of this step. Sequences without queries are padding."""
    max_query_len: int | None = None
    """An upper bound of the query lengths; None stands for T."""


class AttentionBackend(ABC):
    """Contract: call `rope_and_write` of a layer before its `attend`. Causal, grouped-query, optionally windowed
    (`config.window_of`) and capped (`config.attention.softcap`); softmax and accumulation in float32.

    `qkv` is [T, (heads + 2 kv_heads) * head_dim]: queries, keys, values; float32 on the CPU.
    """

    def __init__(self, config: ModelConfig, layout: KVLayout, arena: torch.Tensor, cos_sin: torch.Tensor) -> None:
        """`arena`: uint8 [bytes]. `cos_sin`: float32 [tables x max position, head_dim], see `rotary_table`."""
        self.config = config
        self.layout = layout
        self.arena = arena
        self.cos_sin = cos_sin
        self._positions = len(cos_sin) // config.rope.num_tables

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
        self, qkv: torch.Tensor, layer: int, batch: AttentionBatch, out: torch.Tensor, sinks: torch.Tensor | None = None
    ) -> None:
        """out [T, heads * head_dim], in qkv's dtype: softmax(q K^T / sqrt(head_dim)) V over each sequence's blocks.

        `sinks`: float32 [heads], a further score in every softmax of a head, whose value is zero."""


@dataclass(slots=True, frozen=True)
class BlockAddresses:
    """Maps one model's block ids to byte offsets in the arena."""

    block_size: int
    block_bytes: int
    """Distance between blocks within a slab. If a mesh is split unevenly, its ranks have blocks of different sizes
    under the same ids. This is then the largest rank's size on all ranks, and the others leave the rest of each block
    unused.
    """
    slab_bytes: int
    """Size of a slab."""

    def offsets(self, block_table: list[int]) -> NDArray[np.int64]:
        """Byte offsets in the arena, int64 [blocks]."""
        slab, index = np.divmod(np.array(block_table, np.int64), self.slab_bytes // self.block_bytes)
        offsets: NDArray[np.int64] = slab * self.slab_bytes + index * self.block_bytes
        return offsets

    def batch(self, sequences: list[ScheduledSequence]) -> AttentionBatch:
        """The positions, slots and tables of all tokens of `sequences`, on the CPU."""
        lengths = np.array([len(s.token_ids) for s in sequences], np.int32)
        starts = np.array([s.start for s in sequences], np.int32)
        tables = [self.offsets(s.block_table) for s in sequences]
        table_lengths = np.array([len(table) for table in tables], np.int32)
        ranges = [np.arange(s.start, s.start + len(s.token_ids)) for s in sequences]
        positions = np.concatenate(ranges)
        slots = np.concatenate([t[r // self.block_size] for t, r in zip(tables, ranges, strict=True)])
        return AttentionBatch(
            positions=torch.from_numpy(positions.astype(np.int32)),
            slots=torch.from_numpy(slots),
            block_offsets=torch.from_numpy(np.concatenate(tables)),
            table_start=torch.from_numpy(np.cumsum(table_lengths, dtype=np.int32) - table_lengths),
            query_start=torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)),
            context_len=torch.from_numpy(starts + lengths),
        )

    def copy(self, arena: torch.Tensor, copies: list[tuple[int, int]]) -> None:
        """Copy whole blocks (from, to) within `arena` uint8 [bytes]."""
        for pair in copies:
            source, target = self.offsets(list(pair)).tolist()
            arena[target : target + self.block_bytes] = arena[source : source + self.block_bytes]


DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.uint8}


def quantize_int8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Symmetric INT8 of float32 [..., d]: codes uint8 [..., d], stored plus 128, and scales bfloat16 [...].

    The scale is rounded up to bfloat16 before use, so that the largest number still fits (SPEC KV-07).
    """
    exact = x.abs().amax(-1) / 127.0
    scale = ((exact.view(torch.int32) + 0xFFFF) & ~0xFFFF).view(torch.float32)
    inverse = torch.where(scale > 0, 1.0 / scale, 0.0)
    codes = torch.round(x * inverse[..., None]).clamp(-127, 127) + 128
    return codes.to(torch.uint8), scale.bfloat16()


def dequantize_int8(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The inverse of `quantize_int8`: float32 [..., d]."""
    return (codes.float() - 128) * scale.float()[..., None]


class ReferenceAttention(AttentionBackend):
    def rope_and_write(
        self,
        qkv: torch.Tensor,
        layer: int,
        batch: AttentionBatch,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
    ) -> None:
        heads, kv_heads, d = self.config.num_heads, self.config.num_kv_heads, self.config.head_dim
        rows = qkv.view(qkv.shape[0], heads + 2 * kv_heads, d)
        query, key, value = rows.split([heads, kv_heads, kv_heads], dim=1)
        table = self.table_of(layer)[batch.positions.long()]
        cos, sin = table[:, None, : d // 2], table[:, None, d // 2 :]
        for part, norm in ((query, q_norm), (key, k_norm)):
            if norm is not None:
                part *= torch.rsqrt(part.pow(2).mean(-1, keepdim=True) + self.config.rms_eps) * norm
            first, second = part.clone().chunk(2, dim=-1)
            part.copy_(torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1))
        r = self.layout.numbers_per_lane
        for t in range(qkv.shape[0]):
            keys, values, scales = self._block(int(batch.slots[t]), layer)
            at = int(batch.positions[t]) % self.layout.block_size
            k, v = key[t], value[t]
            if self.layout.dtype == "int8":
                k, scales[:, 0, at] = quantize_int8(k)
                v, scales[:, 1, at] = quantize_int8(v)
            keys[:, :, at] = k.view(kv_heads, d // r, r)
            values[:, at // r, :, at % r] = v

    def attend(
        self, qkv: torch.Tensor, layer: int, batch: AttentionBatch, out: torch.Tensor, sinks: torch.Tensor | None = None
    ) -> None:
        heads, kv_heads, d = self.config.num_heads, self.config.num_kv_heads, self.config.head_dim
        for s in range(batch.context_len.shape[0]):
            begin, end = int(batch.query_start[s]), int(batch.query_start[s + 1])
            context = int(batch.context_len[s])
            keys, values = self._context(int(batch.table_start[s]), context, layer, batch)
            query = qkv[begin:end, : heads * d].view(end - begin, heads, d)
            scores = torch.einsum("qhd,khd->hqk", query, keys.repeat_interleave(heads // kv_heads, 1)) * d**-0.5
            position = torch.arange(context - (end - begin), context)[:, None]
            token = torch.arange(context)[None, :]
            allowed = token <= position
            window, cap = self.config.window_of(layer), self.config.attention.softcap
            if window is not None:
                allowed &= token > position - window
            if cap is not None:
                scores = cap * torch.tanh(scores / cap)
            scores = scores.masked_fill(~allowed, -torch.inf)
            if sinks is not None:
                scores = torch.cat([scores, sinks[:, None, None].expand(heads, end - begin, 1)], dim=-1)
            weights = scores.softmax(-1)[:, :, :context]
            mixed = torch.einsum("hqk,khd->qhd", weights, values.repeat_interleave(heads // kv_heads, 1))
            out[begin:end] = mixed.reshape(end - begin, heads * d)

    def _block(self, offset: int, layer: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Views of one layer of a block: keys [kv_heads, d / r, block_size, r], values
        [kv_heads, block_size / r, d, r], scales of keys and values [kv_heads, 2, block_size] (INT8; others have none).
        """
        layout = self.layout
        d, size, r = layout.head_dim, layout.block_size, layout.numbers_per_lane
        begin, matrix = offset + layer * layout.layer_bytes, d * size * 4 // r
        heads = self.arena[begin : begin + layout.layer_bytes].view(layout.num_kv_heads, layout.head_bytes)
        dtype = DTYPES[layout.dtype]
        keys, values, scales = heads[:, :matrix], heads[:, matrix : 2 * matrix], heads[:, 2 * matrix :]
        return (
            keys.view(dtype).view(-1, d // r, size, r),
            values.view(dtype).view(-1, size // r, d, r),
            scales.view(torch.bfloat16).view(layout.num_kv_heads, 2, -1),
        )

    def _context(
        self, table_start: int, context: int, layer: int, batch: AttentionBatch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [context, kv_heads, d] in float32."""
        count = -(-context // self.layout.block_size)
        offsets = batch.block_offsets[table_start : table_start + count].tolist()
        blocks = [self._block(offset, layer) for offset in offsets]
        keys = torch.cat([k.permute(2, 0, 1, 3).flatten(2) for k, _, _ in blocks])[:context]
        values = torch.cat([v.permute(1, 3, 0, 2).flatten(0, 1) for _, v, _ in blocks])[:context]
        if self.layout.dtype != "int8":
            return keys.float(), values.float()
        scales = torch.cat([s.permute(2, 0, 1) for _, _, s in blocks])[:context]
        return dequantize_int8(keys, scales[..., 0]), dequantize_int8(values, scales[..., 1])


class CpuAttention(AttentionBackend):
    """Batch-invariant: the order of summation depends on a token's own position only."""

    prompt: torch.Tensor | None = None
    """uint8 [tokens], which tokens of the next calls are computed in prompt arithmetic; None for none."""

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
        self, qkv: torch.Tensor, layer: int, batch: AttentionBatch, out: torch.Tensor, sinks: torch.Tensor | None = None
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
            config.attention.softcap or 0.0,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            layout.block_size,
            KV_DTYPES[layout.dtype],
            0 if self.prompt is None else self.prompt.data_ptr(),
            0 if sinks is None else sinks.data_ptr(),
        )
