"""INT8 and FP8 layers equal the float32 product of what their codes stand for (SPEC QZ-03, QZ-04, QZ-06, AT-06)."""

import pytest
import torch

from inference_core.triton_kernels import reference as linear_reference
from inference_core.triton_kernels.scaled_linear import quantize_groups, quantize_rows, scaled_linear
from inference_core.triton_kernels.weights import (
    EightBitWeight,
    ScaledTile,
    quantize_blocks,
    quantize_channels,
)
from tests.inference_core.triton_kernels.conftest import INTERPRETED

SENTINEL = 7.0
# Of the sum of magnitudes. Hopper's FP8 instructions for many rows keep 13 bits of the sum of 128 products.
FLOAT32_SUMS, HOPPER_FP8_SUMS = 2.0**-18, 2.0**-11
E4M3 = torch.float8_e4m3fn
HALF_ULP = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
SCHEMES = {
    "int8": lambda weight: quantize_channels(weight, torch.int8),
    "fp8 channels": lambda weight: quantize_channels(weight, E4M3),
    "fp8 blocks": quantize_blocks,
}


def weight_of(scheme: str, outputs: int, inputs: int) -> EightBitWeight:
    generator = torch.Generator().manual_seed(outputs)
    # Rows and columns of different sizes, so that a scale in the wrong place shows.
    sizes = torch.rand(outputs, 1, generator=generator) * torch.rand(1, inputs, generator=generator) * 0.2
    return SCHEMES[scheme](torch.randn(outputs, inputs, generator=generator) * sizes)


def check(
    weight: EightBitWeight,
    rows: int,
    device: torch.device,
    *,
    tile: ScaledTile | None = None,
    bias: bool = False,
    accumulate: bool = False,
    dtype: torch.dtype = torch.float16,
    padded: bool = True,
) -> None:
    """`padded`: the result is a part of a larger matrix, the rest of which must not change."""
    outputs, inputs = weight.codes.shape
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, inputs, generator=generator) * torch.rand(rows, 1, generator=generator) * 3
    quantize = linear_reference.quantize_groups if weight.blockwise else linear_reference.quantize_rows
    codes, scales = quantize(x, weight.codes.dtype)
    scales = scales.T.contiguous().T if weight.blockwise else scales
    b = torch.randn(outputs, generator=generator).to(dtype) if bias else None
    before = torch.randn(rows, outputs, generator=generator).to(dtype)
    wide = torch.full((rows + 1, outputs + (8 if padded else 0)), SENTINEL, dtype=dtype, device=device)
    out = wide[:rows, :outputs]
    out.copy_(before)

    operands = [codes, scales, weight.codes, weight.scales]
    scaled_linear(
        *(t.to(device) for t in operands), None if b is None else b.to(device), out, accumulate=accumulate, tile=tile
    )

    seen, dense = (t.double() for t in linear_reference.dequantized_operands(x, weight.codes, weight.scales))
    expected = seen @ dense.T + (0 if b is None else b.double()) + (before.double() if accumulate else 0)
    hopper = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9
    sums = HOPPER_FP8_SUMS if hopper and rows > 16 and codes.dtype == E4M3 else FLOAT32_SUMS
    bound = sums * (seen.abs() @ dense.abs().T) + HALF_ULP[dtype] * expected.abs() + 1e-6
    assert ((out.cpu().double() - expected).abs() <= bound).all()
    assert (wide[rows:] == SENTINEL).all()
    assert (wide[:, outputs:] == SENTINEL).all()


@pytest.mark.parametrize("rows", [1, 16, 17, 70])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_equals_the_reference(scheme: str, rows: int, device: torch.device) -> None:
    check(weight_of(scheme, 200, 384), rows, device)


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("rows", [65] if INTERPRETED else [64, 65, 68, 300])
@pytest.mark.parametrize(("scheme", "outputs", "inputs"), [("fp8 channels", 208, 384), ("fp8 blocks", 256, 1024)])
def test_many_rows_that_torch_may_multiply_equal_the_reference(
    scheme: str, outputs: int, inputs: int, rows: int, bias: bool, device: torch.device
) -> None:
    dtype = torch.float16 if INTERPRETED else torch.bfloat16  # the interpreter cuts bits of bfloat16 off
    check(weight_of(scheme, outputs, inputs), rows, device, dtype=dtype, bias=bias, padded=False)


