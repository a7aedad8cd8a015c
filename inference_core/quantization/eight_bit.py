"""The 8-bit methods, FP8 and SmoothQuant, and the `quantization_config` of compressed-tensors that both write.

FP8 weights are E4M3 (Micikevicius et al. 2022, SPEC QZ-04), with a scale per output or per block of 128 × 128. E4M3
has 4 bits of exponent and 3 of mantissa, up to 448: the relative precision is 1/16 over many powers of two, so
outliers do not reduce the precision of small weights, and no calibration is needed.

SmoothQuant (Xiao et al. 2023, SPEC QZ-03) makes weights and activations INT8, with outliers shared between the two. A
few activation channels are so large that one scale per token leaves little precision for the others. Each channel is
divided by s = max|x|^alpha / max|w|^(1 - alpha), and the weights that read it are multiplied by s, so that both are
about as hard to round. Weights have a scale per output, activations a dynamic one per token.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch.nn import functional

from inference_core.errors import QuantizationError
from inference_core.loaders.block_formats import ELEMENTS
from inference_core.model_config import ModelConfig
from inference_core.quantization.method import (
    LINEARS,
    SITES,
    LayerTensors,
    QuantizationMethod,
    Statistics,
    StoredLinear,
    fold,
    linear_inputs,
    linear_outputs,
    tied_to_values,
)


def compressed_tensors_config(
    form: Literal["int-quantized", "float-quantized"], kind: Literal["int", "float"]
) -> dict[str, Any]:
    """The config for all linear layers but the head: weights with a scale per output, activations with a dynamic scale
    per token (github.com/vllm-project/compressed-tensors).
    """
    scheme = {"num_bits": 8, "type": kind, "symmetric": True, "group_size": None, "block_structure": None}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {**scheme, "strategy": "channel", "dynamic": False},
                "input_activations": {**scheme, "strategy": "token", "dynamic": True},
                "output_activations": None,
            }
        },
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
    }


def check_eight_bit_shapes(config: ModelConfig) -> None:
    """Raises QuantizationError if a layer's inputs are not a whole number of the kernels' blocks."""
    odd = sorted(inputs for inputs in linear_inputs(config) if inputs % ELEMENTS)
    if odd:
        raise QuantizationError(f"layers with {', '.join(map(str, odd))} inputs; multiples of {ELEMENTS} are needed")


TOP = 448.0
BLOCK = 128
Scales = Literal["channel", "block"]


def fp8_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round to E4M3 codes [N, K] and scales float32 [N, 1]; w ~ scale * code, the largest of a row at 448."""
    scales = _nonzero(weight.abs().amax(dim=1, keepdim=True) / TOP)
    return _e4m3(weight / scales), scales


def fp8_blocks(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round to E4M3 codes [N, K] and scales float32 [⌈N / 128⌉, ⌈K / 128⌉]."""
    rows, columns = weight.shape
    padded = functional.pad(weight, (0, -columns % BLOCK, 0, -rows % BLOCK))
    grid = padded.view(padded.shape[0] // BLOCK, BLOCK, padded.shape[1] // BLOCK, BLOCK)
    scales = _nonzero(grid.abs().amax(dim=(1, 3)) / TOP)
    return _e4m3(weight / spread(scales, rows, columns)), scales


def spread(scales: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Repeat block scales for each weight [rows, columns]."""
    return scales.repeat_interleave(BLOCK, 0)[:rows].repeat_interleave(BLOCK, 1)[:, :columns]


def _e4m3(numbers: torch.Tensor) -> torch.Tensor:
    # Numbers above the largest code would become NaN.
    return numbers.clamp(-TOP, TOP).to(torch.float8_e4m3fn)


def _nonzero(scales: torch.Tensor) -> torch.Tensor:
    return torch.where(scales > 0, scales, 1.0)


class FP8(QuantizationMethod):
    """E4M3 weights; activations are rounded dynamically. `scales` "channel" is stored as compressed-tensors
    "float-quantized", "block" in the format of "fp8" checkpoints.
    """

    name = "fp8"
    needs = "nothing"
    default_dtype = torch.bfloat16

    def __init__(self, scales: Scales = "channel") -> None:
        self.scales = scales

    def check(self, config: ModelConfig) -> None:
        check_eight_bit_shapes(config)
        odd = sorted(size for size in linear_inputs(config) | linear_outputs(config) if size % BLOCK)
        if self.scales == "block" and odd:
            raise QuantizationError(
                f"layers of {', '.join(map(str, odd))} inputs or outputs are not a whole number of blocks of {BLOCK}; "
                "use scales per channel"
            )

    def quantize(
        self, tensors: LayerTensors, statistics: Statistics, config: ModelConfig, dtype: torch.dtype
    ) -> dict[str, StoredLinear]:
        return {linear: self._stored(tensors[f"{linear}.weight"]) for linear in LINEARS}

    def _stored(self, weight: torch.Tensor) -> StoredLinear:
        if self.scales == "channel":
            codes, scales = fp8_rows(weight)
            return StoredLinear({"weight": codes, "weight_scale": scales}, codes.float() * scales)
        codes, scales = fp8_blocks(weight)
        values = codes.float() * spread(scales, *weight.shape)
        return StoredLinear({"weight": codes, "weight_scale_inv": scales}, values)

    def quantization_config(self) -> dict[str, Any]:
        if self.scales == "channel":
            return compressed_tensors_config("float-quantized", "float")
        return {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [BLOCK, BLOCK],
        }

    def settings(self) -> dict[str, Any]:
        return {"scales": self.scales}


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
    """INT8 weights, a scale per output, stored as compressed-tensors "int-quantized"; with dynamic activations."""

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
