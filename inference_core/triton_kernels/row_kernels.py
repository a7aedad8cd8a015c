"""Kernels over rows of activations: RMSNorm and the gated activations of the feed-forward layers.

RMSNorm (Zhang and Sennrich 2019), alone and fused with the preceding addition to the residual stream; SwiGLU, and
GEGLU with the approximation by tanh (Shazeer 2020).

Each can also write what a linear layer with 8-bit weights reads. If `scales` float32 [T] is given, `out` is int8 or
float8_e4m3fn and contiguous, and both get what `quantize_rows` makes of the activations, which are not stored.
"""

import torch
import triton
import triton.language as tl

from inference_core.triton_kernels.scaled_linear import nearest_codes
from inference_core.triton_kernels.tiles import padded
from inference_core.triton_kernels.weights import largest


@triton.jit
def _store(values, out, scales, row, out_stride, columns, inside, DTYPE: tl.constexpr, LARGEST: tl.constexpr):
    """Write a row or, without scales, a piece of one. Activations are of DTYPE before they become codes."""
    at = out + row * out_stride + columns
    if scales is None:
        tl.store(at, values.to(out.dtype.element_ty), mask=inside)
    else:
        values = values.to(DTYPE).to(tl.float32)
        peak = tl.max(tl.abs(values), 0)
        tl.store(scales + row, peak / LARGEST)
        inverse = tl.where(peak > 0, LARGEST / peak, 0.0)
        tl.store(at, nearest_codes(values * inverse, LARGEST, out.dtype.element_ty), mask=inside)


@triton.jit
def rms_norm_kernel(
    x,
    residual,
    weight,
    out,
    scales,
    x_stride,
    residual_stride,
    out_stride,
    eps,
    WIDTH: tl.constexpr,
    PAD: tl.constexpr,
    ADD: tl.constexpr,
    LARGEST: tl.constexpr,
):
    """Programs: rows. ADD: x is added to the residual, in the activations' dtype, and the sum is normalised."""
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
    _store(scaled, out, scales, row, out_stride, columns, inside, x.dtype.element_ty, LARGEST)


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor, scales: torch.Tensor | None = None
) -> None:
    """out[T, D] = x / sqrt(mean(x^2) + eps) * weight, computed in float32.

    `x` and `out` float32, float16 or bfloat16 with contiguous rows; `out` may be `x`. `weight` [D] of any of them.
    """
    _launch(x, x, weight, eps, out, scales, add=False)


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor,
    scales: torch.Tensor | None = None,
) -> None:
    """residual[T, D] += x, then out[T, D] = `rms_norm` of it, reading each number once (SPEC AT-05).

    Dtypes as for `rms_norm`; `out` may be `x`. The sum is rounded to the residual's dtype before it is normalised.
    """
    _launch(x, residual, weight, eps, out, scales, add=True)


def _launch(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor,
    scales: torch.Tensor | None,
    *,
    add: bool,
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
        scales,
        x.stride(0),
        residual.stride(0),
        out.stride(0),
        eps,
        WIDTH=width,
        PAD=pad,
        ADD=add,
        LARGEST=_largest(out, scales),
        num_warps=min(16, max(1, pad // 512)),
        num_stages=1,
    )


def _largest(out: torch.Tensor, scales: torch.Tensor | None) -> float:
    return 0.0 if scales is None else largest(out.dtype)


_COLUMNS = 1024


@triton.jit
def swiglu_kernel(
    gate_up,
    out,
    scales,
    gate_up_stride,
    out_stride,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    GELU: tl.constexpr,
    LARGEST: tl.constexpr,
):
    """Programs: rows x pieces of COLUMNS columns."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < WIDTH
    at = gate_up + row * gate_up_stride + columns
    gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(at + WIDTH, mask=inside, other=0.0).to(tl.float32)
    if GELU:
        # 0.5 (1 + tanh(z)) is the logistic function of 2 z, with z = sqrt(2 / pi) (x + 0.044715 x^3).
        inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
        activated = gate / (1.0 + tl.exp(-inner)) * up
    else:
        activated = gate / (1.0 + tl.exp(-gate)) * up
    _store(activated, out, scales, row, out_stride, columns, inside, gate_up.dtype.element_ty, LARGEST)


def swiglu(gate_up: torch.Tensor, out: torch.Tensor, scales: torch.Tensor | None = None) -> None:
    """out[T, I] = silu(gate) * up for gate_up [T, 2 I], in float32 within (SPEC AT-05).

    Both float32, float16 or bfloat16 with contiguous rows. With `scales` I is at most `MOST_QUANTIZED_INPUTS`.
    """
    _launch_gated(gate_up, out, scales, gelu=False)


def geglu(gate_up: torch.Tensor, out: torch.Tensor, scales: torch.Tensor | None = None) -> None:
    """out[T, I] = gelu(gate) * up for gate_up [T, 2 I], with gelu by tanh; the rest as for `swiglu`."""
    _launch_gated(gate_up, out, scales, gelu=True)


def _launch_gated(gate_up: torch.Tensor, out: torch.Tensor, scales: torch.Tensor | None, *, gelu: bool) -> None:
    rows, width = out.shape
    if not rows:
        return
    # The largest of a row is known to a program that has the whole of it.
    columns = _COLUMNS if scales is None else padded(width)
    swiglu_kernel[(rows, triton.cdiv(width, columns))](
        gate_up,
        out,
        scales,
        gate_up.stride(0),
        out.stride(0),
        WIDTH=width,
        COLUMNS=columns,
        GELU=gelu,
        LARGEST=_largest(out, scales),
        num_warps=4 if scales is None else min(32, max(1, columns // 512)),
        num_stages=1,
    )
