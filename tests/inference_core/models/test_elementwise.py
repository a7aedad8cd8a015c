"""Norm and activation equal their torch references on every instruction set (SPEC AT-05)."""

import pytest
import torch

from inference_core.models.transformer import reference_clamped_swiglu, reference_rms_norm, reference_silu_mul
from inference_core.native import cpu


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("width", [16, 64, 100, 576])
@pytest.mark.parametrize("rows", [1, 5, 33])
def test_rms_norm_equals_the_reference(width: int, rows: int) -> None:
    x, weight = torch.randn(rows, width) * 3, torch.rand(width)
    got, want = torch.empty_like(x), torch.empty_like(x)
    cpu.rms_norm(x, weight, 1e-5, got)
    reference_rms_norm(x, weight, 1e-5, want)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("width", [16, 50, 1536])
def test_silu_mul_equals_the_reference_even_far_from_zero(width: int) -> None:
    gate_up = torch.randn(9, 2 * width) * 40
    gate_up[0, :width] = -1e4
    gate_up[1, :width] = 1e4
    got, want = torch.empty(9, width), torch.empty(9, width)
    cpu.silu_mul(gate_up, got)
    reference_silu_mul(gate_up, want)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("width", [16, 50, 1536])
def test_clamped_swiglu_equals_the_reference_on_both_sides_of_its_limit(width: int) -> None:
    gate_up = torch.randn(9, 2 * width) * 8
    gate_up[0], gate_up[1], gate_up[2, width:] = -1e4, 1e4, -1e4
    got, want = torch.empty(9, width), torch.empty(9, width)
    cpu.clamped_swiglu(gate_up, got, 1.702, 7.0)
    reference_clamped_swiglu(gate_up, want, 1.702, 7.0)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    assert torch.allclose(got[1], torch.tensor(7.0 * 8.0), atol=1e-3)
