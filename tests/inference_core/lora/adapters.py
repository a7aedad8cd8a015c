"""PEFT folders with random weights, and models that have such an adapter merged into theirs."""

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from inference_core.loaders.checkpoint import Checkpoint
from inference_core.loaders.packed_tensor import PackedTensor, bfloat16_to_float32, dequantize, float32_to_bfloat16
from inference_core.lora.adapter import Adapter, adapter_targets
from inference_core.model_config import ModelConfig, RotaryEmbedding

MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
TINY = ModelConfig(
    architecture="llama",
    vocab_size=160,
    hidden_size=64,
    intermediate_size=96,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    max_position=256,
    rms_eps=1e-5,
    rope=RotaryEmbedding(theta=1e4),
)


def write_adapter(
    folder: Path,
    config: ModelConfig = TINY,
    *,
    rank: int = 4,
    seed: int = 0,
    modules: tuple[str, ...] = MODULES,
    layers: list[int] | None = None,
    strength: float = 0.3,
    ranks: Mapping[str, int] | None = None,
    changed: Mapping[str, np.ndarray[Any, Any]] | None = None,
    **settings: object,
) -> Path:
    """A folder as PEFT saves it. `strength`: of what the adapter adds, against weights of one over the root of their
    inputs. `ranks`: by module, where they differ. `changed`: tensors to add or replace."""
    generator = np.random.default_rng(seed)
    tensors: dict[str, Any] = {}
    for layer in range(config.num_layers) if layers is None else layers:
        for name in modules:
            place, own = adapter_targets(config)[name], (ranks or {}).get(name, rank)
            module = f"base_model.model.model.layers.{layer}.{place.parent}.{name}"
            down = generator.standard_normal((own, place.inputs)) / np.sqrt(place.inputs)
            up = generator.standard_normal((place.outputs, own)) * strength / np.sqrt(own)
            tensors[f"{module}.lora_A.weight"] = down.astype(np.float32)
            tensors[f"{module}.lora_B.weight"] = up.astype(np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors | dict(changed or {}), folder / "adapter_model.safetensors")
    described = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": list(modules)} | settings
    (folder / "adapter_config.json").write_text(json.dumps(described))
    return folder


class MergedCheckpoint(Checkpoint):
    """`base` with W + scale * B A in place of every W that `adapter` changes, in float32; `rounded`: A and B in
    bfloat16."""

    def __init__(self, base: Checkpoint, adapter: Adapter, *, rounded: bool = False) -> None:
        super().__init__(base.path, None)
        self._base = base
        self._adapter = adapter
        self._rounded = rounded

    @property
    def config(self) -> ModelConfig:
        return self._base.config

    @cached_property
    def tensors(self) -> Mapping[str, PackedTensor]:
        merged = dict(self._base.tensors)
        for index, layer in enumerate(self._adapter.layers):
            for name, low in layer.items():
                tensor = f"model.layers.{index}.{adapter_targets(self.config)[name].parent}.{name}.weight"
                delta = low.scale * self._factor(low.up) @ self._factor(low.down)
                weight = (dequantize(merged[tensor]) + delta).astype(np.float32)
                merged[tensor] = PackedTensor("F32", weight.shape, weight)
        return merged

    @cached_property
    def fingerprint(self) -> str:
        return f"{self._base.fingerprint[:15]}{int(self._rounded)}{self._adapter.digest.hex()[:16]}"

    def _factor(self, tensor: PackedTensor) -> np.ndarray[Any, np.dtype[np.float64]]:
        values = dequantize(tensor)
        if self._rounded:
            values = bfloat16_to_float32(float32_to_bfloat16(values))
        return values.astype(np.float64)
