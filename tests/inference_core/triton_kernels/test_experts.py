"""Routing, grouped products and weighted sums of experts equal their references; a row's sum is its own."""

import pytest
import torch

from inference_core.linear.device import DenseLinear, Int4Experts, Int4Linear, stack_experts
from inference_core.triton_kernels.experts import (
    ExpertTile,
    add_experts,
    dense_experts,
    group_rows,
    int4_experts,
    route_experts,
)
from inference_core.triton_kernels.ops import ExpertRows, route
from inference_core.triton_kernels.reference import (
    reference_add_experts,
    reference_dense_experts,
    reference_int4_experts,
    reference_route_experts,
)
from inference_core.triton_kernels.weights import Int4Weight, pack_int4
from tests.inference_core.triton_kernels.conftest import INTERPRETED
from tests.inference_core.triton_kernels.int4_tensors import KINDS, int4_tensor

# Interpreted products of bfloat16 are wrong.
DTYPES = [torch.float32, torch.float16] if INTERPRETED else [torch.float32, torch.float16, torch.bfloat16]
HALVES = [torch.float16] if INTERPRETED else [torch.float16, torch.bfloat16]
BOUND = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
TILES = [None, ExpertTile(16, 16, 32, warps=4, stages=2), ExpertTile(64, 64, 64, warps=4, stages=2)]
SENTINEL = 7.0


