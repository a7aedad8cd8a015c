"""The attention kernels alone, on a model's shapes: time per token and KV head, against the machine's multiply-adds."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from benchmarks.kernels.machine_peaks import MachinePeaks, fastest
from inference_core.attention import AttentionBatch, CpuAttention
from inference_core.execution.block_memory import allocate_arena
from inference_core.kv_cache.layout import KVDtype, KVLayout
from inference_core.model_config import ModelConfig
from inference_core.models.transformer import rotary_table
from inference_core.native import cpu

CONTEXTS = (64, 160, 512, 1024, 4096)
SEQUENCES = (1, 8, 32)
CHUNKS = (128, 256, 512)
STARTS = (0, 1024, 2048)
_BLOCK = 16
_ARENA_BYTES = 192 << 20  # layers beyond it are left out: several times the last-level cache
_SECONDS = 0.05  # of one row, and at least
_REPEATS = 3  # times


class _Cache:
    """`sequences` of `context` tokens each over blocks in random order, in as many layers as fit the arena."""

    def __init__(self, config: ModelConfig, dtype: KVDtype, sequences: int, context: int, queries: int) -> None:
        blocks = sequences * -(-context // _BLOCK)
        layer_layout = KVLayout(
            num_layers=1, num_kv_heads=config.num_kv_heads, head_dim=config.head_dim, block_size=_BLOCK, dtype=dtype
        )
        self.layers = max(1, min(config.num_layers, _ARENA_BYTES // (blocks * layer_layout.block_bytes)))
        layout = KVLayout(
            num_layers=self.layers,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            block_size=_BLOCK,
            dtype=dtype,
        )
        arena = allocate_arena(blocks * layout.block_bytes)
        self.backend = CpuAttention(config, layout, arena, rotary_table(config, context))
        order = np.random.default_rng(0).permutation(blocks).astype(np.int64) * layout.block_bytes
        self._tables = order.reshape(sequences, -1)
        self._width = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        whole = self._batch(0, context)
        qkv = torch.randn(sequences * context, self._width, generator=torch.Generator().manual_seed(0))
        for layer in range(self.layers):
            self.backend.rope_and_write(qkv.clone(), layer, whole, None, None)
        self.batch = self._batch(context - queries, context)
        self.qkv = qkv[: sequences * queries].clone()
        self.out = torch.empty(sequences * queries, config.num_heads * config.head_dim)

    def _batch(self, first: int, end: int) -> AttentionBatch:
        sequences, positions = len(self._tables), np.arange(first, end, dtype=np.int32)
        return AttentionBatch(
            positions=torch.from_numpy(np.tile(positions, sequences)),
            slots=torch.from_numpy(self._tables[:, positions // _BLOCK].reshape(-1)),
            block_offsets=torch.from_numpy(self._tables.reshape(-1)),
            table_start=torch.arange(sequences, dtype=torch.int32) * self._tables.shape[1],
            query_start=torch.arange(sequences + 1, dtype=torch.int32) * (end - first),
            context_len=torch.full((sequences,), end, dtype=torch.int32),
        )

    def seconds(self) -> float:
        """One layer's attention, the fastest of each layer, averaged over them."""

        def attend(layer: int) -> float:
            return fastest(lambda: self.backend.attend(self.qkv, layer, self.batch, self.out), 1)

        best = [attend(layer) for layer in range(self.layers)]
        for _ in range(max(_REPEATS, int(_SECONDS / sum(best)))):
            best = [min(least, attend(layer)) for layer, least in enumerate(best)]
        return sum(best) / self.layers


def bench_attention(
    config: ModelConfig,
    peaks: MachinePeaks,
    *,
    dtypes: tuple[KVDtype, ...] = ("bfloat16", "float32", "int8"),
    contexts: tuple[int, ...] = CONTEXTS,
    sequences: tuple[int, ...] = SEQUENCES,
    chunks: tuple[int, ...] = CHUNKS,
    starts: tuple[int, ...] = STARTS,
    threads: int = 1,
    max_cached_tokens: int = 8192,
) -> Iterator[dict[str, Any]]:
    """One row per cache format and load: `sequences` decoding at a context, or a prompt's chunk after `start` tokens.

    `ns_per_token_head`: time of one layer by attended token (per query row of a prompt's chunk) and KV head.
    `of_peak`: multiply-adds done, of what `threads` do in float32 registers; masked scores do not count.
    Loads of more than `max_cached_tokens` are left out.
    """
    cpu.set_threads(threads)
    for dtype in dtypes:
        for context in contexts:
            for count in sequences:
                if count * context <= max_cached_tokens:
                    seconds = _Cache(config, dtype, count, context, 1).seconds()
                    load = {"kind": "decode", "sequences": count, "queries": 1, "context": context}
                    yield {"kv_dtype": dtype} | load | _figures(config, peaks, threads, count * context, seconds)
        for start in starts:
            for chunk in chunks:
                if start + chunk <= max_cached_tokens:
                    seconds = _Cache(config, dtype, 1, start + chunk, chunk).seconds()
                    pairs = chunk * start + chunk * (chunk + 1) // 2
                    load = {"kind": "prefill", "sequences": 1, "queries": chunk, "context": start + chunk}
                    yield {"kv_dtype": dtype} | load | _figures(config, peaks, threads, pairs, seconds)


def _figures(config: ModelConfig, peaks: MachinePeaks, threads: int, pairs: int, seconds: float) -> dict[str, float]:
    """`pairs`: attended tokens, summed over the queries."""
    products = 2 * pairs * config.num_heads * config.head_dim
    return {
        "us": round(seconds * 1e6, 2),
        "ns_per_token_head": round(seconds * 1e9 / (pairs * config.num_kv_heads), 3),
        "of_peak": round(products / seconds / (peaks.float_gmac_s * 1e9 * threads), 4),
    }
