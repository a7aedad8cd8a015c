"""Plain torch for the quantised linear layers: the oracle of the CUDA kernels, and what runs where there is no CUDA."""

import torch

from inference_core.triton_kernels.eight_bit import SCALE_BLOCK, rounded, spread_blocks
from inference_core.triton_kernels.int4_weight import BLOCK, NIBBLES, group_size


def dequantized_int4(
    codes: torch.Tensor, scales: torch.Tensor, offsets: torch.Tensor | None, inputs: int
) -> torch.Tensor:
    """float32 [N, inputs] of the arrays of an `Int4Weight`."""
    shifts = 4 * torch.arange(NIBBLES, dtype=torch.int32, device=codes.device)
    # [blocks, N, words] -> [blocks, N, nibbles, words] -> [N, K]
    nibbles = (codes[:, :, None, :] >> shifts[:, None]) & 0xF
    centred = nibbles.permute(1, 0, 2, 3).reshape(codes.shape[1], codes.shape[0] * BLOCK).float() - 8
    group = group_size(codes, scales)
    weight = centred * scales.float().T.repeat_interleave(group, dim=1)
    if offsets is not None:
        weight = weight + offsets.float().T.repeat_interleave(group, dim=1)
    return weight[:, :inputs]


def int4_linear(
    x: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    offsets: torch.Tensor | None,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    *,
    accumulate: bool = False,
) -> None:
    """Write (or add) x W^T + bias to out, computed in float32."""
    weight = dequantized_int4(codes, scales, offsets, x.shape[1])
    _finish(x.float() @ weight.T, bias, out, accumulate)


def quantize_rows(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [M, K] and scales float32 [M] of x [M, K]."""
    values = x.float()
    return rounded(values, values.abs().amax(dim=1, keepdim=True), dtype)


def quantize_groups(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [M, K] and scales float32 [M, ceil(K / 128)] of x [M, K]."""
    rows, inputs = x.shape
    groups = torch.nn.functional.pad(x.float(), (0, -inputs % SCALE_BLOCK)).reshape(rows, -1, SCALE_BLOCK)
    codes, scales = rounded(groups, groups.abs().amax(dim=2, keepdim=True), dtype)
    return codes.reshape(rows, -1)[:, :inputs].contiguous(), scales


def eight_bit_linear(
    x: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    *,
    accumulate: bool = False,
) -> None:
    """Quantise x, multiply by the codes of an `EightBitWeight`, and write (or add) the result plus bias to out."""
    seen, weight = dequantized_operands(x, codes, scales)
    _finish(seen @ weight.T, bias, out, accumulate)


def dequantized_operands(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """x [M, K] as its codes stand for it, and the weight [N, K], both float32."""
    outputs, inputs = codes.shape
    if scales.dim() == 1:
        x_codes, x_scales = quantize_rows(x, codes.dtype)
        return x_codes.float() * x_scales[:, None], codes.float() * scales[:, None]
    x_codes, x_scales = quantize_groups(x, codes.dtype)
    wide = x_scales.repeat_interleave(SCALE_BLOCK, dim=1)[:, :inputs]
    return x_codes.float() * wide, codes.float() * spread_blocks(scales, outputs, inputs)


def _finish(product: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor, accumulate: bool) -> None:
    if bias is not None:
        product = product + bias.float()
    out.copy_(out.float() + product if accumulate else product)
