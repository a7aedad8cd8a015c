"""Linear layers with 8-bit weights and activations: INT8 and FP8 E4M3, scales per channel or per block.

Activations are quantised dynamically, with one scale per row, or per row and 128 inputs. Symmetric: scale =
max|x| / 127 or / 448, so that the largest number keeps its full precision; zeros get a scale of 0.

The codes are multiplied by 8-bit matrix instructions; row and channel scales are applied once, to the sums. With block
scales, the sum of every 128 inputs is scaled before it is added. Hopper's FP8 instructions for more than 16 rows keep
about 13 bits of a sum: at most 128 inputs meet in one before it is added in float32. The second half of split-K, which
`int4_linear` uses too, adds the programs' partial sums in a fixed order.
"""

import torch
import triton
import triton.language as tl

from inference_core.triton_kernels.weights import SCALE_BLOCK, ScaledTile, choose_scaled_tile, largest

_SUM_COLUMNS = 128


@triton.jit
def add_splits_kernel(
    partial,
    bias,
    out,
    splits,
    rows,
    outputs,
    out_stride,
    HAS_BIAS: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row's BLOCK columns."""
    row = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = n < outputs
    sums = tl.zeros((BLOCK,), tl.float32)
    for split in range(splits):
        sums += tl.load(partial + (split * rows + row) * outputs + n, mask=real, other=0.0)
    if HAS_BIAS:
        sums += tl.load(bias + n, mask=real, other=0.0).to(tl.float32)
    pointers = out + row * out_stride + n
    if ACCUMULATE:
        sums += tl.load(pointers, mask=real, other=0.0).to(tl.float32)
    tl.store(pointers, sums.to(out.dtype.element_ty), mask=real)


def add_splits(partial: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor, accumulate: bool) -> None:
    """Write (or add) the sum of partial float32 [splits, M, N] over its splits, plus bias [N], to out [M, N]."""
    splits, rows, outputs = partial.shape
    add_splits_kernel[(rows, triton.cdiv(outputs, _SUM_COLUMNS))](
        *(partial, bias, out, splits, rows, outputs, out.stride(0)),
        HAS_BIAS=bias is not None,
        ACCUMULATE=accumulate,
        BLOCK=_SUM_COLUMNS,
        num_warps=1,
    )


# 1.5 * 2**23: adding it to a smaller float32 rounds that to the nearest integer, ties to even.
_ROUNDING = tl.constexpr(12582912.0)
_COLUMNS = 1024
_ROWS = 8


@triton.jit
def nearest_codes(values, LARGEST: tl.constexpr, DTYPE: tl.constexpr):
    """Round numbers to the nearest codes; rounding of products may have lifted one above LARGEST, which E4M3 lacks."""
    clipped = tl.minimum(tl.maximum(values, -LARGEST), LARGEST)
    if tl.int8 == DTYPE:
        return ((clipped + _ROUNDING) - _ROUNDING).to(tl.int8)
    else:
        return clipped.to(DTYPE)


@triton.jit
def quantize_rows_kernel(x, codes, scales, inputs, x_stride, LARGEST: tl.constexpr, BLOCK: tl.constexpr):
    """One row, read twice: to find its largest number, and to round it."""
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK)
    peaks = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, inputs, BLOCK):
        values = tl.load(x + row * x_stride + first + k, mask=first + k < inputs, other=0.0).to(tl.float32)
        peaks = tl.maximum(peaks, tl.abs(values))
    peak = tl.max(peaks, axis=0)
    inverse = tl.where(peak > 0, LARGEST / peak, 0.0)
    tl.store(scales + row, peak / LARGEST)
    for first in range(0, inputs, BLOCK):
        values = tl.load(x + row * x_stride + first + k, mask=first + k < inputs, other=0.0).to(tl.float32)
        rounded = nearest_codes(values * inverse, LARGEST, codes.dtype.element_ty)
        tl.store(codes + row * inputs + first + k, rounded, mask=first + k < inputs)


@triton.jit
def quantize_groups_kernel(
    x, codes, scales, rows, inputs, x_stride, LARGEST: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr
):
    """ROWS rows of one group of inputs."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    group = tl.program_id(1)
    k = group * GROUP + tl.arange(0, GROUP)
    real = (row[:, None] < rows) & (k[None, :] < inputs)
    values = tl.load(x + row[:, None] * x_stride + k[None, :], mask=real, other=0.0).to(tl.float32)
    peak = tl.max(tl.abs(values), axis=1)
    inverse = tl.where(peak > 0, LARGEST / peak, 0.0)
    tl.store(scales + tl.cast(group, tl.int64) * rows + row, peak / LARGEST, mask=row < rows)
    rounded = nearest_codes(values * inverse[:, None], LARGEST, codes.dtype.element_ty)
    tl.store(codes + row[:, None] * inputs + k[None, :], rounded, mask=real)


def quantize_rows(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise x [M, K] (unit stride along rows) to codes [M, K], int8 or float8_e4m3fn, and scales float32 [M]."""
    rows, inputs = x.shape
    codes = torch.empty(rows, inputs, dtype=dtype, device=x.device)
    scales = torch.empty(rows, dtype=torch.float32, device=x.device)
    if rows:
        quantize_rows_kernel[(rows,)](
            *(x, codes, scales, inputs, x.stride(0)), LARGEST=largest(dtype), BLOCK=_COLUMNS, num_warps=4
        )
    return codes, scales


def quantize_groups(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise x [M, K] to codes [M, K] and scales float32 [M, ceil(K / 128)], whose columns are contiguous."""
    rows, inputs = x.shape
    groups = triton.cdiv(inputs, SCALE_BLOCK)
    codes = torch.empty(rows, inputs, dtype=dtype, device=x.device)
    scales = torch.empty(groups, rows, dtype=torch.float32, device=x.device)
    if rows:
        quantize_groups_kernel[(triton.cdiv(rows, _ROWS), groups)](
            *(x, codes, scales, rows, inputs, x.stride(0)),
            LARGEST=largest(dtype),
            GROUP=SCALE_BLOCK,
            ROWS=_ROWS,
            num_warps=4,
        )
    return codes, scales.T


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
        pointers = out + m[:, None].to(tl.int64) * out_stride + n[None, :]
        if ACCUMULATE:
            result += tl.load(pointers, mask=inside, other=0.0).to(tl.float32)
        tl.store(pointers, result.to(out.dtype.element_ty), mask=inside)


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
