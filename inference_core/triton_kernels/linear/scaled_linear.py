"""Linear layers with 8-bit weights and activations: INT8 and FP8 E4M3, scales per channel or per block.

The codes are multiplied by 8-bit matrix instructions; row and channel scales are applied once, to the sums. With block
scales, the sum of every 128 inputs is scaled before it is added. Hopper's FP8 instructions for more than 16 rows keep
about 13 bits of a sum: at most 128 inputs meet in one before it is added in float32.
"""

import torch
import triton
import triton.language as tl

from inference_core.triton_kernels.linear.eight_bit import SCALE_BLOCK
from inference_core.triton_kernels.linear.linear_tiles import ScaledTile, choose_scaled_tile
from inference_core.triton_kernels.linear.split_sums import add_splits

# From this many rows on, torch's product of FP8 is faster on Hopper than the kernel below.
_TORCH_ROWS = 65


@triton.jit
def scaled_gemm_kernel(
    x,
    weight,
    x_scales,
    weight_scales,
    bias,
    out,
    partial,
    rows,
    outputs,
    inputs,
    groups,
    out_stride,
    steps_per_split,
    BLOCKWISE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """One tile of BLOCK_M rows by BLOCK_N outputs over a run of inputs, written to `out`, or if SPLIT to `partial`."""
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(2)
    row_seen, column_seen = m < rows, n < outputs
    x_rows = x + m[:, None].to(tl.int64) * inputs
    weight_rows = weight + n[None, :].to(tl.int64) * inputs
    IS_INT: tl.constexpr = x.dtype.element_ty == tl.int8
    SUM: tl.constexpr = tl.int32 if IS_INT else tl.float32
    sums = tl.zeros((BLOCK_M, BLOCK_N), SUM)
    first = split * steps_per_split
    end = tl.minimum(first + steps_per_split, tl.cdiv(inputs, BLOCK_K))
    for step in range(first, end):
        k = step * BLOCK_K + tl.arange(0, BLOCK_K)
        a = tl.load(x_rows + k[None, :], mask=row_seen[:, None] & (k[None, :] < inputs), other=0.0)
        b = tl.load(weight_rows + k[:, None], mask=column_seen[None, :] & (k[:, None] < inputs), other=0.0)
        if BLOCKWISE:
            row_scale = tl.load(x_scales + tl.cast(step, tl.int64) * rows + m, mask=row_seen, other=0.0)
            column_scale = tl.load(weight_scales + n // BLOCK_K * groups + step, mask=column_seen, other=0.0)
            sums += tl.dot(a, b) * row_scale[:, None] * column_scale[None, :]
        elif IS_INT:
            sums = tl.dot(a, b, sums, out_dtype=tl.int32)
        else:
            sums = tl.dot(a, b, sums, max_num_imprecise_acc=BLOCK_K)
    inside = row_seen[:, None] & column_seen[None, :]
    result = sums.to(tl.float32)
    if not BLOCKWISE:
        result *= tl.load(x_scales + m, mask=row_seen, other=0.0)[:, None]
        result *= tl.load(weight_scales + n, mask=column_seen, other=0.0)[None, :]
    if SPLIT:
        tl.store(partial + (split.to(tl.int64) * rows + m[:, None]) * outputs + n[None, :], result, mask=inside)
    else:
        if HAS_BIAS:
            result += tl.load(bias + n, mask=column_seen, other=0.0).to(tl.float32)[None, :]
        place = out + m[:, None].to(tl.int64) * out_stride + n[None, :]
        if ACCUMULATE:
            result += tl.load(place, mask=inside, other=0.0).to(tl.float32)
        tl.store(place, result.to(out.dtype.element_ty), mask=inside)


def scaled_linear(
    codes: torch.Tensor,
    x_scales: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    *,
    accumulate: bool = False,
    tile: ScaledTile | None = None,
) -> None:
    """Write (or add) (codes * x_scales) (weight * weight_scales)^T + bias to out [M, N], unit stride along its rows.

    codes [M, K] and weight [N, K], both contiguous and int8 or float8_e4m3fn. x_scales [M] with weight_scales [N], or
    x_scales [M, ceil(K / 128)], columns contiguous, with weight_scales [ceil(N / 128), ceil(K / 128)]. Without a
    `tile`, many rows of FP8 are multiplied by torch, where it has a kernel for them.
    """
    rows, inputs = codes.shape
    if rows == 0:
        return
    outputs, blockwise = weight.shape[0], weight_scales.dim() == 2
    if tile is None and not accumulate and _torch_multiplies(codes, out, blockwise=blockwise):
        b = None if bias is None else bias.to(out.dtype)
        scales = (x_scales, weight_scales.T) if blockwise else (x_scales[:, None], weight_scales[None, :])
        torch._scaled_mm(codes, weight.T, *scales, bias=b, out_dtype=out.dtype, out=out)
        return
    tile = tile or choose_scaled_tile(rows, outputs, inputs, blockwise=blockwise)
    if blockwise and tile.inputs != SCALE_BLOCK:
        raise ValueError(f"block scales need steps of {SCALE_BLOCK} inputs; the tile given has {tile.inputs}")
    steps = triton.cdiv(inputs, tile.inputs)
    per_split = triton.cdiv(steps, tile.splits)
    splits = triton.cdiv(steps, per_split)
    split = splits > 1
    partial = torch.empty(splits, rows, outputs, dtype=torch.float32, device=out.device) if split else None
    scaled_gemm_kernel[(triton.cdiv(outputs, tile.outputs), triton.cdiv(rows, tile.rows), splits)](
        *(codes, weight, x_scales, weight_scales, bias, out, partial, rows, outputs, inputs),
        *(triton.cdiv(inputs, SCALE_BLOCK), out.stride(0), per_split),
        BLOCKWISE=blockwise,
        HAS_BIAS=bias is not None,
        ACCUMULATE=accumulate,
        SPLIT=split,
        BLOCK_M=tile.rows,
        BLOCK_N=tile.outputs,
        BLOCK_K=tile.inputs,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    if partial is not None:
        add_splits(partial, bias, out, accumulate)


def _torch_multiplies(codes: torch.Tensor, out: torch.Tensor, *, blockwise: bool) -> bool:
    """Whether torch has a kernel for these operands that was measured to be faster. It keeps as many bits of sums."""
    (rows, inputs), outputs = codes.shape, out.shape[1]
    multiples = (4, 4 * SCALE_BLOCK, SCALE_BLOCK) if blockwise else (1, 16, 16)
    return (
        rows >= _TORCH_ROWS
        and codes.dtype == torch.float8_e4m3fn
        and out.dtype == torch.bfloat16
        and out.is_contiguous()
        and not any(size % multiple for size, multiple in zip((rows, inputs, outputs), multiples, strict=True))
        and codes.is_cuda
        and torch.cuda.get_device_capability(codes.device) == (9, 0)
    )
