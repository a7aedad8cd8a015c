"""Smoothing outliers changes nothing in full precision and makes INT8 err less (SPEC QZ-03)."""

import pytest
import torch

from inference_core.quantization.eight_bit import int8_rows, smoothing_scales
from tests.inference_core.quantization.synthetic_layers import activations, w8a8_outputs, weights


@pytest.mark.parametrize("seed", range(4))
def test_with_outlier_channels_smoothed_outputs_err_less_than_plain_int8(seed: int) -> None:
    matrix, inputs = weights(48, 128, seed), activations(256, 128, seed)
    exact = inputs @ matrix.T
    scales = smoothing_scales([matrix], inputs.abs().amax(dim=0), alpha=0.5)
    plain = (w8a8_outputs(matrix, inputs) - exact).square().mean()
    smoothed = (w8a8_outputs(matrix * scales, inputs / scales) - exact).square().mean()
    torch.testing.assert_close((inputs / scales) @ (matrix * scales).T, exact, rtol=1e-4, atol=1e-3)
    assert smoothed < 0.3 * plain


def test_without_smoothing_there_is_nothing_to_move_into_the_weights() -> None:
    matrix = torch.ones(4, 8)
    assert torch.equal(smoothing_scales([matrix], torch.full((8,), 5.0), alpha=0.0), torch.ones(8))


def test_smoothing_halfway_makes_weights_and_activations_equally_large() -> None:
    matrix, inputs = weights(48, 128, seed=1), activations(256, 128, seed=1)
    scales = smoothing_scales([matrix], inputs.abs().amax(dim=0), alpha=0.5)
    torch.testing.assert_close((inputs / scales).abs().amax(dim=0), (matrix * scales).abs().amax(dim=0))


def test_int8_codes_use_the_whole_range_and_err_by_half_a_step() -> None:
    matrix = weights(16, 64, seed=2)
    matrix[3] = 0
    codes, scales = int8_rows(matrix)
    assert codes.dtype == torch.int8
    assert (codes.abs().amax(dim=1)[:3] == 127).all()
    assert ((codes.float() * scales - matrix).abs() <= 0.501 * scales).all()
