"""AWQ errs less than rounding to nearest where activations have outliers, and never more (SPEC QZ-01)."""

import pytest
import torch

from inference_core.models.transformer import rotary_table
from inference_core.quantization.awq import AWQ, search_scales, search_shrink
from inference_core.quantization.int4 import int4_grid
from inference_core.quantization.method import LINEARS, layer_forward, output_error
from tests.inference_core.quantization.layers import CONFIG, layer, layer_statistics, seen
from tests.inference_core.quantization.synthetic_layers import activations, weights

GROUP = 32


def errors(matrix: torch.Tensor, inputs: torch.Tensor) -> tuple[float, float]:
    """Of rounding to nearest, and of AWQ's scales and cut spans, measured on the outputs themselves."""
    statistics = seen(inputs)
    nearest = int4_grid(matrix, GROUP, symmetric=False).rounded(matrix)
    scales = search_scales([matrix], statistics.moments, statistics.magnitude, GROUP, symmetric=False)
    scaled = matrix * scales
    moments = statistics.moments / scales / scales[:, None]
    shrink = search_shrink(scaled, moments, GROUP, symmetric=False)
    rounded = int4_grid(scaled, GROUP, symmetric=False, shrink=shrink).rounded(scaled) / scales
    exact = inputs @ matrix.T
    plain, aware = (float(((inputs @ w.T - exact) ** 2).mean()) for w in (nearest, rounded))
    return plain, aware


@pytest.mark.parametrize("seed", range(4))
def test_outputs_err_less_than_with_rounding_to_nearest_where_channels_stand_out(seed: int) -> None:
    plain, aware = errors(weights(48, 128, seed), activations(256, 128, seed))
    assert aware < 0.6 * plain


@pytest.mark.parametrize("seed", range(4))
def test_channels_that_stand_out_are_scaled_up_and_that_alone_lowers_the_error(seed: int) -> None:
    matrix, inputs = weights(48, 128, seed), activations(256, 128, seed)
    statistics = seen(inputs)
    scales = search_scales([matrix], statistics.moments, statistics.magnitude, GROUP, symmetric=False)
    assert scales[statistics.magnitude.argmax()] > 1.5 * scales.median()
    rounded = int4_grid(matrix * scales, GROUP, symmetric=False).rounded(matrix * scales) / scales
    nearest = int4_grid(matrix, GROUP, symmetric=False).rounded(matrix)
    plain, scaled = (float((inputs @ (one - matrix).T).square().mean()) for one in (nearest, rounded))
    assert scaled < 0.8 * plain


@pytest.mark.parametrize("seed", range(4))
def test_outputs_err_no_more_than_with_rounding_to_nearest_on_plain_random_layers(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    matrix, inputs = torch.randn(48, 128, generator=generator), torch.randn(256, 128, generator=generator)
    plain, aware = errors(matrix, inputs)
    assert aware <= plain


def test_the_second_moments_give_the_error_of_the_outputs_themselves() -> None:
    inputs, change = activations(64, 96, seed=1), weights(32, 96, seed=2)
    expected = float(((inputs @ change.T) ** 2).sum(dim=1).mean())
    assert output_error(change, seen(inputs).moments) == pytest.approx(expected, rel=1e-4)


def test_a_layer_quantised_with_awq_is_nearer_to_its_outputs_than_one_rounded_to_nearest() -> None:
    hidden = activations(64, CONFIG.hidden_size, seed=9)
    cos_sin = rotary_table(CONFIG, 64)
    exact = layer_forward(CONFIG, layer(), hidden, cos_sin)
    nearest = layer()
    for linear in LINEARS:
        matrix = nearest[f"{linear}.weight"]
        nearest[f"{linear}.weight"] = int4_grid(matrix, GROUP, symmetric=False).rounded(matrix)
    plain = (layer_forward(CONFIG, nearest, hidden, cos_sin) - exact).square().mean()
    tensors = layer()
    stored = AWQ(GROUP).quantize(tensors, layer_statistics(layer(), hidden, cos_sin), CONFIG, torch.float16)
    assert list(stored) == list(LINEARS)
    aware = layer_forward(CONFIG, tensors | {f"{name}.weight": s.values for name, s in stored.items()}, hidden, cos_sin)
    # Scales alone, or spans alone, leave 0.4 of the error; scales that are not folded into the layer more than half.
    assert (aware - exact).square().mean() < 0.37 * plain
