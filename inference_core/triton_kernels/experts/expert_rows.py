"""Which rows each expert computes, and the weighted sums of their results.

Routing is that of Shazeer et al. (2017): a softmax over the router's numbers, of which a token takes the largest. Ties
go to the lower expert, so a token's choice depends on its own numbers alone. No kernel waits for another: each expert
counts the rows of lower ones by itself, which reads 4 bytes per row.
"""

import torch
import triton
import triton.language as tl

from inference_core.triton_kernels.attention.attention_tiles import padded
from inference_core.triton_kernels.experts.expert_reference import PADDING

_PADDING = tl.constexpr(PADDING)
_COLUMNS = 1024  # of hidden states, per program
_ROWS = 1024  # read at once when rows are counted


@triton.jit
def route_experts_kernel(
    logits,
    slots,
    experts,
    weights,
    logits_stride,
    EXPERTS: tl.constexpr,
    EXPERTS_PAD: tl.constexpr,
    TAKEN: tl.constexpr,
    TAKEN_PAD: tl.constexpr,
    NORMALISE: tl.constexpr,
):
    """Programs: tokens."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, EXPERTS_PAD)
    choice = tl.arange(0, TAKEN_PAD)
    numbers = tl.load(logits + token * logits_stride + column, mask=column < EXPERTS, other=float("-inf"))
    left = numbers.to(tl.float32)
    highest = tl.max(left, 0)
    total = tl.sum(tl.exp(left - highest), 0)
    taken = tl.zeros([TAKEN_PAD], tl.int32)
    chosen = tl.full([TAKEN_PAD], float("-inf"), tl.float32)
    for j in tl.static_range(TAKEN):
        best = tl.max(left, 0)
        # Numbers that are not a number equal nothing; the bound keeps the expert valid.
        expert = tl.minimum(tl.min(tl.where(left == best, column, EXPERTS_PAD), 0), EXPERTS - 1)
        taken = tl.where(choice == j, expert, taken)
        chosen = tl.where(choice == j, best, chosen)
        left = tl.where(column == expert, float("-inf"), left)
    shares = tl.exp(chosen - highest)
    if NORMALISE:
        total = tl.sum(shares, 0)
    place = token * TAKEN + choice
    real = tl.load(slots + token) >= 0
    tl.store(experts + place, tl.where(real, taken, _PADDING), mask=choice < TAKEN)
    tl.store(weights + place, shares / total, mask=choice < TAKEN)


@triton.jit(do_not_specialize=["rows"])
def group_rows_kernel(experts, order, starts, rows, CHUNK: tl.constexpr):
    """Programs: experts."""
    expert = tl.program_id(0)
    lane = tl.arange(0, CHUNK)
    lower = tl.zeros([CHUNK], tl.int32)
    for begin in range(0, rows, CHUNK):
        # Beyond the end there are experts above all.
        owner = tl.load(experts + begin + lane, mask=begin + lane < rows, other=2147483647)
        lower += (owner < expert).to(tl.int32)
    place = tl.sum(lower, 0)
    tl.store(starts + expert, place)
    for begin in range(0, rows, CHUNK):
        owner = tl.load(experts + begin + lane, mask=begin + lane < rows, other=2147483647)
        own = (owner == expert).to(tl.int32)
        tl.store(order + place + tl.cumsum(own, 0) - 1, begin + lane, mask=own > 0)
        place += tl.sum(own, 0)
    if expert == tl.num_programs(0) - 1:
        tl.store(starts + expert + 1, place)


@triton.jit
def add_experts_kernel(
    parts,
    experts,
    weights,
    out,
    parts_stride,
    out_stride,
    WIDTH: tl.constexpr,
    TAKEN: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Programs: tokens x pieces of COLUMNS columns."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < WIDTH
    sums = tl.zeros([COLUMNS], tl.float32)
    if tl.load(experts + token * TAKEN) != _PADDING:  # parts of padding were never written
        for j in tl.static_range(TAKEN):
            row = token * TAKEN + j
            part = tl.load(parts + row * parts_stride + column, mask=inside, other=0.0).to(tl.float32)
            sums += part * tl.load(weights + row)
    tl.store(out + token * out_stride + column, sums.to(out.dtype.element_ty), mask=inside)


def route_experts(
    logits: torch.Tensor, slots: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor, *, normalise: bool
) -> None:
    """Write the experts int32 [T, k] with the largest `logits` [T, E] (floats of any type), best first, and their
    weights float32 [T, k]: the softmax over all experts, or with `normalise` over the k. Tokens with a negative slot
    int64 [T] are padding: their experts are -1."""
    tokens, count = logits.shape
    taken = experts.shape[1]
    if not tokens:
        return
    pad = padded(count)
    route_experts_kernel[(tokens,)](
        *(logits, slots, experts, weights, logits.stride(0)),
        EXPERTS=count,
        EXPERTS_PAD=pad,
        TAKEN=taken,
        TAKEN_PAD=padded(taken),
        NORMALISE=normalise,
        num_warps=1 if pad <= 256 else 4,
        num_stages=1,
    )


def group_rows(experts: torch.Tensor, order: torch.Tensor, starts: torch.Tensor) -> None:
    """Sort the rows of experts int32 [T, k], which are T k, by expert, then by row: expert e of E has
    order[starts[e]] to order[starts[e + 1]]; `order` int32 [T k], of which rows of padding are left out, `starts` int32
    [E + 1]. Rows of padding take the first starts[0] places, which are not written."""
    rows = experts.numel()
    group_rows_kernel[(len(starts) - 1,)](experts, order, starts, rows, CHUNK=_ROWS, num_warps=4, num_stages=1)


def add_experts(parts: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor, out: torch.Tensor) -> None:
    """out[t] = the sum over j of weights[t, j] * parts[t k + j], in float32 and in the order of j; zeros for padding.

    `parts` [T k, D] and `out` [T, D] float32, float16 or bfloat16 with contiguous rows.
    """
    tokens, width = out.shape
    if not tokens:
        return
    add_experts_kernel[(tokens, triton.cdiv(width, _COLUMNS))](
        *(parts, experts, weights, out, parts.stride(0), out.stride(0)),
        WIDTH=width,
        TAKEN=experts.shape[1],
        COLUMNS=_COLUMNS,
        num_warps=4,
        num_stages=1,
    )
