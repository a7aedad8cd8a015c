"""Plain torch for the quantised linear layers: the oracle of the CUDA kernels, and what runs where there is no CUDA."""

import torch

from inference_core.triton_kernels.linear.eight_bit import SCALE_BLOCK, rounded, spread_blocks
from inference_core.triton_kernels.linear.int4_weight import BLOCK, NIBBLES, group_size


def dequantized_int4(
    codes: torch.Tensor, scales: torch.Tensor, offsets: torch.Tensor | None, inputs: int
) -> torch.Tensor:
    """float32 [N, inputs] of the arrays of an `Int4Weight`."""
    blocks, outputs, words = codes.shape
    packed = codes.contiguous().view(torch.uint8).view(blocks, outputs, words, 4).transpose(0, 1)
    weight = torch.empty(outputs, blocks, NIBBLES, words, device=codes.device)
    for i in range(NIBBLES):
        byte = packed[..., i // 2]
        weight[:, :, i] = byte >> 4 if i % 2 else byte & 0xF
    # In place: where there is no CUDA, whole models are served through this.
    groups = weight.view(outputs, -1, group_size(codes, scales))
    groups.sub_(8).mul_(scales.float().T[:, :, None])
    if offsets is not None:
        groups.add_(offsets.float().T[:, :, None])
    return weight.view(outputs, blocks * BLOCK)[:, :inputs]


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
