"""Quantised activations, alone and fused with the norm or the activation before them."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from inference_core.models.transformer import rms_norm, silu_mul
from inference_core.native import cpu

pytestmark = pytest.mark.usefixtures("instruction_set")
# x ~ scale * q over 32 activations, with the factors of weights' minima and offsets (`native/kernels.h`).
QUANTIZED_GROUP = np.dtype(
    [("q", np.int8, 32), ("scale", "<f4"), ("offset", "<f4"), ("correction", "<i4"), ("nibble_correction", "<i4")]
)
COLUMNS = [32, 480, 544, 576, 1536]  # fewer groups than a pass takes, a full pass, one and two more


def rows_of(count: int, columns: int) -> torch.Tensor:
    x = torch.randn(count, columns, generator=torch.Generator().manual_seed(columns + count))
    return x * torch.logspace(-3, 3, count)[:, None]


def quantize(x: torch.Tensor) -> torch.Tensor:
    """Quantise x[T, K] for integer linear layers: uint8 [T, K / 32, 48] of `QUANTIZED_GROUP`; K a multiple of 32."""
    out = _groups(*x.shape)
    cpu.extension().quantize(x.data_ptr(), x.stride(0), x.shape[1], x.shape[0], out.data_ptr())
    return out


def norm_quantize(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`rms_norm`, then `quantize`, in one pass with identical bits."""
    out = _groups(*x.shape)
    cpu.extension().norm_quantize(
        x.data_ptr(), x.stride(0), weight.data_ptr(), x.shape[1], eps, x.shape[0], out.data_ptr()
    )
    return out


def silu_quantize(gate_up: torch.Tensor) -> torch.Tensor:
    """`silu_mul` of contiguous gate_up [T, 2 I], then `quantize`, in one pass with identical bits."""
    rows, columns = gate_up.shape[0], gate_up.shape[1] // 2
    out = _groups(rows, columns)
    cpu.extension().silu_quantize(gate_up.data_ptr(), columns, rows, out.data_ptr())
    return out


def _groups(rows: int, columns: int) -> torch.Tensor:
    return torch.empty(rows, columns // 32, QUANTIZED_GROUP.itemsize, dtype=torch.uint8)


def fields(groups: torch.Tensor) -> NDArray[np.void]:
    return groups.numpy().view(QUANTIZED_GROUP)[..., 0]


@pytest.mark.parametrize("columns", COLUMNS)
def test_a_group_is_scaled_by_its_largest_magnitude_and_rounded_to_nearest(columns: int) -> None:
    x = rows_of(5, columns)
    x[2, :32] = 0
    groups = fields(quantize(x))
    values = x.numpy().reshape(5, -1, 32)
    peak = np.abs(values).max(-1)
    np.testing.assert_array_equal(groups["scale"], peak / np.float32(127))
    inverse = np.divide(np.float32(127), peak, out=np.zeros_like(peak), where=peak > 0)
    np.testing.assert_array_equal(groups["q"], np.rint(values * inverse[..., None]))


@pytest.mark.parametrize("columns", COLUMNS)
def test_a_group_carries_the_sums_that_minima_and_unsigned_codes_need(columns: int) -> None:
    groups = fields(quantize(rows_of(4, columns)))
    total = groups["q"].astype(np.int32).sum(-1)
    np.testing.assert_array_equal(groups["correction"], -128 * total)
    np.testing.assert_array_equal(groups["nibble_correction"], -8 * total)
    np.testing.assert_array_equal(groups["offset"], groups["scale"] * total.astype(np.float32))


def test_rows_of_a_wider_matrix_are_quantised_by_their_own_columns_only() -> None:
    x = rows_of(3, 128)
    assert torch.equal(quantize(x[:, 32:96]), quantize(x[:, 32:96].clone()))


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("count", [1, 2, 17])
def test_norm_and_quantisation_in_one_pass_have_the_bits_of_the_two_alone(columns: int, count: int) -> None:
    x, weight = rows_of(count, columns), torch.linspace(0.1, 2, columns)
    normed = torch.empty_like(x)
    rms_norm(x, weight, 1e-5, normed)
    assert torch.equal(norm_quantize(x, weight, 1e-5), quantize(normed))


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("count", [1, 2, 9])
def test_activation_and_quantisation_in_one_pass_have_the_bits_of_the_two_alone(columns: int, count: int) -> None:
    gate_up = rows_of(count, 2 * columns)
    activated = torch.empty(count, columns)
    silu_mul(gate_up, activated)
    assert torch.equal(silu_quantize(gate_up), quantize(activated))


@pytest.mark.parametrize("count", [1, 7, 40])
def test_a_row_is_quantised_alike_alone_and_among_others(count: int) -> None:
    x, weight = rows_of(count, 576), torch.linspace(0.1, 2, 576)
    together, alone = norm_quantize(x, weight, 1e-5), [norm_quantize(row[None], weight, 1e-5) for row in x]
    assert torch.equal(together, torch.cat(alone))
