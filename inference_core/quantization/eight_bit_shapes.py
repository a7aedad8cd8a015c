"""Which models' linear layers can be stored in 8 bits."""

from inference_core.errors import QuantizationError
from inference_core.loaders.huggingface.scaled_blocks import ELEMENTS
from inference_core.model_config import ModelConfig
from inference_core.quantization.methods.method import linear_inputs


def check_eight_bit_shapes(config: ModelConfig) -> None:
    """Raises QuantizationError for inputs that are no whole number of blocks, as our kernels read them."""
    odd = sorted(inputs for inputs in linear_inputs(config) if inputs % ELEMENTS)
    if odd:
        raise QuantizationError(f"layers with {', '.join(map(str, odd))} inputs; multiples of {ELEMENTS} are needed")
