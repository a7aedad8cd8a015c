"""Mixtures of experts: which rows each expert computes, their grouped products, and the weighted sums of these.

Routing is that of Shazeer et al. (2017): a softmax over the router's numbers, of which a token takes the largest. Ties
go to the lower expert, so a token's choice depends on its own numbers alone. No kernel waits for another: each expert
counts the rows of lower ones by itself, which reads 4 bytes per row.

Rows are sorted by expert, each tile of rows with the weights of one expert. Weights are the left operand of the matrix
instructions (out^T = W x^T), as in `int4_linear`, and every tile adds its inputs in the same order whatever its number
of rows: a row's sum does not depend on the other rows of the step. The launch covers as many tiles as the rows could
need; which expert a tile belongs to is found on the device.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from inference_core.triton_kernels.int4_linear import centred, load_parts
from inference_core.triton_kernels.reference import PADDING
from inference_core.triton_kernels.tiles import padded
from inference_core.triton_kernels.weights import BLOCK, WORDS, group_size

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
    indices = token * TAKEN + choice
    real = tl.load(slots + token) >= 0
    tl.store(experts + indices, tl.where(real, taken, _PADDING), mask=choice < TAKEN)
    tl.store(weights + indices, shares / total, mask=choice < TAKEN)


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
    start = tl.sum(lower, 0)
    tl.store(starts + expert, start)
    for begin in range(0, rows, CHUNK):
        owner = tl.load(experts + begin + lane, mask=begin + lane < rows, other=2147483647)
        own = (owner == expert).to(tl.int32)
        tl.store(order + start + tl.cumsum(own, 0) - 1, begin + lane, mask=own > 0)
        start += tl.sum(own, 0)
    if expert == tl.num_programs(0) - 1:
        tl.store(starts + expert + 1, start)


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


_BLOCK = tl.constexpr(BLOCK)
_WORDS = tl.constexpr(WORDS)


@dataclass(frozen=True, slots=True)
class ExpertTile:
    """Sizes of one program."""

    outputs: int
    """A power of two of at least 16."""
    rows: int
    """A power of two of at least 16."""
    inputs: int
    """Inputs of one step of a dense sum."""
    warps: int
    stages: int


def choose_expert_tile(rows: int, experts: int) -> ExpertTile:
    """Choose a tile for `rows` over `experts`. All of them add the inputs in the same order."""
    each = -(-rows // experts)
    if each <= 16:
        return ExpertTile(64, 16, 64, warps=4, stages=4)
    if each <= 32:
        return ExpertTile(64, 32, 64, warps=4, stages=3)
    return ExpertTile(128, 64, 64, warps=8, stages=3)


@triton.jit
def _find_tile(starts, index, EXPERTS: tl.constexpr, EXPERTS_PAD: tl.constexpr, BLOCK_M: tl.constexpr):
    """The expert of tile `index` (EXPERTS or more: there is none), its first row, and the end of its expert's rows."""
    number = tl.arange(0, EXPERTS_PAD)
    real = number < EXPERTS
    begin = tl.load(starts + number, mask=real, other=0)
    end = tl.load(starts + number + 1, mask=real, other=0)
    tiles = (end - begin + BLOCK_M - 1) // BLOCK_M
    expert = tl.sum((tl.cumsum(tiles, 0) <= index).to(tl.int32), 0)
    earlier = tl.sum(tl.where(number < expert, tiles, 0), 0)
    own = number == expert
    first = tl.sum(tl.where(own, begin, 0), 0) + (index - earlier) * BLOCK_M
    return expert, first, tl.sum(tl.where(own, end, 0), 0)


