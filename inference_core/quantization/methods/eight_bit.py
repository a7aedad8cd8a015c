"""The `quantization_config` of compressed-tensors for 8-bit weights and activations."""

from typing import Any, Literal


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
