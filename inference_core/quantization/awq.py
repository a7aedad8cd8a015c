"""AWQ (Lin et al. 2024, SPEC QZ-01): 4-bit weights; important channels are scaled up before rounding.

Errors of weights matter most in channels with large activations. Multiplying such a channel's weights by s > 1 before
rounding, and dividing its activations by s at their source, reduces its error at the cost of its group.
s = mean|x|^alpha. alpha, and the part of each group's range to keep, are searched for the least error of the layer's
outputs, which the second moments of its inputs give exactly for the calibration text. Rounding to nearest, without
calibration, is the baseline.
"""

from collections.abc import Sequence
from typing import Any

import torch

from inference_core.model_config import ModelConfig
from inference_core.quantization.int4 import Int4Method, awq_parts, group_size_for, int4_grid
from inference_core.quantization.method import (
    ATTENTION_INPUT,
    LINEARS,
    SITES,
    LayerTensors,
    Statistics,
    StoredLinear,
    fold,
    output_error,
    tied_to_values,
)

_STEPS = 10
# At most half of a range is cut off, in steps of a twentieth.
_SHRINKS = tuple(1 - step / 20 for step in range(11))
# Queries and keys are multiplied with each other, and their own output error does not show the product's.
_NEVER_SHRUNK = ATTENTION_INPUT.linears[:2]


def search_scales(
    weights: Sequence[torch.Tensor], moments: torch.Tensor, magnitude: torch.Tensor, group_size: int, *, symmetric: bool
) -> torch.Tensor:
    """Search scales [K] for the input channels of `weights`, each [N, K], that share their inputs.

    Of magnitude^alpha for alpha = 0, 0.1, … 0.9, returns the scales with the least rounding error. alpha = 0 is
    rounding to nearest, so the error is never larger. `moments`: mean(x xᵀ) [K, K]; `magnitude`: mean|x| [K].
    """
    best, least = torch.ones_like(magnitude), float("inf")
    for step in range(_STEPS):
        scales = magnitude.clamp(min=1e-4) ** (step / _STEPS)
        scales = scales / torch.sqrt(scales.max() * scales.min())
        error = 0.0
        for weight in weights:
            scaled = weight * scales
            rounded = int4_grid(scaled, group_size, symmetric=symmetric).rounded(scaled)
            error += output_error(rounded / scales - weight, moments)
        if error < least:
            best, least = scales, error
    return best


def search_shrink(weight: torch.Tensor, moments: torch.Tensor, group_size: int, *, symmetric: bool) -> torch.Tensor:
    """Search the part [N, G] of each group's range of `weight` [N, K] to keep for the least error of the group."""
    groups = weight.shape[1] // group_size
    own = torch.stack([moments[g : g + group_size, g : g + group_size] for g in range(0, len(moments), group_size)])
    best = torch.ones(len(weight), groups)
    least = torch.full((len(weight), groups), float("inf"))
    for shrink in _SHRINKS:
        rounded = int4_grid(weight, group_size, symmetric=symmetric, shrink=shrink).rounded(weight)
        change = (rounded - weight).view(len(weight), groups, group_size).transpose(0, 1)
        error = ((change @ own) * change).sum(dim=-1).T
        better = error < least
        best[better] = shrink
        least = torch.where(better, error, least)
    return best


def awq_config(group_size: int | None, *, symmetric: bool) -> dict[str, Any]:
    """The `quantization_config` of AutoAWQ's "gemm" files."""
    return {
        "quant_method": "awq",
        "bits": 4,
        "group_size": group_size,
        "zero_point": not symmetric,
        "version": "gemm",
        "modules_to_not_convert": None,
    }


class AWQ(Int4Method):
    """4-bit weights in groups of `group_size` inputs (None: the greatest usual one that fits), in AutoAWQ's layout."""

    name = "awq"
    needs = "moments"

    def quantize(
        self, tensors: LayerTensors, statistics: Statistics, config: ModelConfig, dtype: torch.dtype
    ) -> dict[str, StoredLinear]:
        size = group_size_for(config, self.group_size)
        # What the weights see after folding: x / s, so moments are divided by s sᵀ.
        moments: dict[str, torch.Tensor] = {}
        for site in SITES:
            seen = statistics[site]
            weights = [tensors[f"{linear}.weight"] for linear in site.linears]
            magnitude = tied_to_values(site, seen.magnitude, config)
            scales = search_scales(weights, seen.moments, magnitude, size, symmetric=self.symmetric)
            fold(tensors, site, scales, config, dtype)
            folded = seen.moments / scales / scales[:, None]
            moments |= dict.fromkeys(site.linears, folded)
        return {linear: self._stored(linear, tensors[f"{linear}.weight"], moments[linear], size) for linear in moments}

    def _stored(self, linear: str, weight: torch.Tensor, moments: torch.Tensor, size: int) -> StoredLinear:
        shrink: torch.Tensor | float = 1.0
        if linear not in _NEVER_SHRUNK:
            shrink = search_shrink(weight, moments, size, symmetric=self.symmetric)
        grid = int4_grid(weight, size, symmetric=self.symmetric, shrink=shrink)
        codes = grid.codes(weight)
        return StoredLinear(awq_parts(codes, grid), grid.values(codes))

    def quantization_config(self) -> dict[str, Any]:
        return awq_config(self.group_size, symmetric=self.symmetric)


class RoundToNearest(Int4Method):
    """4-bit weights in groups of `group_size` inputs (None: the greatest usual one that fits), in AutoAWQ's layout."""

    name = "rtn"
    needs = "nothing"

    def quantize(
        self, tensors: LayerTensors, statistics: Statistics, config: ModelConfig, dtype: torch.dtype
    ) -> dict[str, StoredLinear]:
        size = group_size_for(config, self.group_size)
        return {linear: self._stored(tensors[f"{linear}.weight"], size) for linear in LINEARS}

    def _stored(self, weight: torch.Tensor, size: int) -> StoredLinear:
        grid = int4_grid(weight, size, symmetric=self.symmetric)
        codes = grid.codes(weight)
        return StoredLinear(awq_parts(codes, grid), grid.values(codes))

    def quantization_config(self) -> dict[str, Any]:
        return awq_config(self.group_size, symmetric=self.symmetric)