@pytest.mark.parametrize("outputs", [1, 127, 129])
@pytest.mark.parametrize("inputs", [16, 200, 256])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_size_need_fill_a_tile(scheme: str, inputs: int, outputs: int, device: torch.device) -> None:
    check(weight_of(scheme, outputs, inputs), 5, device)


@pytest.mark.parametrize("accumulate", [False, True], ids=["written", "added"])
@pytest.mark.parametrize("splits", [1, 3, 8])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_sums_may_be_split_and_take_bias_and_residual(
    scheme: str, splits: int, accumulate: bool, device: torch.device
) -> None:
    tile = ScaledTile(16, 64, 128, warps=4, stages=2, splits=splits)
    check(weight_of(scheme, 70, 1024), 9, device, tile=tile, bias=True, accumulate=accumulate)


@pytest.mark.parametrize("scheme", ["int8", "fp8 channels"])
def test_tiles_of_more_outputs_than_rows_equal_the_reference(scheme: str, device: torch.device) -> None:
    tile = ScaledTile(64, 128, 128, warps=8, stages=4)
    check(weight_of(scheme, 200, 384), 70, device, tile=tile, bias=True)


def test_integer_sums_are_exact_where_float32_would_round(device: torch.device) -> None:
    inputs = 4096
    codes = torch.full((1, inputs), 127, dtype=torch.int8)
    codes[0, 0] = 126
    weight = torch.full((16, inputs), 127, dtype=torch.int8)
    out, one = torch.zeros(1, 16, device=device), torch.ones(16, device=device)
    scaled_linear(codes.to(device), one[:1], weight.to(device), one, None, out)
    assert (out == 127 * 127 * inputs - 127).all()


def test_block_scales_need_steps_of_their_own_size(device: torch.device) -> None:
    weight = weight_of("fp8 blocks", 128, 256)
    with pytest.raises(ValueError, match="steps of 128 inputs"):
        check(weight, 5, device, tile=ScaledTile(16, 64, 64, warps=4, stages=2))


def exact_in_e4m3(x: torch.Tensor) -> torch.Tensor:
    """Numbers that need no rounding: the interpreter rounds to E4M3 wrongly, devices have an instruction."""
    exact = (x.float() * 20).to(E4M3).half()
    exact[:, ::64] = torch.where(x[:, :1] == 0, 0, 448)
    return exact


def near(got: torch.Tensor, expected: torch.Tensor) -> bool:
    """Codes are those of the reference but for numbers between two of them, which may go either way."""
    if expected.dtype == torch.int8:
        return bool(((got.int() - expected.int()).abs() <= 1).all())
    got, expected = got.float(), expected.float()
    return bool(((got - expected).abs() <= 0.125 * expected.abs() + 2.0**-9).all())


@pytest.mark.parametrize("dtype", [torch.int8, E4M3], ids=["int8", "fp8"])
@pytest.mark.parametrize("inputs", [64, 200, 1500])
@pytest.mark.parametrize("by_group", [False, True], ids=["per row", "per group"])
def test_activations_are_rounded_as_the_reference_does(
    by_group: bool, inputs: int, dtype: torch.dtype, device: torch.device
) -> None:
    x = torch.randn(11, inputs + 8, generator=torch.Generator().manual_seed(inputs))[:, :inputs].half()
    x[3] = 0
    x[4, 1:] *= 1e-3
    if INTERPRETED and dtype == E4M3:
        x = exact_in_e4m3(x)
    launch, reference = (
        (quantize_groups, linear_reference.quantize_groups)
        if by_group
        else (quantize_rows, linear_reference.quantize_rows)
    )

    codes, scales = launch(x.to(device), dtype)

    expected_codes, expected_scales = reference(x, dtype)
    torch.testing.assert_close(scales.cpu(), expected_scales, rtol=2.0**-22, atol=0)
    assert near(codes.cpu(), expected_codes)
    assert (codes.cpu().float() == expected_codes.float()).float().mean() > 0.99


def test_integer_ties_are_rounded_to_even(device: torch.device) -> None:
    x = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 3.4]], device=device)
    codes, _ = quantize_rows(x, torch.int8)
    assert codes.tolist() == [[127, 0, 2, 2, 0, -2, -2, 3]]
