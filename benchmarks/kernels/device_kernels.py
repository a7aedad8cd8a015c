"""The kernels other than linear layers, on a model's shapes, against what the device's memory and matmuls reach.

    python -m benchmarks.kernels.device_kernels [--tiny]

prints one JSON object per line. It needs torch and triton alone. Times are of launches replayed from a CUDA graph, so
that they are the kernels' own. Without a device the references run on tiny shapes, which measures nothing.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from inference_core.device.step_inputs import QUERIES_PER_COPY, long_prompts
from inference_core.kv_cache.layout import KVDtype, KVLayout
from inference_core.triton_kernels import ops
from inference_core.triton_kernels.layer_cache import LayerCache
from inference_core.triton_kernels.ops import add_low_rank
from inference_core.triton_kernels.tiles import tile_rows_for
from inference_core.triton_kernels.weights import LowRankRows, LowRankSlots

_BLOCK = 16
_REPEATS = 20  # launches of one measurement; the fastest of three measurements counts
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """A model's sizes that these kernels depend on, and the loads to try. `hidden` and `intermediate` are columns. Rows
    go in turn through `adapters` low-rank adapters."""

    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    hidden: int = 4096
    intermediate: int = 14336
    decodes: tuple[tuple[int, int], ...] = ((1, 4096), (1, 32768), (8, 4096), (64, 1024), (64, 4096), (256, 1024))
    prefills: tuple[tuple[int, int], ...] = ((512, 512), (2048, 2048), (8192, 8192), (512, 8192))  # queries, context
    rows: tuple[int, ...] = (1, 64, 4096)
    adapters: int = 8
    adapter_rank: int = 16
    peak_bytes: int = 1 << 30
    peak_side: int = 8192


LLAMA_8B = Shape()
TINY = Shape(
    heads=4,
    kv_heads=2,
    head_dim=32,
    hidden=64,
    intermediate=96,
    decodes=((1, 40), (3, 20)),
    prefills=((20, 20), (8, 40)),
    rows=(1, 4),
    peak_bytes=1 << 16,
    peak_side=64,
)


class _Load:
    """`sequences` that each add `queries` tokens to reach `context`, over blocks in random order."""

    def __init__(
        self, shape: Shape, sequences: int, queries: int, context: int, kv_dtype: KVDtype, device: torch.device
    ) -> None:
        layout = KVLayout(
            num_layers=1, num_kv_heads=shape.kv_heads, head_dim=shape.head_dim, block_size=_BLOCK, dtype=kv_dtype
        )
        blocks = -(-context // _BLOCK)
        generator = torch.Generator().manual_seed(0)
        order = torch.randperm(sequences * blocks, generator=generator) * layout.block_bytes
        tables = order.view(sequences, blocks)
        positions = torch.arange(context - queries, context)
        self.cache = LayerCache(
            torch.zeros(sequences * blocks * layout.block_bytes, dtype=torch.uint8, device=device), layout, 0
        )
        self.positions = positions.repeat(sequences).int().to(device)
        self.slots = tables[:, positions // _BLOCK].reshape(-1).to(device)
        self.tables = (
            order.to(device),
            (torch.arange(sequences) * blocks).int().to(device),
            (torch.arange(sequences + 1) * queries).int().to(device),
            torch.full((sequences,), context, dtype=torch.int32, device=device),
        )
        width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        self.qkv = torch.randn(sequences * queries, width, generator=generator).to(device, torch.bfloat16)
        self.out = torch.empty(sequences * queries, shape.heads * shape.head_dim, dtype=torch.bfloat16, device=device)
        self.queries = queries
        # As the runner does: many queries read an FP8 cache from a copy.
        self.copied_blocks = sequences * blocks if queries >= QUERIES_PER_COPY else 0
        self.prompts = long_prompts([queries] * sequences, [context] * sequences)
        if self.prompts:
            ops.build_prompt_plans(self.qkv, shape.heads, shape.kv_heads, shape.head_dim, queries)

    def attend(self) -> None:
        numbers = ops.cache_numbers(self.cache)
        counts = self.queries, self.copied_blocks, self.prompts
        torch.ops.aio.paged_attention(self.out, self.qkv, self.cache.arena, *self.tables, *counts, 0, 0.0, *numbers)


def bench_kernels(shape: Shape, device: torch.device) -> Iterator[Row]:
    """First the device's peaks, then a row per kernel and load: `us`, `gb_s` or `tflop_s`, and its share of the peak.

    Bytes are those that must move (a decode's keys and values once per KV head), operations those of unmasked scores.
    """
    gb_s, tflop_s = _peak_bandwidth(shape, device), _peak_matmul(shape, device)
    yield {"kernel": "copy", "gb_s": round(gb_s, 1)}
    yield {"kernel": "matmul, bfloat16", "tflop_s": round(tflop_s, 2)}
    for kv_dtype in _kv_dtypes(device):
        for sequences, context in shape.decodes:
            load = _Load(shape, sequences, 1, context, kv_dtype, device)
            moved = sequences * context * load.cache.layout.bytes_per_token
            row = {"kernel": "decode", "kv_dtype": kv_dtype, "sequences": sequences, "context": context}
            yield row | _moved(moved, launch_seconds(load.attend, device), gb_s)
        for queries, context in shape.prefills:
            load = _Load(shape, 1, queries, context, kv_dtype, device)
            pairs = queries * (context - queries) + queries * (queries + 1) // 2
            seconds = launch_seconds(load.attend, device)
            row = {"kernel": "prefill", "kv_dtype": kv_dtype, "queries": queries, "context": context}
            reached = 4 * pairs * shape.heads * shape.head_dim / seconds / 1e12
            yield row | {
                "us": round(seconds * 1e6, 2),
                "tflop_s": round(reached, 3),
                "of_peak": round(reached / tflop_s, 4),
            }
    yield from _bench_rows(shape, device, gb_s)


def _bench_rows(shape: Shape, device: torch.device, gb_s: float) -> Iterator[Row]:
    for rows in shape.rows:
        for name, launch, moved in _row_launches(shape, rows, device):
            yield {"kernel": name, "rows": rows} | _moved(moved, launch_seconds(launch, device), gb_s)
        launch, moved = _adapters(shape, rows, device)
        row = {"kernel": "adapters", "rows": rows, "adapters": min(shape.adapters, rows), "rank": shape.adapter_rank}
        yield row | _moved(moved, launch_seconds(launch, device), gb_s)


def _row_launches(shape: Shape, rows: int, device: torch.device) -> Iterator[tuple[str, Callable[[], None], int]]:
    """(kernel, launch, bytes that must move) of each kernel that goes row by row."""

    def numbers(*size: int) -> torch.Tensor:
        return torch.randn(*size, device=device).to(torch.bfloat16)

    aio = torch.ops.aio
    x, residual, out, weight = (numbers(rows, shape.hidden) for _ in range(4))
    yield (
        "residual and norm",
        lambda: aio.add_rms_norm(out, residual, x, weight[0], 1e-6),
        4 * 2 * rows * shape.hidden,
    )
    gate_up, activated = numbers(rows, 2 * shape.intermediate), numbers(rows, shape.intermediate)
    yield "SwiGLU", lambda: aio.swiglu(activated, gate_up), 3 * 2 * rows * shape.intermediate
    load = _Load(shape, rows, 1, _BLOCK, "bfloat16", device)
    angles = torch.zeros(_BLOCK, shape.head_dim, device=device)
    cache = ops.cache_numbers(load.cache)
    yield (
        "RoPE and write",
        lambda: aio.rope_and_write(
            load.qkv, load.cache.arena, angles, load.positions, load.slots, None, None, 1e-6, *cache
        ),
        2 * 2 * rows * load.qkv.shape[1],
    )


def _adapters(shape: Shape, rows: int, device: torch.device) -> tuple[Callable[[], None], int]:
    """A down projection's adapters: the launch, and the bytes that must move."""
    inputs, outputs, rank, used = shape.intermediate, shape.hidden, shape.adapter_rank, min(shape.adapters, rows)

    def numbers(*size: int) -> torch.Tensor:
        return torch.randn(*size, device=device).to(torch.bfloat16)

    down, up = numbers(shape.adapters, 1, rank, inputs), numbers(shape.adapters, rank, outputs)
    full = torch.ones(shape.adapters, 1, device=device)
    slots = LowRankSlots(down, up, full, (full * rank).int(), (0, outputs))
    tile = tile_rows_for(rows)
    tiles: list[list[int]] = []
    order: list[int] = []
    for slot in range(used):
        own = range(slot, rows, used)
        tiles += [[len(order) + first, min(tile, len(own) - first), slot] for first in range(0, len(own), tile)]
        order += own
    batch = LowRankRows(
        torch.tensor(order, dtype=torch.int32, device=device),
        torch.tensor(tiles, dtype=torch.int32, device=device),
        tile,
    )
    x, out = numbers(rows, inputs), numbers(rows, outputs)
    moved = 2 * (used * rank * (inputs + outputs) + rows * (inputs + 2 * outputs))
    return lambda: add_low_rank(out, x, slots, batch), moved


def _moved(count: int, seconds: float, gb_s: float) -> Row:
    reached = count / seconds / 1e9
    return {"us": round(seconds * 1e6, 2), "gb_s": round(reached, 2), "of_peak": round(reached / gb_s, 4)}


def _kv_dtypes(device: torch.device) -> tuple[KVDtype, ...]:
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 9):
        return ("bfloat16",)
    return ("bfloat16", "fp8")


