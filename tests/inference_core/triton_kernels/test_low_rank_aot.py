"""The kernels of low-rank adapters compile for every device of ours, without spills or a stack (SPEC AT-06, [A])."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from inference_core.triton_kernels.low_rank import add_low_rank
from inference_core.triton_kernels.tiles import most_tiles, tile_rows_for
from inference_core.triton_kernels.weights import LowRankRows, LowRankSlots
from tests.inference_core.triton_kernels.aot import AotCase, check_usage, grid

meta = partial(torch.empty, device="meta")
# Llama 3 8B: inputs, and where the parts of its fused projections end.
QKV = (4096, (0, 4096, 5120, 6144))
GATE_UP = (4096, (0, 14336, 28672))
DOWN = (14336, (0, 4096))


def adapted(
    tokens: int,
    projection: tuple[int, tuple[int, ...]],
    *,
    rank: int = 16,
    slots: int = 8,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    inputs, borders = projection
    parts, outputs = len(borders) - 1, borders[-1]
    factors = (meta(slots, parts, rank, inputs, dtype=dtype), meta(slots, rank, outputs, dtype=dtype))
    ranks, tiles = meta(slots, 3, dtype=torch.int32), meta(most_tiles(tokens, slots), 3, dtype=torch.int32)
    add_low_rank(
        meta(tokens, outputs, dtype=dtype),
        meta(tokens, inputs, dtype=dtype),
        LowRankSlots(*factors, meta(slots, 3), ranks, borders),
        LowRankRows(meta(tokens, dtype=torch.int32), tiles, tile_rows_for(tokens)),
    )


CASES = {
    "qkv, 8 rows": AotCase(partial(adapted, 8, QKV), wide_loads=True),
    "qkv, 4096 rows, rank 64": AotCase(partial(adapted, 4096, QKV, rank=64), wide_loads=True),
    "gate and up, 64 rows, rank 64": AotCase(partial(adapted, 64, GATE_UP, rank=64), wide_loads=True),
    "gate and up, 4096 rows": AotCase(partial(adapted, 4096, GATE_UP), wide_loads=True),
    "down, 1 row": AotCase(partial(adapted, 1, DOWN), wide_loads=True),
    "down, 4096 rows, rank 64, float16": AotCase(
        partial(adapted, 4096, DOWN, rank=64, dtype=torch.float16), wide_loads=True
    ),
}


@pytest.mark.kernels
@pytest.mark.parametrize(("name", "capability"), grid(CASES))
def test_a_launch_compiles_without_spills(
    name: str, capability: int, compiled: Callable[[str], dict[str, Any]]
) -> None:
    check_usage(CASES[name], compiled(Path(__file__).stem)[name][str(capability)], capability)
