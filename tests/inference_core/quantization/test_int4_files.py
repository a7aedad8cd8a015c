"""What is packed is what our loaders read, bit by bit, and what the formats define."""

from pathlib import Path

import numpy as np
import pytest
import torch

from inference_core.loaders.huggingface.quantized_layer import GroupFormat
from inference_core.loaders.packed_tensor import dequantize
from inference_core.quantization.int4 import Int4Grid, awq_parts, gptq_parts, int4_grid
from tests.inference_core.loaders import int4_checkpoints
from tests.inference_core.quantization.synthetic_layers import weights

GROUP = 32


def parts_of(form: str, codes: torch.Tensor, grid: Int4Grid) -> dict[str, np.ndarray]:
    made = awq_parts(codes, grid) if form == "awq" else gptq_parts(codes, grid)
    return {name: tensor.numpy() for name, tensor in made.items()}


@pytest.mark.parametrize("form", ["awq", "gptq"])
@pytest.mark.parametrize("symmetric", [False, True])
def test_a_packed_layer_reads_back_exactly(form: str, symmetric: bool) -> None:
    matrix = weights(48, 128, seed=4)
    grid = int4_grid(matrix, GROUP, symmetric=symmetric, lowest_zero=1)
    codes = grid.codes(matrix)
    reader = GroupFormat("awq", GROUP) if form == "awq" else GroupFormat("gptq", GROUP, zero_offset=1)
    tensor = reader.tensor(Path("made"), "layer", parts_of(form, codes, grid))
    assert tensor.kind == ("Q4_0" if symmetric else "Q4_Z")
    np.testing.assert_array_equal(dequantize(tensor), grid.values(codes).numpy())


@pytest.mark.parametrize("form", ["awq", "gptq"])
def test_words_are_those_packed_nibble_by_nibble(form: str) -> None:
    layer = int4_checkpoints.random_layer(16, 64, GROUP, seed=8)
    grid = Int4Grid(
        torch.from_numpy(layer.scales.T.astype(np.float32)), torch.from_numpy(layer.zeros.T.astype(np.float32)), GROUP
    )
    expected = int4_checkpoints.awq(layer) if form == "awq" else int4_checkpoints.gptq(layer, stored_less_one=True)
    made = parts_of(form, torch.from_numpy(layer.codes.T.astype(np.uint8)), grid)
    assert made.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(made[name], array)
        assert made[name].dtype == array.dtype


def test_no_weight_is_further_from_its_number_than_half_a_step() -> None:
    matrix = weights(48, 128, seed=6)
    grid = int4_grid(matrix, GROUP, symmetric=False)
    steps = grid.scales.repeat_interleave(GROUP, dim=1)
    # The zero point is rounded too, so the ends of a span may lie half a step beyond it.
    assert ((grid.rounded(matrix) - matrix).abs() <= 1.01 * steps).all()
    inside = (grid.codes(matrix) > 0) & (grid.codes(matrix) < 15)
    assert ((grid.rounded(matrix) - matrix).abs() <= 0.501 * steps)[inside].all()


def test_a_group_of_zeros_stays_zero() -> None:
    matrix = weights(8, 64, seed=6)
    matrix[:, :GROUP] = 0
    for symmetric in (False, True):
        rounded = int4_grid(matrix, GROUP, symmetric=symmetric, lowest_zero=1).rounded(matrix)
        assert (rounded[:, :GROUP] == 0).all()
        assert torch.isfinite(rounded).all()