def _peak_bandwidth(shape: Shape, device: torch.device) -> float:
    """GB/s, read and written, of a copy."""
    source = torch.zeros(shape.peak_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * shape.peak_bytes / launch_seconds(lambda: target.copy_(source), device) / 1e9


def _peak_matmul(shape: Shape, device: torch.device) -> float:
    side = shape.peak_side
    a, b = (torch.randn(side, side, device=device).to(torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    return 2 * side**3 / launch_seconds(lambda: torch.mm(a, b, out=out), device) / 1e12


def launch_seconds(launch: Callable[[], object], device: torch.device, repeats: int = _REPEATS) -> float:
    """Of one launch, the fastest of three times `repeats` in a row, replayed from a CUDA graph; on the CPU of one."""
    # The first launch compiles kernels, which a capture may not.
    launch()
    if device.type != "cuda":
        began = time.perf_counter()
        launch()
        return time.perf_counter() - began
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            launch()
    best = float("inf")
    for _ in range(3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        best = min(best, begin.elapsed_time(end) / 1e3 / repeats)
    return best


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Measure the GPU kernels other than the linear layers.")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes: that it runs, not how fast")
    tiny = parser.parse_args(arguments).tiny
    if not tiny and not torch.cuda.is_available():
        sys.exit("there is no CUDA device to measure; --tiny runs the same on the CPU")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for row in bench_kernels(TINY if tiny else LLAMA_8B, device):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
