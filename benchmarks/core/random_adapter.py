"""Adapters of real shapes with random weights, to measure speed without training one. Their output is noise."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from safetensors.numpy import save_file

from inference_core.lora.adapter import adapter_targets
from inference_core.lora.adapter_file import CONFIG_FILE, WEIGHTS_FILE
from inference_core.model_config import ModelConfig


def write_random_adapter(folder: Path, config: ModelConfig, rank: int, seed: int = 0, strength: float = 0.01) -> None:
    """Write a PEFT folder that changes all seven linear layers of every block of a `config` model, in float32.

    `strength`: the magnitude of the update to a layer's outputs, which are about 1.
    """
    generator = np.random.default_rng(seed)
    tensors: dict[str, Any] = {}
    for layer in range(config.num_layers):
        for name, target in adapter_targets(config).items():
            module = f"base_model.model.model.layers.{layer}.{target.parent}.{name}"
            down = generator.standard_normal((rank, target.inputs), np.float32)
            up = generator.standard_normal((target.outputs, rank), np.float32)
            tensors[f"{module}.lora_A.weight"] = down / np.float32(np.sqrt(target.inputs))
            tensors[f"{module}.lora_B.weight"] = up * np.float32(strength / np.sqrt(rank))
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / WEIGHTS_FILE)
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": list(adapter_targets(config))}
    (folder / CONFIG_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(settings), indent=2))
