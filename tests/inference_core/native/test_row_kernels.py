"""Quantised activations, alone and fused with the norm or the activation before them."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from inference_core.models.elementwise import rms_norm, silu_mul
from inference_core.native import cpu

pytestmark = pytest.mark.usefixtures("instruction_set")
COLUMNS = [32, 480, 544, 576, 1536]  # fewer groups than a pass takes, a full pass, one and two more


def rows_of(count: int, columns: int) -> torch.Tensor:
    x = torch.randn(count, columns, generator=torch.Generator().manual_seed(columns + count))
    return x * torch.logspace(-3, 3, count)[:, None]


def fields(groups: torch.Tensor) -> NDArray[np.void]:
    return groups.numpy().view(cpu.QUANTIZED_GROUP)[..., 0]


@pytest.mark.parametrize("columns", COLUMNS)
def test_a_group_is_scaled_by_its_largest_magnitude_and_rounded_to_nearest(columns: int) -> None:
    x = rows_of(5, columns)
    x[2, :32] = 0
    groups = fields(cpu.quantize(x))
    values = x.numpy().reshape(5, -1, 32)
    peak = np.abs(values).max(-1)
    np.testing.assert_array_equal(groups["scale"], peak / np.float32(127))
    inverse = np.divide(np.float32(127), peak, out=np.zeros_like(peak), where=peak > 0)
    np.testing.assert_array_equal(groups["q"], np.rint(values * inverse[..., None]))


@pytest.mark.parametrize("columns", COLUMNS)
def test_a_group_carries_the_sums_that_minima_and_unsigned_codes_need(columns: int) -> None:
    groups = fields(cpu.quantize(rows_of(4, columns)))
    total = groups["q"].astype(np.int32).sum(-1)
    np.testing.assert_array_equal(groups["correction"], -128 * total)
    np.testing.assert_array_equal(groups["nibble_correction"], -8 * total)
    np.testing.assert_array_equal(groups["offset"], groups["scale"] * total.astype(np.float32))


def test_rows_of_a_wider_matrix_are_quantised_by_their_own_columns_only() -> None:
    x = rows_of(3, 128)
    assert torch.equal(cpu.quantize(x[:, 32:96]), cpu.quantize(x[:, 32:96].clone()))


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("count", [1, 2, 17])
def test_norm_and_quantisation_in_one_pass_have_the_bits_of_the_two_alone(columns: int, count: int) -> None:
    x, weight = rows_of(count, columns), torch.linspace(0.1, 2, columns)
    normed = torch.empty_like(x)
    rms_norm(x, weight, 1e-5, normed)
    assert torch.equal(cpu.norm_quantize(x, weight, 1e-5), cpu.quantize(normed))


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("count", [1, 2, 9])
def test_activation_and_quantisation_in_one_pass_have_the_bits_of_the_two_alone(columns: int, count: int) -> None:
    gate_up = rows_of(count, 2 * columns)
    activated = torch.empty(count, columns)
    silu_mul(gate_up, activated)
    assert torch.equal(cpu.silu_quantize(gate_up), cpu.quantize(activated))


@pytest.mark.parametrize("count", [1, 7, 40])
def test_a_row_is_quantised_alike_alone_and_among_others(count: int) -> None:
    x, weight = rows_of(count, 576), torch.linspace(0.1, 2, 576)
    together, alone = cpu.norm_quantize(x, weight, 1e-5), [cpu.norm_quantize(row[None], weight, 1e-5) for row in x]
    assert torch.equal(together, torch.cat(alone))
