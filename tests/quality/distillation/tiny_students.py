"""Tiny random models for the tests of training: a base, a copy with an adapter merged, and questions with answers."""

import random
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from inference_core.loaders.huggingface.hf_config import read_config
from inference_core.loaders.packed_tensor import dequantize
from inference_core.lora.adapter import adapter_targets
from inference_core.lora.adapter_file import read_adapter
from quality.distillation.examples import Example

WORDS = {"a": "north", "b": "south", "c": "east", "d": "west"}


def questions(count: int, seed: int = 0) -> list[Example]:
    """Questions of their own, whose first letter decides the answer."""
    draws = random.Random(seed)
    numbers = draws.sample(range(1000, 10_000), count)
    asked = [(draws.choice(list(WORDS)), number) for number in numbers]
    return [
        Example(turns=[{"role": "user", "content": f"{letter} {number}?"}], answer=WORDS[letter])
        for letter, number in asked
    ]


def merged_folder(base: Path, adapter: Path, folder: Path) -> Path:
    """A copy of `base` with W + alpha / r * B A in place of every W that `adapter` changes."""
    shutil.copytree(base, folder)
    config = read_config(base)
    tensors = load_file(base / "model.safetensors")
    for index, layer in enumerate(read_adapter(adapter, config).layers):
        for name, low in layer.items():
            weight = f"model.layers.{index}.{adapter_targets(config)[name].parent}.{name}.weight"
            up, down = torch.from_numpy(dequantize(low.up).copy()), torch.from_numpy(dequantize(low.down).copy())
            tensors[weight] = tensors[weight] + low.scale * up @ down
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
