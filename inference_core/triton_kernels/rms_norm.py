"""RMSNorm (Zhang and Sennrich 2019), alone and fused with the addition to the residual stream before it."""

import torch
import triton
import triton.language as tl

from inference_core.triton_kernels.attention.attention_tiles import padded


@triton.jit
def rms_norm_kernel(
    x,
    residual,
    weight,
    out,
    x_stride,
    residual_stride,
    out_stride,
    eps,
    WIDTH: tl.constexpr,
    PAD: tl.constexpr,
    ADD: tl.constexpr,
):
    """Programs: rows. ADD: x goes to the residual, as the activation dtype holds it, and the sum is normalised."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, PAD)
    inside = columns < WIDTH
    numbers = tl.load(x + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        at = residual + row * residual_stride + columns
        stream = (numbers + tl.load(at, mask=inside, other=0.0).to(tl.float32)).to(residual.dtype.element_ty)
        tl.store(at, stream, mask=inside)
        numbers = stream.to(tl.float32)
    inverse = 1.0 / tl.sqrt(tl.sum(numbers * numbers, 0) / WIDTH + eps)
    scaled = numbers * inverse * tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + columns, scaled.to(out.dtype.element_ty), mask=inside)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor) -> None:
    """out[T, D] = x / sqrt(mean(x^2) + eps) * weight, in float32 within.

    `x` and `out` float32, float16 or bfloat16 with contiguous rows; `out` may be `x`. `weight` [D] of any of them.
    """
    _launch(x, x, weight, eps, out, add=False)


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor) -> None:
    """residual[T, D] += x, then out[T, D] = `rms_norm` of it, reading each number once (SPEC AT-05).

    Dtypes as for `rms_norm`; `out` may be `x`. The sum is rounded to the residual's dtype before it is normalised.
    """
    _launch(x, residual, weight, eps, out, add=True)


def _launch(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor, *, add: bool
) -> None:
    rows, width = x.shape
    if not rows:
        return
    pad = padded(width)
    rms_norm_kernel[(rows,)](
        x,
        residual,
        weight,
        out,
        x.stride(0),
        residual.stride(0),
        out.stride(0),
        eps,
        WIDTH=width,
        PAD=pad,
        ADD=add,
        num_warps=min(16, max(1, pad // 512)),
        num_stages=1,
    )
