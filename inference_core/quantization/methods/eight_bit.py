"""What the 8-bit methods share: which models they can store, and the `quantization_config` of compressed-tensors."""

from typing import Any, Literal

from inference_core.errors import QuantizationError
from inference_core.loaders.huggingface.scaled_blocks import ELEMENTS
from inference_core.model_config import ModelConfig
from inference_core.quantization.methods.method import linear_inputs


def compressed_tensors_config(
    form: Literal["int-quantized", "float-quantized"], kind: Literal["int", "float"]
) -> dict[str, Any]:
    """All linear layers but the head: weights with a scale per output, activations with one per token, made as they
    come (github.com/vllm-project/compressed-tensors).
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
    """Raises QuantizationError for inputs that are no whole number of blocks, as our kernels read them."""
    odd = sorted(inputs for inputs in linear_inputs(config) if inputs % ELEMENTS)
    if odd:
        raise QuantizationError(f"layers with {', '.join(map(str, odd))} inputs; multiples of {ELEMENTS} are needed")
