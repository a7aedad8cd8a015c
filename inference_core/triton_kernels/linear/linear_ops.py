"""The quantised linear layers as torch custom ops `aio::*`: plain torch on the CPU, Triton on CUDA (SPEC AT-07).

They write or add to `out`, so that a runner's buffers stay where a CUDA graph knows them. Importing this module
registers them, without triton.
"""

import torch

from inference_core.triton_kernels.linear import linear_reference
from inference_core.triton_kernels.linear.eight_bit import EightBitWeight
from inference_core.triton_kernels.linear.int4_weight import Int4Weight
from inference_core.triton_kernels.registration import register


def int4_linear(
    x: torch.Tensor, weight: Int4Weight, bias: torch.Tensor | None, out: torch.Tensor, *, accumulate: bool = False
) -> None:
    """Write (or add) x W^T + bias to out: x [M, K], out [M, N] float16 or bfloat16, bias [N]."""
    torch.ops.aio.int4_linear(out, x, weight.codes, weight.scales, weight.offsets, bias, accumulate)


def eight_bit_linear(
    x: torch.Tensor, weight: EightBitWeight, bias: torch.Tensor | None, out: torch.Tensor, *, accumulate: bool = False
) -> None:
    """Quantise x [M, K] as it comes, and write (or add) its product with W^T plus bias [N] to out [M, N]."""
    torch.ops.aio.eight_bit_linear(out, x, weight.codes, weight.scales, bias, accumulate)


def _int4_linear_cuda(
    out: torch.Tensor,
    x: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    offsets: torch.Tensor | None,
    bias: torch.Tensor | None,
    accumulate: bool,
) -> None:
    from inference_core.triton_kernels.linear.int4_linear import int4_linear as launch

    launch(x, codes, scales, offsets, bias, out, accumulate=accumulate)


def _eight_bit_linear_cuda(
    out: torch.Tensor,
    x: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None,
    accumulate: bool,
) -> None:
    from inference_core.triton_kernels.linear.row_quantization import quantize_groups, quantize_rows
    from inference_core.triton_kernels.linear.scaled_linear import scaled_linear

    quantize = quantize_groups if scales.dim() == 2 else quantize_rows
    x_codes, x_scales = quantize(x, codes.dtype)
    scaled_linear(x_codes, x_scales, codes, scales, bias, out, accumulate=accumulate)


register(
    "int4_linear(Tensor(a!) out, Tensor x, Tensor codes, Tensor scales, Tensor? offsets, Tensor? bias, "
    "bool accumulate) -> ()",
    cpu=lambda out, x, codes, scales, offsets, bias, accumulate: linear_reference.int4_linear(
        x, codes, scales, offsets, bias, out, accumulate=accumulate
    ),
    cuda=_int4_linear_cuda,
)
register(
    "eight_bit_linear(Tensor(a!) out, Tensor x, Tensor codes, Tensor scales, Tensor? bias, bool accumulate) -> ()",
    cpu=lambda out, x, codes, scales, bias, accumulate: linear_reference.eight_bit_linear(
        x, codes, scales, bias, out, accumulate=accumulate
    ),
    cuda=_eight_bit_linear_cuda,
)
