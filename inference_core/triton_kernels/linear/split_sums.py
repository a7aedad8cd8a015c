"""The second half of split-K: adds what several programs summed over their share of the inputs, in a fixed order."""

import torch
import triton
import triton.language as tl

_COLUMNS = 128


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
    place = out + row * out_stride + n
    if ACCUMULATE:
        sums += tl.load(place, mask=real, other=0.0).to(tl.float32)
    tl.store(place, sums.to(out.dtype.element_ty), mask=real)


def add_splits(partial: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor, accumulate: bool) -> None:
    """Write (or add) the sum of partial float32 [splits, M, N] over its splits, plus bias [N], to out [M, N]."""
    splits, rows, outputs = partial.shape
    add_splits_kernel[(rows, triton.cdiv(outputs, _COLUMNS))](
        *(partial, bias, out, splits, rows, outputs, out.stride(0)),
        HAS_BIAS=bias is not None,
        ACCUMULATE=accumulate,
        BLOCK=_COLUMNS,
        num_warps=1,
    )
