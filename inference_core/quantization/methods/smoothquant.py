"""SmoothQuant (Xiao et al. 2023, SPEC QZ-03): INT8 weights and activations, with outliers shared between the two.

A few activation channels are so large that one scale per token leaves little precision for the others. Each channel is
divided by s = max|x|^alpha / max|w|^(1 - alpha), and the weights that read it are multiplied by s, so that both are
about as hard to round. Weights have a scale per output, activations a dynamic one per token.
"""

from collections.abc import Sequence
from typing import Any

import torch

from inference_core.model_config import ModelConfig
from inference_core.quantization.layer import LINEARS, SITES, LayerTensors
from inference_core.quantization.methods.eight_bit import check_eight_bit_shapes, compressed_tensors_config
from inference_core.quantization.methods.folding import fold, tied_to_values
from inference_core.quantization.methods.method import QuantizationMethod, Statistics, StoredLinear

_TOP = 127
_SMALLEST = 1e-5


def smoothing_scales(weights: Sequence[torch.Tensor], peak: torch.Tensor, alpha: float) -> torch.Tensor:
    """s [K] for `weights`, each [N, K], that share inputs with max|x| = `peak` [K].

    `alpha` 1 moves all of the range into the weights, 0 into the activations.
    """
    heaviest = torch.stack([weight.abs().amax(dim=0) for weight in weights]).amax(dim=0)
    scales = peak.clamp(min=_SMALLEST) ** alpha / heaviest.clamp(min=_SMALLEST) ** (1 - alpha)
    return scales.clamp(min=_SMALLEST)


def int8_rows(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round [rows, columns] to symmetric INT8: codes int8 and scales float32 [rows, 1]; w ~ scale * code."""
    scales = matrix.abs().amax(dim=1, keepdim=True) / _TOP
    scales = torch.where(scales > 0, scales, 1.0)
    return torch.round(matrix / scales).clamp_(-_TOP, _TOP).to(torch.int8), scales


class SmoothQuant(QuantizationMethod):
    """INT8 weights with a scale per output, stored as compressed-tensors "int-quantized"; activations are rounded
    dynamically.
    """

    name = "int8"
    needs = "peaks"
    default_dtype = torch.bfloat16

    def __init__(self, alpha: float = 0.5) -> None:
        self.alpha = alpha

    def check(self, config: ModelConfig) -> None:
        check_eight_bit_shapes(config)

    def quantize(
        self, tensors: LayerTensors, statistics: Statistics, config: ModelConfig, dtype: torch.dtype
    ) -> dict[str, StoredLinear]:
        for site in SITES:
            weights = [tensors[f"{linear}.weight"] for linear in site.linears]
            scales = smoothing_scales(weights, statistics[site].peak, self.alpha)
            fold(tensors, site, tied_to_values(site, scales, config), config, dtype)
        return {linear: self._stored(tensors[f"{linear}.weight"]) for linear in LINEARS}

    def _stored(self, weight: torch.Tensor) -> StoredLinear:
        codes, scales = int8_rows(weight)
        return StoredLinear({"weight": codes, "weight_scale": scales}, codes.float() * scales)

    def quantization_config(self) -> dict[str, Any]:
        return compressed_tensors_config("int-quantized", "int")

    def settings(self) -> dict[str, Any]:
        return {"alpha": self.alpha}
