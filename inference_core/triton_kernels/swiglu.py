"""The gated activations of the feed-forward layers: SwiGLU, and GEGLU with the approximation by tanh (Shazeer 2020)."""

import torch
import triton
import triton.language as tl

_COLUMNS = 1024


@triton.jit
def swiglu_kernel(
    gate_up, out, gate_up_stride, out_stride, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, GELU: tl.constexpr
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
    tl.store(out + row * out_stride + columns, activated.to(out.dtype.element_ty), mask=inside)


def swiglu(gate_up: torch.Tensor, out: torch.Tensor) -> None:
    """out[T, I] = silu(gate) * up for gate_up [T, 2 I], in float32 within (SPEC AT-05).

    Both float32, float16 or bfloat16 with contiguous rows.
    """
    _launch(gate_up, out, gelu=False)


def geglu(gate_up: torch.Tensor, out: torch.Tensor) -> None:
    """out[T, I] = gelu(gate) * up for gate_up [T, 2 I], with gelu by tanh; dtypes as for `swiglu`."""
    _launch(gate_up, out, gelu=True)


def _launch(gate_up: torch.Tensor, out: torch.Tensor, *, gelu: bool) -> None:
    rows, width = out.shape
    if not rows:
        return
    swiglu_kernel[(rows, triton.cdiv(width, _COLUMNS))](
        gate_up,
        out,
        gate_up.stride(0),
        out.stride(0),
        WIDTH=width,
        COLUMNS=_COLUMNS,
        GELU=gelu,
        num_warps=4,
        num_stages=1,
    )
