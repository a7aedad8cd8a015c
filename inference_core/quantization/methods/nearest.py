"""Rounding to nearest: 4-bit weights without calibration, the baseline that AWQ and GPTQ are measured against."""

from typing import Any

import torch

from inference_core.model_config import ModelConfig
from inference_core.quantization.files.int4_files import awq_parts
from inference_core.quantization.layer import LINEARS, LayerTensors
from inference_core.quantization.methods.awq import awq_config
from inference_core.quantization.methods.int4_grid import int4_grid
from inference_core.quantization.methods.int4_method import Int4Method, group_size_for
from inference_core.quantization.methods.method import Statistics, StoredLinear


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
