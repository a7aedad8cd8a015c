"""RMSNorm, its fusion with the residual, and gated activations equal their references (SPEC AT-05), and their codes
those of `quantize_rows`."""

import pytest
import torch

from inference_core.triton_kernels.reference import (
    reference_add_rms_norm,
    reference_geglu,
    reference_rms_norm,
    reference_swiglu,
)
from inference_core.triton_kernels.row_kernels import add_rms_norm, geglu, rms_norm, swiglu
from inference_core.triton_kernels.scaled_linear import quantize_rows
from inference_core.triton_kernels.weights import QuantizedRows

EPS = 1e-5
ACTIVATIONS = {"SwiGLU": (swiglu, reference_swiglu), "GEGLU": (geglu, reference_geglu)}
# One rounding to the dtype; two of bfloat16, since the interpreter cuts it off.
BOUND = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 1.6e-2}


def numbers(rows: int, width: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    return (torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * 2).to(dtype)


def assert_same(got: torch.Tensor, want: torch.Tensor) -> None:
    bound = BOUND[want.dtype]
    torch.testing.assert_close(got.cpu(), want, atol=bound, rtol=bound)


@pytest.mark.parametrize("width", [64, 576, 4096])
@pytest.mark.parametrize("dtype", BOUND, ids=str)
def test_the_norm_equals_the_reference(dtype: torch.dtype, width: int, device: torch.device) -> None:
    x, weight = numbers(5, width, dtype, 1), numbers(1, width, dtype, 2)[0]
    got, want = torch.empty_like(x, device=device), torch.empty_like(x)
    rms_norm(x.to(device), weight.to(device), EPS, got)
    reference_rms_norm(x, weight, EPS, want)
    assert_same(got, want)


@pytest.mark.parametrize("width", [64, 576, 4096])
@pytest.mark.parametrize("dtype", BOUND, ids=str)
def test_the_residual_is_added_and_normalised_as_in_the_reference(
    dtype: torch.dtype, width: int, device: torch.device
) -> None:
    x, residual, weight = numbers(5, width, dtype, 1), numbers(5, width, dtype, 2), numbers(1, width, dtype, 3)[0]
    got, stream = torch.empty_like(x, device=device), residual.clone().to(device)
    add_rms_norm(x.to(device), stream, weight.to(device), EPS, got)
    want = torch.empty_like(x)
    reference_add_rms_norm(x, residual, weight, EPS, want)
    assert_same(stream, residual)
    assert_same(got, want)


def test_rows_may_lie_in_wider_buffers(device: torch.device) -> None:
    wide = numbers(4, 200, torch.float32, 1)
    x, weight = wide[:, 8:136], torch.ones(128)
    on_device = wide.to(device)
    got, want = torch.empty(4, 128, device=device), torch.empty(4, 128)
    rms_norm(on_device[:, 8:136], weight.to(device), EPS, got)
    reference_rms_norm(x, weight, EPS, want)
    assert_same(got, want)


@pytest.mark.parametrize("width", [96, 1024, 1536])
@pytest.mark.parametrize("dtype", BOUND, ids=str)
def test_swiglu_equals_the_reference(dtype: torch.dtype, width: int, device: torch.device) -> None:
    assert_activated("SwiGLU", dtype, width, device)


@pytest.mark.parametrize("width", [96, 1024, 1536])
@pytest.mark.parametrize("dtype", BOUND, ids=str)
def test_geglu_equals_the_reference(dtype: torch.dtype, width: int, device: torch.device) -> None:
    assert_activated("GEGLU", dtype, width, device)


def assert_activated(gated: str, dtype: torch.dtype, width: int, device: torch.device) -> None:
    kernel, reference = ACTIVATIONS[gated]
    gate_up = numbers(5, 2 * width, dtype, 4)
    got = torch.empty(5, width, dtype=dtype, device=device)
    want = torch.empty(5, width, dtype=dtype)
    kernel(gate_up.to(device), got)
    reference(gate_up, want)
    assert_same(got, want)


@pytest.mark.parametrize("gated", ACTIVATIONS)
def test_an_activation_of_numbers_far_from_zero_is_finite(gated: str, device: torch.device) -> None:
    gate_up = torch.tensor([[-1e4, 1e4, 1.0, 1.0]], device=device)
    out = torch.empty(1, 2, device=device)
    ACTIVATIONS[gated][0](gate_up, out)
    assert out.cpu().tolist() == [[0.0, 1e4]]


CODES = [torch.int8, torch.float8_e4m3fn]


def assert_codes_of(activations: torch.Tensor, got: QuantizedRows) -> None:
    """Equal in the interpreter; a compiler may round the last bit of what it fuses in another way, which moves a number
    on the border between two codes."""
    codes, scales = quantize_rows(activations, got.codes.dtype)
    moved = got.codes.view(torch.uint8) != codes.view(torch.uint8)
    if activations.is_cuda:
        torch.testing.assert_close(got.scales, scales, rtol=4 * torch.finfo(activations.dtype).eps, atol=0)
        largest_step = 1 if codes.dtype == torch.int8 else 32
        assert (got.codes.float() - codes.float()).abs().max() <= largest_step
        assert moved.sum() <= 2 + codes.numel() / 500
    else:
        assert torch.equal(got.scales, scales)
        assert not moved.any()
    assert not codes[2].float().any()  # a row of zeros, of scale 0


@pytest.mark.parametrize("codes", CODES, ids=str)
@pytest.mark.parametrize("width", [64, 576, 4096])
@pytest.mark.parametrize("add", [False, True], ids=["alone", "with the residual"])
@pytest.mark.parametrize("dtype", BOUND, ids=str)
def test_a_norm_that_quantises_gives_the_codes_of_the_norm(
    dtype: torch.dtype, add: bool, width: int, codes: torch.dtype, device: torch.device
) -> None:
    x, residual = (numbers(5, width + 8, dtype, seed).to(device)[:, :width] for seed in (1, 2))
    x[2], residual[2] = 0, 0
    weight, again = numbers(1, width, dtype, 3)[0].to(device), residual.clone()
    normed, got = torch.empty_like(x), QuantizedRows.empty((5, width), codes, device)
    if add:
        add_rms_norm(x, residual, weight, EPS, normed)
        add_rms_norm(x, again, weight, EPS, got.codes, got.scales)
    else:
        rms_norm(x, weight, EPS, normed)
        rms_norm(x, weight, EPS, got.codes, got.scales)
    assert torch.equal(again, residual)
    assert_codes_of(normed, got)


@pytest.mark.parametrize("codes", CODES, ids=str)
@pytest.mark.parametrize("width", [96, 1024, 14336])
@pytest.mark.parametrize("gated", ACTIVATIONS)
@pytest.mark.parametrize("dtype", BOUND, ids=str)
def test_an_activation_that_quantises_gives_the_codes_of_the_activation(
    dtype: torch.dtype, gated: str, width: int, codes: torch.dtype, device: torch.device
) -> None:
    kernel = ACTIVATIONS[gated][0]
    gate_up = numbers(5, 2 * width, dtype, 4).to(device)
    gate_up[2] = 0
    activated = torch.empty(5, width, dtype=dtype, device=device)
    got = QuantizedRows.empty((5, width), codes, device)
    kernel(gate_up, activated)
    kernel(gate_up, got.codes, got.scales)
    assert_codes_of(activated, got)