@triton.jit
def _rows(order, m, seen, TAKEN: tl.constexpr):
    """Rows of `x` that the sorted rows `m` read, and rows of `out` that they write."""
    row = tl.load(order + m, mask=seen, other=0)
    if TAKEN > 0:
        return (row // TAKEN).to(tl.int64), m.to(tl.int64)
    else:
        return m.to(tl.int64), row.to(tl.int64)


@triton.jit
def dense_experts_kernel(
    x,
    weight,
    order,
    starts,
    out,
    outputs,
    inputs,
    x_stride,
    out_stride,
    EXPERTS: tl.constexpr,
    EXPERTS_PAD: tl.constexpr,
    TAKEN: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Programs: pieces of BLOCK_N outputs x tiles of BLOCK_M rows."""
    expert, first, end = _find_tile(starts, tl.program_id(1), EXPERTS, EXPERTS_PAD, BLOCK_M)
    if expert >= EXPERTS:
        return
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = first + tl.arange(0, BLOCK_M)
    real, seen = n < outputs, m < end
    source, target = _rows(order, m, seen, TAKEN)
    own = weight + expert.to(tl.int64) * outputs * inputs
    sums = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for begin in range(0, inputs, BLOCK_K):
        k = begin + tl.arange(0, BLOCK_K)
        within = k < inputs
        w = tl.load(own + n[:, None] * inputs + k[None, :], mask=real[:, None] & within[None, :], other=0.0)
        xs = tl.load(x + source[:, None] * x_stride + k[None, :], mask=seen[:, None] & within[None, :], other=0.0)
        sums = tl.dot(w, tl.trans(xs), sums, input_precision=PRECISION)
    pointers = out + target[None, :] * out_stride + n[:, None]
    tl.store(pointers, sums.to(out.dtype.element_ty), mask=real[:, None] & seen[None, :])


@triton.jit
def int4_experts_kernel(
    x,
    codes,
    scales,
    offsets,
    order,
    starts,
    out,
    outputs,
    inputs,
    x_stride,
    out_stride,
    EXPERTS: tl.constexpr,
    EXPERTS_PAD: tl.constexpr,
    TAKEN: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Programs: pieces of BLOCK_N outputs x tiles of BLOCK_M rows."""
    expert, first, end = _find_tile(starts, tl.program_id(1), EXPERTS, EXPERTS_PAD, BLOCK_M)
    if expert >= EXPERTS:
        return
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = first + tl.arange(0, BLOCK_M)
    STEP: tl.constexpr = GROUP if GROUP < 2 * _WORDS else 2 * _WORDS  # inputs of one product: of one group
    PARTS: tl.constexpr = 2 * _WORDS // STEP
    step_k = tl.arange(0, STEP)
    real, seen = n < outputs, m < end
    source, target = _rows(order, m, seen, TAKEN)
    x_rows = x + source[None, :] * x_stride
    blocks = tl.cdiv(inputs, _BLOCK)
    sums = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for block in range(blocks):
        at = expert.to(tl.int64) * blocks + block
        words = load_parts(codes, at * outputs + n, real, PARTS)
        for group in tl.static_range(_BLOCK // GROUP):
            group_index = (at * (_BLOCK // GROUP) + group) * outputs + n
            scale = tl.load(scales + group_index, mask=real, other=0.0).to(tl.float32)[:, None]
            if HAS_OFFSETS:
                offset = tl.load(offsets + group_index, mask=real, other=0.0).to(tl.float32)[:, None]
            for i in tl.static_range(GROUP // STEP):
                step = group * (GROUP // STEP) + i
                k = block * _BLOCK + step * STEP + step_k
                xs = tl.load(x_rows + k[:, None], mask=(k[:, None] < inputs) & seen[None, :], other=0.0)
                w = centred(words[(PARTS - 1) & group], step // PARTS, x.dtype.element_ty).to(tl.float32) * scale
                if HAS_OFFSETS:
                    w += offset
                sums = tl.dot(w.to(x.dtype.element_ty), xs, sums)
    target_at = out + target[None, :] * out_stride + n[:, None]
    tl.store(target_at, sums.to(out.dtype.element_ty), mask=real[:, None] & seen[None, :])


def dense_experts(
    x: torch.Tensor,
    weight: torch.Tensor,
    order: torch.Tensor,
    starts: torch.Tensor,
    out: torch.Tensor,
    *,
    taken: int,
    tile: ExpertTile | None = None,
) -> None:
    """out = x W_e^T for the rows of each expert e: weight [E, N, K], contiguous.

    `order` int32 [R] and `starts` int32 [E + 1] as `expert_rows.group_rows` writes them. With `taken` = k, row r of the
    step reads x[r // k] of x [R / k, K], and out [R, N] is in the order of `order`; with 0, x [R, K] is in that order,
    and row r writes out[r]. Rows of no expert are not written. `x`, `weight` and `out` have one dtype: float32, float16
    or bfloat16. `tile` overrides the choice for the shape.
    """
    experts, outputs, inputs = weight.shape
    if not len(order):
        return
    grid, tile = _grid(order, experts, outputs, tile)
    dense_experts_kernel[grid](
        *(x, weight, order, starts, out, outputs, inputs, x.stride(0), out.stride(0)),
        EXPERTS=experts,
        EXPERTS_PAD=padded(experts),
        TAKEN=taken,
        PRECISION="tf32x3" if x.dtype == torch.float32 else "tf32",
        BLOCK_N=tile.outputs,
        BLOCK_M=tile.rows,
        BLOCK_K=tile.inputs if x.element_size() < 4 else tile.inputs // 2,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


def int4_experts(
    x: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    offsets: torch.Tensor | None,
    order: torch.Tensor,
    starts: torch.Tensor,
    out: torch.Tensor,
    *,
    taken: int,
    tile: ExpertTile | None = None,
) -> None:
    """As `dense_experts`, for float16 or bfloat16 and 4-bit weights: `codes`, `scales` and `offsets` are those of an
    `Int4Weight` with a first dimension of experts. Weights are dequantised to x's dtype, tile by tile."""
    experts, outputs, inputs = len(codes), codes.shape[2], x.shape[1]
    if not len(order):
        return
    grid, tile = _grid(order, experts, outputs, tile)
    int4_experts_kernel[grid](
        *(x, codes, scales, offsets, order, starts, out, outputs, inputs, x.stride(0), out.stride(0)),
        EXPERTS=experts,
        EXPERTS_PAD=padded(experts),
        TAKEN=taken,
        GROUP=group_size(codes[0], scales[0]),
        HAS_OFFSETS=offsets is not None,
        BLOCK_N=tile.outputs,
        BLOCK_M=tile.rows,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


def _grid(
    order: torch.Tensor, experts: int, outputs: int, tile: ExpertTile | None
) -> tuple[tuple[int, int], ExpertTile]:
    """As many tiles as `order` may need: those that are full, and one more for each expert that has rows."""
    rows = len(order)
    tile = tile or choose_expert_tile(rows, experts)
    return (triton.cdiv(outputs, tile.outputs), rows // tile.rows + min(experts, rows)), tile
