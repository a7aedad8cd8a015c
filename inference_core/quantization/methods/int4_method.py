"""What methods that store 4-bit weights in groups have in common: the size of groups, and where zero lies in them."""

from typing import Any

import torch

from inference_core.model_config import ModelConfig
from inference_core.quantization.methods.int4_method import check_int4_shapes, group_size_for
from inference_core.quantization.methods.method import QuantizationMethod


class Int4Method(QuantizationMethod):
    """4-bit weights in groups of `group_size` inputs; None: the greatest usual one that fits the model."""

    default_dtype = torch.float16

    def __init__(self, group_size: int | None = None, *, symmetric: bool = False) -> None:
        self.group_size = group_size
        self.symmetric = symmetric

    def check(self, config: ModelConfig) -> None:
        self.group_size = group_size_for(config, self.group_size)
        check_int4_shapes(config, self.group_size)

    def settings(self) -> dict[str, Any]:
        return {"group_size": self.group_size, "symmetric": self.symmetric}
