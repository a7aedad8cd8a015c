"""What transformers' classes make of config.json: defaults, and the keys that change logits, found by changing them.

`python -m tests.inference_core.loaders.config_keys` writes the table that the loader reads.
"""

import dataclasses
import json
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from inference_core.loaders.huggingface.hf_config import TABLE
from inference_core.model_config import Architecture
from tests.inference_core.models.test_decoder_against_transformers import ARCHITECTURES, checkpoint_folder

KINDS: tuple[str, ...] = get_args(Architecture)
CASES = {config.model_type: name for name, config in reversed(ARCHITECTURES.items())}
TOKENS = torch.randint(3, 128, (1, 70), generator=torch.Generator().manual_seed(3))
MISSING = object()
# Of files, not of the computation; transformers reads some of them.
_OF_FILES = {"architectures", "auto_map", "dtype", "model_type", "torch_dtype", "transformers_version", "_name_or_path"}
# Asked of every class by what all models share; no file of a language model has them.
_SHARED = {"base_model_ep_plan", "base_model_fsdp_plan", "base_model_pp_plan", "base_model_tp_plan", "decoder"}
_SHARED |= {
    "default_rope_type",
    "generator",
    "gradient_checkpointing",
    "is_causal",
    "is_heterogeneous",
    "kv_sharing_modes",
}
_SHARED |= {
    "name_or_path",
    "text_config",
    "vision_aspect_ratio",
    "vision_feature_layer",
    "vision_feature_select_strategy",
}
# Keys that classes of other architectures have, and that files of this one may have by mistake.
_FOREIGN = {
    "rope_scaling": {"rope_type": "linear", "factor": 3.0},
    "rope_theta": 500.0,
    "partial_rotary_factor": 0.5,
    "attention_chunk_size": 8,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "head_dim": 8,
    "per_layer_config": {"1": {"sliding_window": 8}},
    "rms_norm_eps": 0.5,
    "tie_word_embeddings": True,
    "use_sliding_window": True,
    "sliding_window_pattern": 3,
    "no_rope_layers": [0, 1, 1],
    "mlp_only_layers": [1],
    "num_local_experts": 3,
    "num_experts": 3,
    "hidden_act": "gelu",
    "hidden_activation": "gelu",
    "rope_local_base_freq": 500.0,
}


class Folder:
    """A folder of one architecture whose config.json can be changed key by key."""

    def __init__(self, kind: str, path: Path) -> None:
        checkpoint_folder(CASES[kind], path)
        self.kind, self.path, self._file = kind, path, path / "config.json"
        self.config: dict[str, Any] = json.loads(self._file.read_text())

    def change(self, key: str, value: Any) -> None:
        """Set one key of the file as it was saved, or leave it out."""
        changed = {name: old for name, old in self.config.items() if name != key}
        self._file.write_text(json.dumps(changed if value is MISSING else changed | {key: value}))

    def logits(self) -> torch.Tensor | None:
        """Log-probabilities of transformers, [tokens, vocabulary]; None where it refuses the file."""
        try:
            model, told = transformers.AutoModelForCausalLM.from_pretrained(
                self.path, attn_implementation="eager", dtype=torch.float32, output_loading_info=True
            )
            if told["missing_keys"] or told["mismatched_keys"] or told["unexpected_keys"]:
                return None
            with torch.no_grad():
                return model.eval()(TOKENS).logits[0].log_softmax(-1)
        except Exception:  # Whatever a class raises for a value that it does not take.
            return None

    def names(self) -> list[str]:
        """All keys that may matter: of the file, of the class, and those that its forward pass asks for."""
        fields = {field.name for field in dataclasses.fields(CONFIG_MAPPING[self.kind])}
        own = (fields - _base_fields()) | set(self.config) | _read_keys(self.kind) | set(_FOREIGN)
        return sorted(own - _SHARED - set(ignored_keys()) - {"quantization_config"})


def variants(folder: Folder, key: str) -> Iterator[Any]:
    """Other values of a key."""
    value = folder.config.get(key)
    if key in folder.config:
        yield MISSING
    if key in _FOREIGN:
        yield _FOREIGN[key]
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, max(value // 2, 1))
    elif isinstance(value, float):
        yield from (value * 2 or 0.5, value / 2)
    elif isinstance(value, str):
        yield from ("relu", "gelu_pytorch_tanh") if "act" in key else ("other",)
    elif isinstance(value, list):
        yield list(reversed(value))
    elif value is None:
        yield from (True, 2, 0.5)


def table() -> dict[str, Any]:
    """The table for all architectures. `ignored`: keys of every class that change no logits."""
    logging.disable(logging.WARNING)
    return {
        "ignored": ignored_keys(),
        "architectures": {kind: _of_architecture(kind) for kind in KINDS},
    }


def ignored_keys() -> list[str]:
    generation = set(transformers.GenerationConfig().to_dict())
    return sorted((_base_fields() | generation | _OF_FILES) - {"per_layer_config"})


def _of_architecture(kind: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as path:
        folder = Folder(kind, Path(path))
        usual = folder.logits()
        assert usual is not None
        changing = [key for key in folder.names() if _changes(folder, key, usual)]
        others = sorted(set(folder.names()) - set(changing))
    return {"defaults": defaults(kind), "effective": changing, "without_effect": others}


def _changes(folder: Folder, key: str, usual: torch.Tensor) -> bool:
    for value in variants(folder, key):
        folder.change(key, value)
        logits = folder.logits()
        if logits is None or not torch.equal(logits, usual):
            return True
    return False


def defaults(kind: str) -> dict[str, Any]:
    """The defaults of an architecture's class that it does not share with all classes."""
    cls = CONFIG_MAPPING[kind]
    found: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        if field.name in cls.__annotations__:
            default = field.default_factory() if callable(field.default_factory) else field.default
            found[field.name] = default
    theta = cls.default_theta
    found["rope_theta"] = theta["global"] if isinstance(theta, dict) else theta
    return dict(sorted(found.items()))


def _base_fields() -> set[str]:
    return {field.name for field in dataclasses.fields(transformers.PreTrainedConfig)}


def _read_keys(kind: str) -> set[str]:
    """The attributes of its settings that a model asks for when it is built and run, its class has them or not."""
    config = ARCHITECTURES[CASES[kind]]
    cls, asked = type(config), set[str]()

    def traced(self: Any, name: str) -> Any:
        asked.add(name)
        return cls.__getattribute__(self, name)

    copy = cls.from_dict(config.to_dict())
    copy.__class__ = type(cls.__name__, (cls,), {"__getattribute__": traced})
    with torch.no_grad():
        transformers.AutoModelForCausalLM._model_mapping[cls](copy).eval()(TOKENS)
    return {name for name in asked if not name.startswith("_") and not callable(getattr(cls, name, None))}


if __name__ == "__main__":
    TABLE.write_text(json.dumps(table(), indent=1) + "\n")