def router(tokens: int, experts: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits, and slots of which every fifth is padding."""
    logits = torch.randn(tokens, experts, generator=torch.Generator().manual_seed(experts)) * 2
    slots = torch.where(torch.arange(tokens) % 5 == 3, -1, 64)
    return logits.to(dtype), slots


def rows_of(tokens: int, experts: int, taken: int) -> ExpertRows:
    """By the references, on the CPU."""
    return route(*router(tokens, experts), taken, normalise=True)


def on(device: torch.device, rows: ExpertRows) -> tuple[torch.Tensor, torch.Tensor]:
    return rows.order.to(device), rows.starts.to(device)


def operands(rows: ExpertRows, taken: int, inputs: int, dtype: torch.dtype) -> torch.Tensor:
    """x in a wider buffer: a row per token, or per choice."""
    count = len(rows.experts) if taken else len(rows.order)
    wide = torch.randn(count, inputs + 8, generator=torch.Generator().manual_seed(inputs)).to(dtype)
    return wide[:, :inputs]


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize(("experts", "taken"), [(4, 2), (6, 3), (8, 1), (128, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_tokens_take_the_references_experts(
    dtype: torch.dtype, experts: int, taken: int, normalise: bool, device: torch.device
) -> None:
    logits, slots = router(17, experts, dtype)
    logits[2] = 1.5  # ties go to the lower expert
    logits[4, 1] = logits[4, 3] = logits[4].max()
    shape = (17, taken)
    want, want_weights = torch.empty(shape, dtype=torch.int32), torch.empty(shape)
    reference_route_experts(logits, slots, want, want_weights, normalise=normalise)
    got, weights = torch.empty_like(want, device=device), torch.empty_like(want_weights, device=device)
    route_experts(logits.to(device), slots.to(device), got, weights, normalise=normalise)
    assert torch.equal(got.cpu(), want)
    assert want[2].tolist() == list(range(taken))
    torch.testing.assert_close(weights.cpu(), want_weights, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("tokens", "experts", "taken"), [(1, 8, 2), (17, 6, 3), (40, 128, 8), (600, 4, 2)])
def test_rows_are_sorted_by_expert_and_stay_in_order(
    tokens: int, experts: int, taken: int, device: torch.device
) -> None:
    rows = rows_of(tokens, experts, taken)
    order, starts = torch.empty_like(rows.order, device=device), torch.empty_like(rows.starts, device=device)
    group_rows(rows.experts.to(device), order, starts)
    assert torch.equal(starts.cpu(), rows.starts)
    assert torch.equal(order.cpu()[rows.starts[0] :], rows.order[rows.starts[0] :])


@pytest.mark.parametrize("tile", TILES, ids=["chosen", "small", "large"])
@pytest.mark.parametrize("taken", [3, 0], ids=["gathered", "scattered"])
@pytest.mark.parametrize(("tokens", "experts"), [(1, 6), (5, 40), (100, 6)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_products_of_dense_experts_equal_the_reference(
    dtype: torch.dtype, tokens: int, experts: int, taken: int, tile: ExpertTile | None, device: torch.device
) -> None:
    rows, inputs, outputs = rows_of(tokens, experts, 3), 72, 40
    x = operands(rows, taken, inputs, dtype)
    weight = (torch.randn(experts, outputs, inputs, generator=torch.Generator().manual_seed(1)) * 0.1).to(dtype)
    want = torch.full((len(rows.order), outputs), SENTINEL, dtype=dtype)
    got = want.to(device)
    reference_dense_experts(x, weight, rows.order, rows.starts, want, taken=taken)
    dense_experts(x.to(device), weight.to(device), *on(device, rows), got, taken=taken, tile=tile)
    assert (want == SENTINEL).any() or tokens < 5
    torch.testing.assert_close(got.cpu(), want, atol=BOUND[dtype], rtol=BOUND[dtype])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("taken", [2, 0], ids=["gathered", "scattered"])
@pytest.mark.parametrize("tokens", [1, 50])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_products_of_4_bit_experts_equal_the_reference(
    dtype: torch.dtype, tokens: int, taken: int, kind: str, device: torch.device
) -> None:
    rows, inputs, outputs = rows_of(tokens, 4, 2), 512, 48
    stack = packed(kind, 4, outputs, inputs)
    x = operands(rows, taken, inputs, dtype)
    want = torch.full((len(rows.order), outputs), SENTINEL, dtype=dtype)
    got = want.to(device)
    arrays = (stack.codes, stack.scales, stack.offsets)
    reference_int4_experts(x, *arrays, rows.order, rows.starts, want, taken=taken)
    there = (None if array is None else array.to(device) for array in arrays)
    int4_experts(x.to(device), *there, *on(device, rows), got, taken=taken)
    torch.testing.assert_close(got.cpu(), want, atol=4 * BOUND[dtype], rtol=BOUND[dtype])


def packed(kind: str, experts: int, outputs: int, inputs: int) -> Int4Experts:
    linears = [
        Int4Linear(Int4Weight.load(pack_int4(int4_tensor(kind, outputs, inputs, seed)), inputs, "cpu"), None)
        for seed in range(experts)
    ]
    stack = stack_experts(linears, "cpu", torch.float16)
    assert isinstance(stack, Int4Experts)
    return stack


@pytest.mark.parametrize("int4", [False, True], ids=["dense", "4 bits"])
def test_a_rows_sum_has_the_same_bits_alone_and_among_others(int4: bool, device: torch.device) -> None:
    """The chosen tile has more rows for the batch than for one token."""
    tokens, taken, inputs, outputs = 160, 2, 512, 64
    rows = rows_of(tokens, 4, taken)
    x = operands(rows, taken, inputs, torch.float16).to(device)
    weight = (torch.randn(4, outputs, inputs) * 0.1).half().to(device)
    stack = packed("Q4_1", 4, outputs, inputs)
    there = (stack.codes.to(device), stack.scales.to(device), stack.offsets.to(device))

    def product(rows: ExpertRows, x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(len(rows.order), outputs, dtype=torch.float16, device=device)
        if int4:
            int4_experts(x, *there, *on(device, rows), out, taken=taken)
        else:
            dense_experts(x, weight, *on(device, rows), out, taken=taken)
        by_row = torch.empty_like(out)
        by_row[rows.order.long().to(device)] = out
        return by_row.view(-1, taken, outputs)

    together = product(rows, x)
    for token in (0, 7, 159):
        experts = rows.experts[token : token + 1]
        order, starts = torch.empty(taken, dtype=torch.int32), torch.empty(5, dtype=torch.int32)
        torch.ops.aio.group_rows(order, starts, experts)
        alone = product(ExpertRows(experts, rows.weights[token : token + 1], order, starts), x[token : token + 1])
        assert torch.equal(alone[0], together[token])


@pytest.mark.parametrize(("taken", "width"), [(1, 64), (2, 1100), (8, 40)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_results_are_added_by_their_weights_and_padding_is_zero(
    dtype: torch.dtype, taken: int, width: int, device: torch.device
) -> None:
    rows = rows_of(12, 8, taken)
    parts = torch.randn(12 * taken, width, generator=torch.Generator().manual_seed(2)).to(dtype)
    parts.view(12, taken, width)[rows.experts[:, 0] < 0] = torch.nan
    want, got = torch.empty(12, width, dtype=dtype), torch.empty(12, width, dtype=dtype, device=device)
    reference_add_experts(parts, rows.experts, rows.weights, want)
    add_experts(parts.to(device), rows.experts.to(device), rows.weights.to(device), got)
    assert (want[rows.experts[:, 0] < 0] == 0).all()
    torch.testing.assert_close(got.cpu(), want, atol=BOUND[dtype], rtol=BOUND[dtype])


def test_experts_of_mixed_formats_are_stacked_in_one() -> None:
    """Groups of 32 and of 128, symmetric and not, 4 bits and dense."""
    kinds = ["Q4_0", "Q4_Z, groups of 128", "Q4_1"]
    tensors = [int4_tensor(kind, 16, 256) for kind in kinds]
    weights = [Int4Weight.load(pack_int4(tensor), 256, "cpu") for tensor in tensors]
    linears = [Int4Linear(weight, None) for weight in weights]
    rows, x = rows_of(9, 3, 1), torch.randn(9, 256).half()

    def product(stack_of: list[DenseLinear | Int4Linear]) -> torch.Tensor:
        stack = stack_experts(stack_of, "cpu", torch.float16)
        out = torch.zeros(9, 16, dtype=torch.float16)
        stack.apply(x, out, rows, 1)
        return out

    dense = [
        DenseLinear(stack.weight[0], None)
        for stack in (
            stack_experts([linear, DenseLinear(torch.zeros(16, 256), None)], "cpu", torch.float16) for linear in linears
        )
    ]
    torch.testing.assert_close(product([*linears]), product([*dense]), atol=8e-3, rtol=2e-3)
    assert torch.equal(product([linears[0], *dense[1:]]), product([*dense]))
