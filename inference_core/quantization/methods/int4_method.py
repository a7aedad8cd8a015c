"""What the 4-bit methods share: the group size, symmetry, and which models they can store."""

from typing import Any

import torch

from inference_core.errors import QuantizationError
from inference_core.loaders.huggingface.group_format import PER_INT
from inference_core.model_config import ModelConfig
from inference_core.quantization.methods.method import QuantizationMethod, linear_inputs, linear_outputs

GROUP_SIZES = (128, 64, 32)


class Int4Method(QuantizationMethod):
    """4-bit weights in groups of `group_size` inputs; None: the largest of `GROUP_SIZES` that fits the model."""

    default_dtype = torch.float16

    def __init__(self, group_size: int | None = None, *, symmetric: bool = False) -> None:
        self.group_size = group_size
        self.symmetric = symmetric

    def check(self, config: ModelConfig) -> None:
        self.group_size = group_size_for(config, self.group_size)
        check_int4_shapes(config, self.group_size)

    def settings(self) -> dict[str, Any]:
        return {"group_size": self.group_size, "symmetric": self.symmetric}


def group_size_for(config: ModelConfig, wanted: int | None) -> int:
    """`wanted`, or the largest of `GROUP_SIZES` that divides the inputs of every layer. Raises QuantizationError."""
    if wanted is not None:
        return wanted
    found = next((size for size in GROUP_SIZES if all(inputs % size == 0 for inputs in linear_inputs(config))), None)
    if found is None:
        raise QuantizationError(
            f"layers with {_listed(linear_inputs(config))} inputs cannot be cut into groups of "
            f"{_listed(GROUP_SIZES)}; use int8 or fp8"
        )
    return found


def check_int4_shapes(config: ModelConfig, group_size: int) -> None:
    """Raises QuantizationError for layers that are not a whole number of groups, or of words of eight codes."""
    bad = [inputs for inputs in linear_inputs(config) if inputs % group_size]
    if group_size not in GROUP_SIZES or bad:
        fitting = [size for size in GROUP_SIZES if all(inputs % size == 0 for inputs in linear_inputs(config))]
        raise QuantizationError(
            f"groups of {group_size} do not divide the layers' {_listed(linear_inputs(config))} inputs; "
            f"{f'groups of {_listed(fitting)} do' if fitting else 'no usual group does: use int8 or fp8'}"
        )
    odd = [outputs for outputs in linear_outputs(config) if outputs % PER_INT]
    if odd:
        raise QuantizationError(f"{_listed(odd)} outputs do not fill words of {PER_INT} codes; use int8 or fp8")


def _listed(numbers: set[int] | list[int] | tuple[int, ...]) -> str:
    return ", ".join(map(str, sorted(numbers)))
