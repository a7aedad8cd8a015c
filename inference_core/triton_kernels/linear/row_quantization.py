"""Dynamic quantisation of activations to INT8 or FP8 E4M3: one scale per row, or per row and 128 inputs.

Symmetric: scale = max|x| / 127 or / 448, so that the largest number keeps its full precision; zeros get a scale of 0.
"""

import torch
import triton
import triton.language as tl

from inference_core.triton_kernels.linear.eight_bit import SCALE_BLOCK, largest

# 1.5 * 2**23: adding it to a smaller float32 rounds that to the nearest integer, ties to even.
_ROUNDING = tl.constexpr(12582912.0)
_COLUMNS = 1024
_ROWS = 8


@triton.jit
def _rounded(values, DTYPE: tl.constexpr):
    """Round numbers within the range of DTYPE to the nearest code."""
    if tl.int8 == DTYPE:
        return ((values + _ROUNDING) - _ROUNDING).to(tl.int8)
    else:
        return values.to(DTYPE)


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
        # Rounding may lift the product above LARGEST, which E4M3 cannot represent.
        scaled = tl.minimum(tl.maximum(values * inverse, -LARGEST), LARGEST)
        tl.store(codes + row * inputs + first + k, _rounded(scaled, codes.dtype.element_ty), mask=first + k < inputs)


@triton.jit
def quantize_groups_kernel(
    x,
    codes,
    scales,
    rows,
    inputs,
    x_stride,
    LARGEST: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
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
    scaled = tl.minimum(tl.maximum(values * inverse[:, None], -LARGEST), LARGEST)
    tl.store(codes + row[:, None] * inputs + k[None, :], _rounded(scaled, codes.dtype.element_ty), mask=real)


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
