"""GPTQ (Frantar et al. 2023, SPEC QZ-02): 4-bit weights; later inputs compensate each input's rounding error.

With the second moments H of a layer's inputs, rounding weight k by d costs least if every later weight j changes by
-d H⁻¹[k, j] / H⁻¹[k, k], with H⁻¹ of the inputs not yet rounded. The Cholesky factor of H⁻¹ has all of these rows. H is
shrunk towards its diagonal as far as its tokens are few.
Inputs may be processed from the most to the least active ("act-order"); groups follow the inputs' own order and their
grids are fixed beforehand ("static groups"), so that groups are contiguous in the file and can be served packed.
"""

from typing import Any

import torch

from inference_core.errors import QuantizationError
from inference_core.model_config import ModelConfig
from inference_core.quantization.int4 import TOP_CODE, Int4Grid, Int4Method, gptq_parts, group_size_for, int4_grid
from inference_core.quantization.method import SITES, LayerTensors, Statistics, StoredLinear

# Errors are propagated one by one within a block of inputs, and per block, in one product, to later inputs.
_BLOCK = 128
# Files of the format store zero points minus one.
_LOWEST_ZERO = 1


def gptq_codes(
    weight: torch.Tensor, moments: torch.Tensor, grid: Int4Grid, *, act_order: bool = False, damping: float = 0.01
) -> torch.Tensor:
    """Round `weight` [N, K] to codes uint8 [N, K] on `grid`; `moments`, mean(x xᵀ) [K, K], propagate the errors.

    `damping` times the mean of the diagonal is added to the diagonal to make it invertible. For moments that are a
    multiple of the identity the result is rounding to nearest. Raises QuantizationError for singular moments.
    """
    inputs = weight.shape[1]
    order = torch.argsort(moments.diagonal(), descending=True, stable=True) if act_order else torch.arange(inputs)
    factor = _inverse_factor(moments[order][:, order], damping)
    left = weight[:, order].clone()
    groups = order // grid.group_size
    codes = torch.empty(weight.shape, dtype=torch.uint8)
    for begin in range(0, inputs, _BLOCK):
        end = min(begin + _BLOCK, inputs)
        block, errors = left[:, begin:end], torch.empty(len(weight), end - begin)
        for column in range(end - begin):
            k = begin + column
            scale, zero = grid.scales[:, groups[k]], grid.zeros[:, groups[k]]
            rounded = (torch.round(block[:, column] / scale) + zero).clamp_(0, TOP_CODE)
            codes[:, order[k]] = rounded.to(torch.uint8)
            errors[:, column] = (block[:, column] - scale * (rounded - zero)) / factor[k, k]
            block[:, column + 1 :] -= errors[:, column, None] * factor[k, k + 1 : end]
        left[:, end:] -= errors @ factor[begin:end, end:]
    return codes


def shrunk(moments: torch.Tensor, tokens: int) -> torch.Tensor:
    """`moments` [K, K] of so many tokens with all but the diagonal times tokens / (tokens + K).

    What K inputs seem to have in common on few tokens is mostly chance, and errors that are passed on by it make other
    texts worse than rounding to nearest does; of a million tokens nothing is taken away. Shrinking covariances towards
    their diagonal: Schäfer and Strimmer 2005, with the share of noise that independent inputs have.
    """
    weight = tokens / (tokens + len(moments))
    return weight * moments + (1 - weight) * torch.diag(moments.diagonal())


def _inverse_factor(moments: torch.Tensor, damping: float) -> torch.Tensor:
    """Upper triangular U [K, K] with Uᵀ U = (moments + damping)⁻¹. Computed in float64, since moments of few tokens are
    nearly singular.
    """
    damped = moments.double()
    diagonal = damped.diagonal()
    mean = float(diagonal.mean())
    # Inputs that are always zero cost nothing, whatever their rounding.
    diagonal[diagonal == 0] = mean or 1.0
    diagonal += damping * (mean or 1.0)
    try:
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
        return torch.linalg.cholesky(inverse, upper=True).float()
    except torch.linalg.LinAlgError as error:
        raise QuantizationError(
            f"the activations' second moments cannot be inverted ({error}); use more text or more damping"
        ) from error


class GPTQ(Int4Method):
    """4-bit weights in groups of `group_size` inputs (None: the greatest usual one that fits), in AutoGPTQ's layout."""

    name = "gptq"
    needs = "moments"

    def __init__(
        self, group_size: int | None = None, *, symmetric: bool = False, act_order: bool = True, damping: float = 0.01
    ) -> None:
        super().__init__(group_size, symmetric=symmetric)
        self.act_order = act_order
        self.damping = damping

    def quantize(
        self, tensors: LayerTensors, statistics: Statistics, config: ModelConfig, dtype: torch.dtype
    ) -> dict[str, StoredLinear]:
        size = group_size_for(config, self.group_size)
        return {
            linear: self._stored(tensors[f"{linear}.weight"], moments, size)
            for site in SITES
            for moments in [shrunk(statistics[site].moments, statistics[site].tokens)]
            for linear in site.linears
        }

    def _stored(self, weight: torch.Tensor, moments: torch.Tensor, size: int) -> StoredLinear:
        grid = int4_grid(weight, size, symmetric=self.symmetric, lowest_zero=_LOWEST_ZERO)
        codes = gptq_codes(weight, moments, grid, act_order=self.act_order, damping=self.damping)
        return StoredLinear(gptq_parts(codes, grid), grid.values(codes))

    def quantization_config(self) -> dict[str, Any]:
        return {
            "quant_method": "gptq",
            "bits": 4,
            "group_size": self.group_size,
            "sym": self.symmetric,
            "desc_act": False,
            "static_groups": True,
            "true_sequential": False,
            "damp_percent": self.damping,
            "checkpoint_format": "gptq",
            "lm_head": False,
        }

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"act_order": self.act_order, "damping": self.damping}
