"""GPTQ is rounding to nearest where inputs are independent, and better where they are not (SPEC QZ-02)."""

import pytest
import torch

from inference_core.errors import QuantizationError
from inference_core.quantization.gptq import gptq_codes, shrunk
from inference_core.quantization.int4 import int4_grid
from tests.inference_core.quantization.layers import seen
from tests.inference_core.quantization.synthetic_layers import activations, weights

GROUP = 32


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("scale", [1.0, 37.0])
def test_with_independent_inputs_of_one_size_it_rounds_to_nearest(scale: float, act_order: bool) -> None:
    matrix = weights(24, 160, seed=0)
    grid = int4_grid(matrix, GROUP, symmetric=False)
    codes = gptq_codes(matrix, scale * torch.eye(160), grid, act_order=act_order)
    assert torch.equal(codes, grid.codes(matrix))


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_outputs_err_less_than_with_rounding_to_nearest(seed: int, act_order: bool) -> None:
    matrix, inputs = weights(48, 160, seed), activations(400, 160, seed)
    grid = int4_grid(matrix, GROUP, symmetric=False)
    codes = gptq_codes(matrix, seen(inputs).moments, grid, act_order=act_order)
    exact = inputs @ matrix.T
    plain = (inputs @ grid.rounded(matrix).T - exact).square().mean()
    passed_on = (inputs @ grid.values(codes).T - exact).square().mean()
    assert passed_on < 0.85 * plain


@pytest.mark.parametrize("seed", range(3))
def test_on_little_text_errors_are_hardly_passed_on_by_chance(seed: int) -> None:
    """As many tokens as inputs, which have nothing in common: rounding to nearest is the best there is."""
    matrix = weights(48, 160, seed)
    inputs, others = (torch.randn(160, 160, generator=torch.Generator().manual_seed(one)) for one in (seed, seed + 9))
    grid, moments = int4_grid(matrix, GROUP, symmetric=False), seen(inputs).moments

    def error(rounded: torch.Tensor) -> float:
        return float((others @ (rounded - matrix).T).square().mean())

    plain = error(grid.rounded(matrix))
    assert error(grid.values(gptq_codes(matrix, moments, grid))) > 1.6 * plain
    assert error(grid.values(gptq_codes(matrix, shrunk(moments, 160), grid))) < 1.25 * plain


def test_much_text_is_taken_at_its_word() -> None:
    moments = seen(activations(300, 64, seed=0)).moments
    assert torch.allclose(shrunk(moments, 10**9), moments)
    assert torch.allclose(shrunk(moments, 100).diagonal(), moments.diagonal())
    assert shrunk(moments, 64)[0, 1] == pytest.approx(float(moments[0, 1]) / 2)


@pytest.mark.parametrize("act_order", [False, True])
def test_the_factored_form_equals_eliminating_one_input_after_another(act_order: bool) -> None:
    """Written out: each rounding recomputes the inverse of the remaining moments; 160 are two blocks."""
    matrix, inputs = weights(6, 160, seed=3).double(), activations(500, 160, seed=3)
    moments = seen(inputs).moments.double()
    grid = int4_grid(matrix.float(), GROUP, symmetric=False)
    damped = moments + 0.01 * moments.diagonal().mean() * torch.eye(160)
    order = torch.argsort(moments.diagonal(), descending=True, stable=True) if act_order else torch.arange(160)
    left, expected = matrix.clone(), torch.empty(6, 160, dtype=torch.uint8)
    for place, k in enumerate(order.tolist()):
        rest = order[place:]
        inverse = torch.linalg.inv(damped[rest][:, rest])
        scale, zero = grid.scales[:, k // GROUP].double(), grid.zeros[:, k // GROUP].double()
        code = (torch.round(left[:, k] / scale) + zero).clamp(0, 15)
        expected[:, k] = code.to(torch.uint8)
        error = left[:, k] - scale * (code - zero)
        left[:, rest] -= error[:, None] * inverse[0] / inverse[0, 0]
    codes = gptq_codes(matrix.float(), moments.float(), grid, act_order=act_order)
    # A number that lies halfway may fall to either side in float32.
    assert (codes != expected).float().mean() < 0.01


def test_inputs_that_are_always_zero_are_rounded_to_nearest() -> None:
    matrix, inputs = weights(16, 64, seed=1), activations(200, 64, seed=1)
    inputs[:, 5] = 0
    grid = int4_grid(matrix, GROUP, symmetric=False)
    codes = gptq_codes(matrix, seen(inputs).moments, grid)
    assert torch.equal(codes[:, 5], grid.codes(matrix)[:, 5])


def test_moments_that_are_not_finite_are_refused() -> None:
    matrix = weights(16, 64, seed=1)
    moments = torch.full((64, 64), float("nan"))
    with pytest.raises(QuantizationError, match="second moments"):
        gptq_codes(matrix, moments, int4_grid(matrix, GROUP, symmetric=False))
