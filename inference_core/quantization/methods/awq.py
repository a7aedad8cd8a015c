"""AWQ (Lin et al. 2024, SPEC QZ-01): 4-bit weights, the channels that matter scaled up before they are rounded.

A channel whose activations are large makes its weights' errors count. Multiplied by s > 1 before rounding, and its
activations divided by s where they are made, such a channel loses less, at the cost of its group. s = mean|x|^alpha,
and alpha and how much of each group's span to keep are searched for the least error of the layer's outputs, which
the second moments of its inputs give exactly for the calibration text.
"""

from collections.abc import Sequence
from typing import Any

import torch

from inference_core.model_config import ModelConfig
from inference_core.quantization.activation_statistics import output_error
from inference_core.quantization.files.int4_files import awq_parts
from inference_core.quantization.layer import ATTENTION_INPUT, SITES, LayerTensors
from inference_core.quantization.methods.folding import fold, tied_to_values
from inference_core.quantization.methods.int4_grid import int4_grid
from inference_core.quantization.methods.int4_method import Int4Method, group_size_for
from inference_core.quantization.methods.method import Statistics, StoredLinear

_STEPS = 10
# Half of a span may be cut off at most, in steps of a twentieth.
_SHRINKS = tuple(1 - step / 20 for step in range(11))
# Queries and keys meet in a product, whose error their own outputs' does not show.
_NEVER_SHRUNK = ATTENTION_INPUT.linears[:2]


def search_scales(
    weights: Sequence[torch.Tensor],
    moments: torch.Tensor,
    magnitude: torch.Tensor,
    group_size: int,
    *,
    symmetric: bool,
) -> torch.Tensor:
    """Scales [K] of the input channels of `weights`, each [N, K], that share their inputs.

    Among magnitude^alpha for alpha = 0, 0.1, … 0.9, those with which rounding errs least: never more than rounding
    to nearest, which alpha = 0 is. `moments` is mean(x xᵀ) [K, K], `magnitude` mean|x| [K].
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
    """The share [N, G] of each group's span of `weight` [N, K] with which the group's own error is least."""
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
