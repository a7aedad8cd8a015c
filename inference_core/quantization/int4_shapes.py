"""Which groups of inputs a model's linear layers can be cut into."""

from inference_core.errors import QuantizationError
from inference_core.loaders.huggingface.int4_groups import PER_INT
from inference_core.model_config import ModelConfig
from inference_core.quantization.methods.method import linear_inputs, linear_outputs

GROUP_SIZES = (128, 64, 32)


def group_size_for(config: ModelConfig, wanted: int | None) -> int:
    """`wanted`, or the greatest of `GROUP_SIZES` that divides the inputs of every layer. Raises QuantizationError."""
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
    """Raises QuantizationError for layers that are no whole number of groups, or of words of eight codes."""
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
