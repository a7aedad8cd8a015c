"""Every linear kernel over a grid of shapes: within its rounding bound of float64, and the same bits in any batch."""

from itertools import product

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from inference_core.linear.linear import PanelLinear, quantize_activations
from inference_core.linear.panels import int8_codes, panel_kind
from inference_core.loaders.packed_tensor import (
    PackedTensor,
    bfloat16_to_float32,
    dequantize,
    float32_to_bfloat16,
    group_codes,
)
from inference_core.model_spec import Compute
from inference_core.native import cpu
from tests.inference_core.linear.packed_linears import native, packed

pytestmark = pytest.mark.usefixtures("instruction_set")
CASES: list[tuple[str, Compute]] = [
    ("Q4_1", "int4-int8"),
    ("Q4_0", "int4-int8"),
    ("Q8_0", "int4-int8"),
    ("Q4_1", "int4"),
    ("BF16", "bfloat16"),
    ("F32", "float32"),
]
# One column; a panel short of one, whole and one more; the widest tile with and without a rest.
OUTPUTS = (1, 15, 16, 17, 64, 100)
# One group, odd numbers of groups, and more than one pass of k.
INPUTS = (32, 96, 544)
# Tiles of every height, in one batch and in two.
ROWS = (1, 2, 3, 4, 5, 6, 7, 13, 70, 100)
BATCHES = (*range(1, 34), 64, 100, 256)
HALF_ULP = 2.0**-24
Matrix = NDArray[np.float64]


def exact(tensor: PackedTensor, compute: Compute) -> tuple[Matrix, Matrix]:
    """The weights as packed, and the sum of magnitudes that each of them is computed from."""
    kind = panel_kind(tensor, compute)
    if kind == "int8":
        codes, scale = int8_codes(tensor)
        weight = codes * np.repeat(scale, 32, axis=1).astype(np.float64)
        # Unsigned codes are 128 more, and the excess is taken off again.
        return weight, np.abs(weight) + 256 * np.repeat(np.abs(scale), 32, axis=1)
    if kind == "int4-centred":
        groups = group_codes(tensor)
        scale = np.repeat(groups.scale, 32, axis=1).astype(np.float64)
        return scale * (groups.codes.astype(np.float64) - 8), np.abs(scale) * (groups.codes + 8.0)
    if kind == "int4":
        groups = group_codes(tensor)
        scaled = groups.codes * np.repeat(groups.scale, 32, axis=1).astype(np.float64)
        minimum = np.repeat(groups.minimum, 32, axis=1).astype(np.float64)
        return scaled + minimum, np.abs(scaled) + np.abs(minimum)
    weight = dequantize(tensor)
    if kind == "bfloat16":
        weight = bfloat16_to_float32(float32_to_bfloat16(weight))
    return weight.astype(np.float64), np.abs(weight).astype(np.float64)


@pytest.mark.parametrize(("kind", "compute"), CASES)
@pytest.mark.parametrize("inputs", INPUTS)
def test_every_shape_is_within_the_rounding_of_its_sums(kind: str, compute: Compute, inputs: int) -> None:
    generator = torch.Generator().manual_seed(inputs)
    x = torch.randn(max(ROWS), inputs, generator=generator)
    seen = (quantize_activations(x) if compute == "int4-int8" else x).double().numpy()
    for outputs in OUTPUTS:
        tensor = packed(kind, outputs, inputs)
        weight, magnitude = exact(tensor, compute)
        products, magnitudes = seen @ weight.T, np.abs(seen) @ magnitude.T
        linear = native(tensor, compute)
        offsets, before = torch.randn(outputs, generator=generator), torch.randn(max(ROWS), outputs)
        for rows, bias, accumulate in product(ROWS, (None, offsets), (False, True)):
            linear.bias = bias
            got = before[:rows].clone()
            linear.apply(x[:rows], got, accumulate=accumulate)

            terms = ([] if bias is None else [bias]) + ([before[:rows]] if accumulate else [])
            added = sum((term.double() for term in terms), torch.zeros(rows, outputs).double()).numpy()
            magnitude_sums = sum((term.double().abs() for term in terms), torch.zeros(rows, outputs).double()).numpy()
            # At worst every product and every sum is off by half a unit in the last place of all magnitudes so far.
            bound = (inputs + 8) * HALF_ULP * (magnitudes[:rows] + magnitude_sums)
            assert (np.abs(got.numpy() - products[:rows] - added) <= bound).all(), (outputs, rows, accumulate)


@pytest.mark.parametrize(("kind", "compute"), CASES)
def test_a_row_has_the_same_bits_alone_and_among_any_number_of_others(kind: str, compute: Compute) -> None:
    linear, x = native(packed(kind, 100, 544), compute), torch.randn(256, 544)
    alone = torch.cat([applied(linear, row[None]) for row in x])
    for count in BATCHES:
        # The last rows, so that a row's place in its tile changes with the number of rows.
        assert torch.equal(applied(linear, x[256 - count :]), alone[256 - count :]), count


@pytest.mark.parametrize(("kind", "compute"), CASES)
def test_no_bit_depends_on_the_number_of_threads(kind: str, compute: Compute) -> None:
    linear, x = native(packed(kind, 200, 96), compute), torch.randn(9, 96)
    results = []
    for threads in (1, 2, 3, 5):
        cpu.set_threads(threads)
        results.append(applied(linear, x))
    cpu.set_threads(1)
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize(("kind", "compute"), CASES)
def test_nothing_is_written_outside_the_outputs(kind: str, compute: Compute) -> None:
    linear, x = native(packed(kind, 50, 96), compute), torch.randn(7, 96)
    wide = torch.full((9, 80), 7.0)
    linear.apply(x, wide[1:8, 10:60])
    assert torch.equal(wide[1:8, 10:60], applied(linear, x))
    wide[1:8, 10:60] = 7
    assert (wide == 7).all()


def applied(linear: PanelLinear, x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(x.shape[0], linear.out_features)
    linear.apply(x, out)
    return out
