"""FP8 weights in E4M3 (Micikevicius et al. 2022, SPEC QZ-04), with a scale per output or per block of 128 × 128.

E4M3 has 4 bits of exponent and 3 of mantissa, up to 448: a number keeps a relative precision of 1/16 over many powers
of two, so outliers take nothing from small weights and no calibration is needed.
"""

from typing import Any, Literal

import torch
from torch.nn import functional

from inference_core.errors import QuantizationError
from inference_core.model_config import ModelConfig
from inference_core.quantization.layer import LINEARS, LayerTensors
from inference_core.quantization.methods.eight_bit import check_eight_bit_shapes, compressed_tensors_config
from inference_core.quantization.methods.method import (
    QuantizationMethod,
    Statistics,
    StoredLinear,
    linear_inputs,
    linear_outputs,
)

TOP = 448.0
BLOCK = 128
Scales = Literal["channel", "block"]


def fp8_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """E4M3 codes [N, K] and scales float32 [N, 1]; w ~ scale * code, the greatest of a row at 448."""
    scales = _nonzero(weight.abs().amax(dim=1, keepdim=True) / TOP)
    return _e4m3(weight / scales), scales


def fp8_blocks(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """E4M3 codes [N, K] and scales float32 [⌈N / 128⌉, ⌈K / 128⌉]."""
    rows, columns = weight.shape
    padded = functional.pad(weight, (0, -columns % BLOCK, 0, -rows % BLOCK))
    grid = padded.view(padded.shape[0] // BLOCK, BLOCK, padded.shape[1] // BLOCK, BLOCK)
    scales = _nonzero(grid.abs().amax(dim=(1, 3)) / TOP)
    return _e4m3(weight / spread(scales, rows, columns)), scales


def spread(scales: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Scales of blocks, one for each weight [rows, columns]."""
    return scales.repeat_interleave(BLOCK, 0)[:rows].repeat_interleave(BLOCK, 1)[:, :columns]


def _e4m3(numbers: torch.Tensor) -> torch.Tensor:
    # Numbers above the greatest would become NaN, not the greatest.
    return numbers.clamp(-TOP, TOP).to(torch.float8_e4m3fn)


def _nonzero(scales: torch.Tensor) -> torch.Tensor:
    return torch.where(scales > 0, scales, 1.0)


class FP8(QuantizationMethod):
    """E4M3 weights; activations are rounded as they come. `scales` "channel" is stored as compressed-tensors
    "float-quantized", "block" as "fp8" checkpoints have it.
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
                f"layers of {', '.join(map(str, odd))} inputs or outputs are no whole number of blocks of {BLOCK}; "
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
