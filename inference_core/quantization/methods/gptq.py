"""GPTQ (Frantar et al. 2023, SPEC QZ-02): 4-bit weights, each input's rounding error made up for by those after it.

With the second moments H of a layer's inputs, rounding weight k by d costs least if every later weight j moves by
-d H⁻¹[k, j] / H⁻¹[k, k], H⁻¹ that of the inputs not yet rounded. The Cholesky factor of H⁻¹ holds all of these rows at
once. Inputs may be taken from the most to the least active ("act-order"); groups are cut in the inputs' own order and
their grids set beforehand ("static groups"), so that files stay in plain runs and can be served packed.
"""

from typing import Any

import torch

from inference_core.errors import QuantizationError
from inference_core.model_config import ModelConfig
from inference_core.quantization.files.int4_files import gptq_parts
from inference_core.quantization.layer import SITES, LayerTensors
from inference_core.quantization.methods.int4_grid import TOP_CODE, Int4Grid, int4_grid
from inference_core.quantization.methods.int4_method import Int4Method, group_size_for
from inference_core.quantization.methods.method import Statistics, StoredLinear

# Inputs whose errors are passed on one by one; later ones get those of a whole block in one product.
_BLOCK = 128
# Files of the format store zero points less one.
_LOWEST_ZERO = 1


def gptq_codes(
    weight: torch.Tensor, moments: torch.Tensor, grid: Int4Grid, *, act_order: bool = False, damping: float = 0.01
) -> torch.Tensor:
    """Codes uint8 [N, K] of `weight` [N, K] on `grid`, errors passed on by `moments`, mean(x xᵀ) [K, K].

    `damping`, times the mean of the diagonal, is added to it, and makes it invertible. With moments that are a
    multiple of the identity this is rounding to nearest. Raises QuantizationError for moments that cannot be inverted.
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


def _inverse_factor(moments: torch.Tensor, damping: float) -> torch.Tensor:
    """Upper triangular U [K, K] with Uᵀ U = (moments + damping)⁻¹. In float64: few tokens leave moments nearly
    singular.
    """
    damped = moments.double()
    diagonal = damped.diagonal()
    mean = float(diagonal.mean())
    # Inputs that are always zero cost nothing however they are rounded.
    diagonal[diagonal == 0] = mean or 1.0
    diagonal += damping * (mean or 1.0)
    try:
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
        return torch.linalg.cholesky(inverse, upper=True).float()
    except torch.linalg.LinAlgError as error:
        raise QuantizationError(
            f"the activations' second moments cannot be inverted ({error}); give more text or more damping"
        ) from error


class GPTQ(Int4Method):
    """4-bit weights in groups of `group_size` inputs (None: the greatest usual one that fits), in AutoGPTQ's layout."""

    name = "gptq"
    needs = "moments"

    def __init__(
        self,
        group_size: int | None = None,
        *,
        symmetric: bool = False,
        act_order: bool = True,
        damping: float = 0.01,
    ) -> None:
        super().__init__(group_size, symmetric=symmetric)
        self.act_order = act_order
        self.damping = damping

    def quantize(
        self, tensors: LayerTensors, statistics: Statistics, config: ModelConfig, dtype: torch.dtype
    ) -> dict[str, StoredLinear]:
        size = group_size_for(config, self.group_size)
        return {
            linear: self._stored(tensors[f"{linear}.weight"], statistics[site].moments, size)
            for site in SITES
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
