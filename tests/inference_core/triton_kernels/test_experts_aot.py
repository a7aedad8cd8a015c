"""Kernels of experts compile for every device of ours, without spills or a stack."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from inference_core.triton_kernels.experts import add_experts, dense_experts, group_rows, int4_experts, route_experts
from tests.inference_core.triton_kernels.aot import AotCase, check_usage, grid

meta = partial(torch.empty, device="meta")
ints = partial(meta, dtype=torch.int32)
halves = partial(meta, dtype=torch.float16)


def products(
    tokens: int,
    *,
    bits: int = 16,
    experts: int = 8,
    taken: int = 2,
    gathered: bool = True,
    outputs: int = 14336,
    inputs: int = 4096,
    group: int = 128,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    rows = tokens * taken
    x, out = meta(tokens if gathered else rows, inputs, dtype=dtype), meta(rows, outputs, dtype=dtype)
    tables, taken = (ints(rows), ints(experts + 1)), taken if gathered else 0
    if bits == 16:
        dense_experts(x, meta(experts, outputs, inputs, dtype=dtype), *tables, out, taken=taken)
        return
    scales = halves(experts, inputs // group, outputs)
    int4_experts(x, ints(experts, inputs // 256, outputs, 32), scales, scales, *tables, out, taken=taken)


def route(tokens: int, experts: int, taken: int, *, normalise: bool) -> None:
    rows = (ints(tokens, taken), meta(tokens, taken))
    route_experts(
        meta(tokens, experts, dtype=torch.bfloat16), meta(tokens, dtype=torch.int64), *rows, normalise=normalise
    )


# True shapes: Mixtral 8x7B (8 experts of 14336) and Qwen3 30B-A3B (128 of 768).
WIDE = {"wide_loads": True}
QWEN3 = {"experts": 128, "taken": 8, "inputs": 2048, "outputs": 1536}
CASES = {
    "experts, 1 token": AotCase(partial(products, 1), **WIDE),
    "experts, 100 tokens": AotCase(partial(products, 100), **WIDE),
    "experts, 4096 tokens": AotCase(partial(products, 4096), **WIDE),
    "experts, 4096 tokens, scattered": AotCase(
        partial(products, 4096, gathered=False, inputs=14336, outputs=4096), **WIDE
    ),
    "experts, 4096 tokens, float32": AotCase(partial(products, 4096, dtype=torch.float32), **WIDE),
    "128 experts, 64 tokens": AotCase(partial(products, 64, **QWEN3), **WIDE),
    "INT4 experts, 1 token": AotCase(partial(products, 1, bits=4), **WIDE),
    "INT4 experts, 100 tokens": AotCase(partial(products, 100, bits=4), **WIDE),
    "INT4 experts, 4096 tokens": AotCase(partial(products, 4096, bits=4), **WIDE),
    "INT4 experts, 4096 tokens, groups of 32": AotCase(partial(products, 4096, bits=4, group=32), **WIDE),
    "INT4 experts, 4096 tokens, scattered, float16": AotCase(
        partial(products, 4096, bits=4, gathered=False, dtype=torch.float16), **WIDE
    ),
    "128 INT4 experts, 64 tokens": AotCase(partial(products, 64, bits=4, **QWEN3), **WIDE),
    "routes of 8 experts": AotCase(partial(route, 64, 8, 2, normalise=True)),
    "routes of 128 experts": AotCase(partial(route, 64, 128, 8, normalise=False)),
    "rows by expert": AotCase(lambda: group_rows(ints(64, 8), ints(512), ints(129))),
    "weighted sums": AotCase(
        lambda: add_experts(
            meta(128, 4096, dtype=torch.bfloat16), ints(64, 2), meta(64, 2), meta(64, 4096, dtype=torch.bfloat16)
        ),
        **WIDE,
    ),
}


@pytest.mark.kernels
@pytest.mark.parametrize(("name", "capability"), grid(CASES))
def test_a_launch_compiles_without_spills(
    name: str, capability: int, compiled: Callable[[str], dict[str, Any]]
) -> None:
    check_usage(CASES[name], compiled(Path(__file__).stem)[name][str(capability)], capability)
