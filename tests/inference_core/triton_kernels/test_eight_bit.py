"""Quantising weights to 8 bits: errors within half a step, scales where they belong, other shapes refused."""

import pytest
import torch

from inference_core.triton_kernels.reference import eight_bit_linear
from inference_core.triton_kernels.weights import (
    EightBitWeight,
    quantize_blocks,
    quantize_channels,
    spread_blocks,
)

E4M3 = torch.float8_e4m3fn


def random_weight(outputs: int, inputs: int) -> torch.Tensor:
    return torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(1)) * 0.05


def test_int8_codes_are_within_half_a_step_of_their_channel() -> None:
    weight = random_weight(20, 100)
    packed = quantize_channels(weight, torch.int8)
    error = (packed.codes.float() * packed.scales[:, None] - weight).abs()
    assert (error <= packed.scales[:, None] * 0.5001).all()
    assert (packed.codes.abs().amax(dim=1) == 127).all()


@pytest.mark.parametrize("blocks", [False, True])
def test_fp8_codes_are_within_their_relative_step(blocks: bool) -> None:
    weight = random_weight(200, 300)
    packed = quantize_blocks(weight) if blocks else quantize_channels(weight, E4M3)
    scales = spread_blocks(packed.scales, 200, 300) if blocks else packed.scales[:, None]
    # Three bits of mantissa; below 2**-6 steps of 2**-9.
    bound = 2.0**-4 * weight.abs() * 1.001 + scales * 2.0**-10
    assert ((packed.codes.float() * scales - weight).abs() <= bound).all()


def test_a_block_scale_follows_its_own_block_alone() -> None:
    weight = torch.ones(256, 256)
    weight[128:, :128] = 100
    assert torch.equal(quantize_blocks(weight).scales * 448, torch.tensor([[1.0, 1.0], [100.0, 1.0]]))


def test_a_channel_of_zeros_stays_zero() -> None:
    weight = random_weight(4, 64)
    weight[2] = 0
    out = torch.empty(3, 4)
    packed = quantize_channels(weight, torch.int8)
    eight_bit_linear(torch.randn(3, 64), packed.codes, packed.scales, None, out)
    assert (out[:, 2] == 0).all()


@pytest.mark.parametrize("scheme", ["int8", "fp8", "fp8 blocks"])
def test_a_quantised_layer_stays_close_to_the_layer_it_was(scheme: str) -> None:
    """Cosine of the outputs at least 0.99 (SPEC QZ-09)."""
    weight, x = random_weight(256, 512), torch.randn(32, 512, generator=torch.Generator().manual_seed(2))
    packed = (
        quantize_blocks(weight)
        if scheme == "fp8 blocks"
        else quantize_channels(weight, torch.int8 if scheme == "int8" else E4M3)
    )
    out = torch.empty(32, 256)
    eight_bit_linear(x, packed.codes, packed.scales, None, out)
    assert torch.cosine_similarity(out, x @ weight.T, dim=1).min() > 0.99


def test_scales_of_another_shape_are_refused_with_the_possible_ones() -> None:
    codes = torch.zeros(256, 300, dtype=E4M3)
    with pytest.raises(ValueError, match=r"allowed are \(256,\) and \(2, 3\)"):
        EightBitWeight(codes, torch.ones(2, 2))
    with pytest.raises(ValueError, match=r"allowed are \(256,\)$"):
        EightBitWeight(codes.to(torch.int8), torch.ones(2, 3))


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"cannot quantise to torch\.int16"):
        quantize_channels(random_weight(2, 2), torch.int16)
