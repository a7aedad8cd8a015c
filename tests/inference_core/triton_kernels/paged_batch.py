"""A ragged batch over scattered blocks of a head-major cache, padded as a captured graph would be."""

from itertools import pairwise

import numpy as np
import torch

from inference_core.attention import AttentionBatch
from inference_core.kv_cache.layout import KVDtype, KVLayout
from inference_core.triton_kernels import reference
from inference_core.triton_kernels.layer_cache import LayerCache

Span = tuple[int, int]  # context length, query length
LAYERS = 2
PADDED_ROWS = 3
PADDED_SEQUENCES = 2
SENTINEL = 77.0


class PagedBatch:
    """`spans` of random keys and values in the last layer of an arena whose every other byte is 0xFF (NaN in floats).

    Rows and sequences of padding follow the real ones. Blocks are in random order, some of them unused.
    """

    def __init__(
        self,
        spans: list[Span],
        *,
        heads: int,
        kv_heads: int,
        head_dim: int,
        activation: torch.dtype,
        cache: KVDtype,
        device: torch.device,
        block_size: int = 16,
        values_times: float = 1.0,
    ) -> None:
        self.layout = KVLayout(
            num_layers=LAYERS, num_kv_heads=kv_heads, head_dim=head_dim, block_size=block_size, dtype=cache
        )
        self.spans, self.heads, self.device, self.activation = spans, heads, device, activation
        counts = [-(-context // block_size) for context, _ in spans]
        order = np.random.default_rng(7).permutation(sum(counts) + 3).astype(np.int64) * self.layout.block_bytes
        edges = np.cumsum([0, *counts])
        self.tables = [order[begin:end] for begin, end in pairwise(edges)]
        arena = torch.full((len(order) * self.layout.block_bytes,), 0xFF, dtype=torch.uint8)
        generator = torch.Generator().manual_seed(heads * 100 + head_dim)
        self.cache = LayerCache(arena, self.layout, LAYERS - 1)
        for table, (context, _) in zip(self.tables, spans, strict=True):
            tokens = torch.arange(context)
            keys, values = (torch.randn(context, kv_heads, head_dim, generator=generator) for _ in range(2))
            values *= values_times
            blocks = torch.from_numpy(table)[tokens // block_size]
            reference.store(self.cache, blocks, tokens % block_size, keys, values)
        rows = sum(queries for _, queries in spans) + PADDED_ROWS
        width = (heads + 2 * kv_heads) * head_dim
        self.qkv = torch.randn(rows, width, generator=generator).to(activation)

    def batch(self) -> AttentionBatch:
        """On the CPU; padding as `AttentionBatch` has it."""
        size, real = self.layout.block_size, len(self.spans)
        positions = np.concatenate([np.arange(context - queries, context) for context, queries in self.spans])
        owners = np.repeat(np.arange(real), [queries for _, queries in self.spans])
        slots = [self.tables[s][p // size] for s, p in zip(owners, positions, strict=True)]
        lengths = np.array([queries for _, queries in self.spans] + [0] * PADDED_SEQUENCES)
        starts = np.cumsum([0, *map(len, self.tables)])[:-1]
        return AttentionBatch(
            positions=_tensor(np.concatenate([positions, np.zeros(PADDED_ROWS)]), torch.int32),
            slots=_tensor(np.concatenate([slots, np.full(PADDED_ROWS, -1)]), torch.int64),
            block_offsets=_tensor(np.concatenate(self.tables), torch.int64),
            table_start=_tensor(np.concatenate([starts, np.zeros(PADDED_SEQUENCES)]), torch.int32),
            query_start=_tensor(np.concatenate([[0], np.cumsum(lengths)]), torch.int32),
            context_len=_tensor(np.array([c for c, _ in self.spans] + [0] * PADDED_SEQUENCES), torch.int32),
            max_query_len=int(lengths.max()),
        )

    def on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.device)

    def cache_on_device(self) -> LayerCache:
        """A copy: kernels write to it."""
        return LayerCache(self.cache.arena.clone().to(self.device), self.layout, self.cache.layer)

    def empty_out(self) -> torch.Tensor:
        shape = (self.qkv.shape[0], self.heads * self.layout.head_dim)
        return torch.full(shape, SENTINEL, dtype=self.activation)


def _tensor(values: object, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(np.asarray(values)).to(dtype)
