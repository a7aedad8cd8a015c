"""Linear layers and sampling compile for every device of ours, without spills or a stack (SPEC AT-06, [A])."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from inference_core.triton_kernels.int4_linear import int4_dequantize, int4_linear
from inference_core.triton_kernels.logits import edit_logits
from inference_core.triton_kernels.scaled_linear import quantize_groups, quantize_rows, scaled_linear
from inference_core.triton_kernels.token_draws import draw_tokens, row_totals
from tests.inference_core.triton_kernels.aot import E4M3, AotCase, check_usage, grid

meta = partial(torch.empty, device="meta")
ints = partial(meta, dtype=torch.int32)
longs = partial(meta, dtype=torch.int64)
doubles = partial(meta, dtype=torch.float64)
FP8 = torch.float8_e4m3fn


def int4(
    rows: int,
    *,
    outputs: int = 4096,
    inputs: int = 4096,
    group: int = 128,
    offsets: bool = True,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    x, out = meta(rows, inputs, dtype=dtype), meta(rows, outputs, dtype=dtype)
    scales = meta(inputs // group, outputs, dtype=torch.float16)
    shift = meta(inputs // group, outputs, dtype=torch.float16) if offsets else None
    int4_linear(x, ints(inputs // 256, outputs, 32), scales, shift, meta(outputs, dtype=dtype), out, accumulate=True)


def dequantize(group: int) -> None:
    halves = partial(meta, 4096 // group, 4096, dtype=torch.float16)
    int4_dequantize(ints(16, 4096, 32), halves(), halves(), meta(4096, 4096, dtype=torch.bfloat16))


def eight_bit(rows: int, dtype: torch.dtype, *, blocks: bool = False, outputs: int = 4096, inputs: int = 4096) -> None:
    scales = (meta(inputs // 128, rows).T, meta(outputs // 128, inputs // 128))
    scales = scales if blocks else (meta(rows), meta(outputs))
    out = meta(rows, outputs, dtype=torch.bfloat16)
    x, weight = meta(rows, inputs, dtype=dtype), meta(outputs, inputs, dtype=dtype)
    scaled_linear(x, scales[0], weight, scales[1], None, out)


def edits() -> None:
    tables = (ints(8, 512), meta(8, 512), ints(8), ints(8, 128256))
    edit_logits(meta(8, 128256), ints(8), *tables, meta(8), meta(8), meta(8))


def totals() -> None:
    row_totals(meta(8), longs(8), meta(8, 128256))


def draws() -> None:
    columns = (doubles(8), ints(8), doubles(8), doubles(8), longs(8), longs(8))
    draw_tokens(longs(8), meta(8, 128256), *columns)


CASES = {
    "INT4, 1 row": AotCase(partial(int4, 1), wide_loads=True),
    "INT4, 16 rows, groups of 32": AotCase(partial(int4, 16, group=32), wide_loads=True),
    "INT4, 16 rows, no split": AotCase(partial(int4, 16, outputs=28672), wide_loads=True),
    "INT4, 1 row, symmetric, float16": AotCase(
        partial(int4, 1, group=32, offsets=False, dtype=torch.float16), wide_loads=True
    ),
    "INT4, 32 rows": AotCase(partial(int4, 32), wide_loads=True),
    "INT4, 32 rows, a large weight": AotCase(partial(int4, 32, outputs=28672), wide_loads=True),
    "INT4, 64 rows": AotCase(partial(int4, 64), wide_loads=True),
    "INT4, 256 rows, groups of 32": AotCase(partial(int4, 256, group=32), wide_loads=True),
    "INT4, 256 rows, float16": AotCase(partial(int4, 256, dtype=torch.float16), wide_loads=True),
    "INT4, dequantised": AotCase(partial(dequantize, 128), wide_loads=True),
    "INT8, 1 row": AotCase(partial(eight_bit, 1, torch.int8), wide_loads=True),
    "INT8, 64 rows": AotCase(partial(eight_bit, 64, torch.int8), wide_loads=True),
    "INT8, 64 rows, no split": AotCase(partial(eight_bit, 64, torch.int8, outputs=6144), wide_loads=True),
    "INT8, 64 rows, many outputs": AotCase(partial(eight_bit, 64, torch.int8, outputs=28672), wide_loads=True),
    "FP8, 64 rows, many outputs": AotCase(partial(eight_bit, 64, FP8, outputs=28672), least=E4M3, wide_loads=True),
    "INT8, 256 rows": AotCase(partial(eight_bit, 256, torch.int8, outputs=6144), wide_loads=True),
    "INT8, 128 rows": AotCase(partial(eight_bit, 128, torch.int8), wide_loads=True),
    "FP8 blocks, 128 rows": AotCase(partial(eight_bit, 128, FP8, blocks=True), least=E4M3, wide_loads=True),
    "INT8, 2048 rows": AotCase(partial(eight_bit, 2048, torch.int8), wide_loads=True),
    "FP8, 1 row": AotCase(partial(eight_bit, 1, FP8), least=E4M3, wide_loads=True),
    "FP8, 2048 rows": AotCase(partial(eight_bit, 2048, FP8), least=E4M3, wide_loads=True),
    "FP8 blocks, 1 row": AotCase(partial(eight_bit, 1, FP8, blocks=True), least=E4M3, wide_loads=True),
    "FP8 blocks, 2048 rows": AotCase(partial(eight_bit, 2048, FP8, blocks=True), least=E4M3, wide_loads=True),
    "INT8 activations": AotCase(lambda: quantize_rows(meta(64, 4096, dtype=torch.bfloat16), torch.int8)),
    "FP8 activations": AotCase(lambda: quantize_rows(meta(64, 4096, dtype=torch.bfloat16), FP8), least=E4M3),
    "FP8 activations, groups": AotCase(lambda: quantize_groups(meta(64, 4096, dtype=torch.bfloat16), FP8), least=E4M3),
    "edits of logits": AotCase(edits),
    "draws": AotCase(draws),
    "totals of rows": AotCase(totals),
}


@pytest.mark.kernels
@pytest.mark.parametrize(("name", "capability"), grid(CASES))
def test_a_launch_compiles_without_spills(
    name: str, capability: int, compiled: Callable[[str], dict[str, Any]]
) -> None:
    check_usage(CASES[name], compiled(Path(__file__).stem)[name][str(capability)], capability)
