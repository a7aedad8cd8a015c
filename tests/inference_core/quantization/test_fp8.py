"""FP8 codes are the nearest numbers of E4M3, and never its NaN (SPEC QZ-04)."""

import numpy as np
import pytest
import torch

from inference_core.loaders.block_formats import E4M3
from inference_core.quantization.eight_bit import BLOCK, fp8_blocks, fp8_rows, spread
from tests.inference_core.quantization.synthetic_layers import weights


def test_every_weight_becomes_the_nearest_number_of_the_format() -> None:
    matrix = weights(8, 64, seed=0)
    codes, scales = fp8_rows(matrix)
    numbers = E4M3[np.isfinite(E4M3)]
    wanted = (matrix / scales).numpy()
    nearest = np.abs(wanted[..., None] - numbers).min(axis=-1)
    np.testing.assert_allclose(np.abs(codes.float().numpy() - wanted), nearest, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("size", [(128, 256), (160, 300)])
def test_blocks_have_scales_of_their_own(size: tuple[int, int]) -> None:
    matrix = weights(*size, seed=1)
    matrix[:BLOCK, :BLOCK] *= 1000
    codes, scales = fp8_blocks(matrix)
    assert scales.shape == (-(-size[0] // BLOCK), -(-size[1] // BLOCK))
    values = codes.float() * spread(scales, *size)
    assert torch.isfinite(values).all()
    assert scales[0, 0] > 100 * scales[0, 1]
    # Three bits of mantissa: at most a sixteenth of a number, but for the smallest.
    outer = matrix[:, BLOCK:].abs()
    far = (values - matrix)[:, BLOCK:].abs() > outer / 16 + 1e-6 * outer.max() + scales.min() * 2**-10
    assert not far.any()


def test_a_row_of_zeros_stays_zero() -> None:
    matrix = weights(4, 64, seed=2)
    matrix[1] = 0
    codes, scales = fp8_rows(matrix)
    assert (codes.float()[1] == 0).all()
    assert torch.isfinite(codes.float() * scales).all()
