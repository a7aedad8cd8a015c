"""Grouped products of experts: rows sorted by expert, each tile of rows with the weights of one expert.

Weights are the left operand of the matrix instructions (out^T = W x^T), as in `linear.int4_linear`, and every tile adds
its inputs in the same order whatever its number of rows: a row's sum does not depend on the other rows of the step. The
launch covers as many tiles as the rows could need; which expert a tile belongs to is found on the device.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from inference_core.triton_kernels.attention.attention_tiles import padded
from inference_core.triton_kernels.linear.int4_linear import centred
from inference_core.triton_kernels.linear.int4_weight import BLOCK, WORDS, group_size

_BLOCK = tl.constexpr(BLOCK)
_WORDS = tl.constexpr(WORDS)


@dataclass(frozen=True, slots=True)
class ExpertTile:
    """`outputs` and `rows` of one program, powers of two of at least 16; `inputs`: of one step of a dense sum."""

    outputs: int
    rows: int
    inputs: int
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
    known = number < EXPERTS
    begin = tl.load(starts + number, mask=known, other=0)
    end = tl.load(starts + number + 1, mask=known, other=0)
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
    place = out + target[None, :] * out_stride + n[:, None]
    tl.store(place, sums.to(out.dtype.element_ty), mask=real[:, None] & seen[None, :])


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
    j = tl.arange(0, _WORDS)
    real, seen = n < outputs, m < end
    source, target = _rows(order, m, seen, TAKEN)
    x_rows = x + source[None, :] * x_stride
    blocks = tl.cdiv(inputs, _BLOCK)
    sums = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for block in range(blocks):
        at = expert.to(tl.int64) * blocks + block
        words = tl.load(codes + (at * outputs + n)[:, None] * _WORDS + j[None, :], mask=real[:, None], other=0)
        for group in tl.static_range(_BLOCK // GROUP):
            place = (at * (_BLOCK // GROUP) + group) * outputs + n
            scale = tl.load(scales + place, mask=real, other=0.0).to(tl.float32)[:, None]
            if HAS_OFFSETS:
                offset = tl.load(offsets + place, mask=real, other=0.0).to(tl.float32)[:, None]
            for i in tl.static_range(GROUP // _WORDS):
                nibble = group * (GROUP // _WORDS) + i
                k = block * _BLOCK + nibble * _WORDS + j
                xs = tl.load(x_rows + k[:, None], mask=(k[:, None] < inputs) & seen[None, :], other=0.0)
                w = centred(words, nibble, x.dtype.element_ty).to(tl.float32) * scale
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
