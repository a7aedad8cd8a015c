"""Inputs that INT8 layers multiply in float32: same bits alone and in a batch, less error (SPEC AT-06, QZ-06)."""

import numpy as np
import pytest
import torch

from inference_core.linear.linear import Outliers, PanelLinear
from inference_core.linear.panels import pack_columns
from inference_core.loaders.packed_tensor import dequantize
from tests.inference_core.linear.packed_linears import native, packed

KINDS = ["Q4_0", "Q4_1", "Q8_0"]
CHANNELS = [3, 40, 200]


def parted(kind: str, outputs: int) -> tuple[PanelLinear, PanelLinear, torch.Tensor]:
    """A layer, the same with `CHANNELS` apart, and its weights."""
    tensor = packed(kind, outputs, 256)
    panels = torch.from_numpy(pack_columns([tensor], CHANNELS))
    plain = native(tensor, "int4-int8")
    weights = torch.from_numpy(np.array(dequantize(tensor)))
    return plain, plain.with_outliers(Outliers(torch.tensor(CHANNELS, dtype=torch.int32), panels)), weights


def activations(rows: int) -> torch.Tensor:
    """Numbers of which `CHANNELS` are fifty times as large as the others."""
    x = torch.randn(rows, 256, generator=torch.Generator().manual_seed(rows))
    x[:, CHANNELS] *= 50
    return x


def applied(linear: PanelLinear, x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(len(x), linear.out_features)
    linear.apply(x, out)
    return out


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 7, 41])
@pytest.mark.parametrize("outputs", [16, 50])
def test_outliers_apart_take_away_most_of_the_error_of_rounding(kind: str, rows: int, outputs: int) -> None:
    plain, apart, weights = parted(kind, outputs)
    x = activations(rows)
    exact = x @ weights.T

    before, after = ((applied(linear, x) - exact).square().mean().sqrt() for linear in (plain, apart))

    assert after < before / 4


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("kind", KINDS)
def test_without_large_inputs_it_is_the_layer_of_the_rest_plus_the_products_of_the_outliers(kind: str) -> None:
    plain, apart, weights = parted(kind, 50)
    x = activations(9)
    rest = x.clone()
    rest[:, CHANNELS] = 0

    got = applied(apart, x)

    want = applied(plain, rest) + x[:, CHANNELS] @ weights[:, CHANNELS].half().float().T
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-4)


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_with_outliers_has_the_same_bits_alone_and_in_any_batch(kind: str) -> None:
    _, apart, _ = parted(kind, 50)
    x = activations(41)
    together = applied(apart, x)

    for row in range(41):
        assert torch.equal(applied(apart, x[row : row + 1].clone())[0], together[row])


def test_outputs_of_several_tensors_lie_one_after_another() -> None:
    first, second = packed("Q4_1", 20, 256, seed=1), packed("Q4_1", 30, 256, seed=2)
    both = np.concatenate([dequantize(first), dequantize(second)])[:, CHANNELS]

    panels = pack_columns([first, second], CHANNELS)

    assert panels.shape == (4, len(CHANNELS), 16)
    stored = panels.transpose(0, 2, 1).reshape(64, -1)
    np.testing.assert_allclose(stored[:50], both, rtol=2**-11)
    assert not stored[50:].any()
