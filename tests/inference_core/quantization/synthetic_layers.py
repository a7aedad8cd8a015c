"""How far quantised layers stray on synthetic inputs: each method against the plain rounding that it improves on.

A model at hand may lie on a coarse grid already; these weights are at full precision, and the inputs have what makes
quantising hard: correlated channels, and a few of them thirty times as large (Dettmers et al. 2022).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from inference_core.quantization.awq import search_scales, search_shrink
from inference_core.quantization.eight_bit import fp8_rows, int8_rows, smoothing_scales
from inference_core.quantization.gptq import gptq_codes, shrunk
from inference_core.quantization.int4 import int4_grid
from inference_core.quantization.method import ActivationStatistics


@dataclass(frozen=True, slots=True)
class SyntheticLayer:
    """Weights [N, K], calibration inputs and other inputs of the same law [tokens, K]."""

    name: str
    weight: torch.Tensor
    calibration: torch.Tensor
    inputs: torch.Tensor


def activations(tokens: int, width: int, seed: int, *, outliers: int = 4, law: int = 0) -> torch.Tensor:
    """[tokens, width] with correlated channels, of which `outliers` are thirty times as large; `law` decides which."""
    shared, own = torch.Generator().manual_seed(law), torch.Generator().manual_seed(seed)
    mixing = torch.randn(width, width, generator=shared) / width**0.5 + torch.eye(width)
    inputs = torch.randn(tokens, width, generator=own) @ mixing
    inputs[:, torch.randperm(width, generator=shared)[:outliers]] *= 30
    return inputs


def weights(outputs: int, inputs: int, seed: int) -> torch.Tensor:
    """[outputs, inputs], heavier-tailed than normal, as trained ones are."""
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(outputs, inputs, generator=generator)
    return normal * (0.5 + torch.rand(outputs, inputs, generator=generator)) / inputs**0.5


def synthetic_layers(outputs: int, inputs: int, tokens: int, seed: int) -> Iterator[SyntheticLayer]:
    """One whose inputs are independent and alike, and one whose inputs are as real ones are."""
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(outputs, inputs, generator=generator) / inputs**0.5
    first, second = (torch.randn(tokens, inputs, generator=generator) for _ in range(2))
    yield SyntheticLayer("random", matrix, first, second)
    law = {"law": seed}
    yield SyntheticLayer(
        "outliers",
        weights(outputs, inputs, seed),
        activations(tokens, inputs, 2 * seed + 1, **law),
        activations(tokens, inputs, 2 * seed + 2, **law),
    )


def bench_quantisers(
    *, outputs: int = 512, inputs: int = 512, tokens: int = 2048, group_size: int = 64, seed: int = 0
) -> Iterator[dict[str, Any]]:
    """A row per layer and method: the relative error |y' - y|² / |y|² of its outputs on inputs that it was not
    calibrated on, and that over the plain method's of the same precision (`nearest`, or `w8a8`).
    """
    for layer in synthetic_layers(outputs, inputs, tokens, seed):
        exact = layer.inputs @ layer.weight.T
        baseline = 0.0
        for bits, method, given in _outputs(layer, group_size):
            error = float((given - exact).square().sum() / exact.square().sum())
            if method in ("nearest", "w8a8"):
                baseline = error
            row = {"layer": layer.name, "weights": bits, "method": method, "error": error}
            yield row | {"of_plain": error / baseline if method != "fp8" else None}


def _outputs(layer: SyntheticLayer, group_size: int) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Precision, method and outputs [tokens, N], plain ones first."""
    matrix, inputs = layer.weight, layer.inputs
    seen = ActivationStatistics(matrix.shape[1], moments=True)
    seen.add(layer.calibration)
    grid = int4_grid(matrix, group_size, symmetric=False)
    yield "int4", "nearest", inputs @ grid.rounded(matrix).T
    yield "int4", "awq", inputs @ _awq(matrix, seen, group_size).T
    moments = shrunk(seen.moments, seen.tokens)
    yield "int4", "gptq", inputs @ grid.values(gptq_codes(matrix, moments, grid)).T
    act_order = gptq_codes(matrix, moments, grid, act_order=True)
    yield "int4", "gptq, act-order", inputs @ grid.values(act_order).T
    scales = smoothing_scales([matrix], seen.peak, alpha=0.5)
    yield "int8", "w8a8", w8a8_outputs(matrix, inputs)
    yield "int8", "smoothquant", w8a8_outputs(matrix * scales, inputs / scales)
    codes, sizes = fp8_rows(matrix)
    steps, spans = fp8_rows(inputs)
    yield "fp8", "fp8", (steps.float() @ codes.float().T) * spans * sizes.T


def _awq(matrix: torch.Tensor, seen: ActivationStatistics, group_size: int) -> torch.Tensor:
    scales = search_scales([matrix], seen.moments, seen.magnitude, group_size, symmetric=False)
    scaled = matrix * scales
    shrink = search_shrink(scaled, seen.moments / scales / scales[:, None], group_size, symmetric=False)
    return int4_grid(scaled, group_size, symmetric=False, shrink=shrink).rounded(scaled) / scales


def w8a8_outputs(weight: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """x Wᵀ [tokens, N] in INT8 arithmetic, with a scale per output and per token."""
    codes, scales = int8_rows(weight)
    steps, sizes = int8_rows(inputs)
    # Sums of products of 8-bit integers are exact in float64.
    return (steps.double() @ codes.double().T).float() * sizes * scales.T
