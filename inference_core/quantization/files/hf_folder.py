"""Writes the files of a Hugging Face folder other than the weights: settings, tokeniser, chat template."""

import shutil
from pathlib import Path
from typing import Any

import msgspec
import torch

from inference_core.errors import ModelFileError
from inference_core.io.json_errors import JSON_ERRORS
from inference_core.loaders.checkpoint import Checkpoint
from inference_core.loaders.model_file import MAX_SETTINGS, read_model_file
from inference_core.model_config import ModelConfig
from inference_core.tokenization.hf_export import export_tokenizer

WRITTEN = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
# Copied files: everything but the weights and their descriptions, which are written new.
_COPIED = ("*.json", "*.jinja", "tokenizer.model", "merges.txt", "LICENSE*")
_NOT_COPIED = ("config.json", "quantize_config.json", "quant_config.json", "quantization.json")


def write_settings(source: Checkpoint, folder: Path, dtype: torch.dtype, quantization_config: dict[str, Any]) -> None:
    """Write config.json with `quantization_config`, and copy generation settings, tokeniser and chat template.

    Raises ModelFileError for a source whose settings or tokeniser cannot be read.
    """
    if source.path.is_dir():
        described = _folder_config(source.path)
        for file in sorted(file for pattern in _COPIED for file in source.path.glob(pattern)):
            if file.name not in _NOT_COPIED and not file.name.endswith(".safetensors.index.json"):
                shutil.copyfile(file, folder / file.name)
    else:
        described = described_config(source.config)
        write_json(folder / "generation_config.json", {"eos_token_id": list(source.config.eos_token_ids)})
        export_tokenizer(source.path, folder)
    described |= {"torch_dtype": str(dtype).removeprefix("torch."), "quantization_config": quantization_config}
    described.pop("dtype", None)
    write_json(folder / "config.json", described)


def described_config(config: ModelConfig) -> dict[str, Any]:
    """`config` with the keys of config.json."""
    described: dict[str, Any] = {
        "architectures": [WRITTEN[config.architecture]],
        "model_type": config.architecture,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_position,
        "rms_norm_eps": config.rms_eps,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tie_embeddings,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids),
    }
    if config.architecture == "mistral":
        described["sliding_window"] = config.sliding_window
    scaling = config.rope_scaling
    if scaling is not None:
        described["rope_scaling"] = {"rope_type": scaling.kind, "factor": scaling.factor}
        if scaling.kind == "llama3":
            described["rope_scaling"] |= {
                "low_freq_factor": scaling.low_freq_factor,
                "high_freq_factor": scaling.high_freq_factor,
                "original_max_position_embeddings": scaling.original_max_position,
            }
        if scaling.kind == "yarn":
            described["rope_scaling"] |= {
                "original_max_position_embeddings": scaling.original_max_position,
                "attention_factor": scaling.attention_factor,
                "beta_fast": scaling.beta_fast,
                "beta_slow": scaling.beta_slow,
            }
    return described


def write_json(path: Path, value: Any) -> None:
    """Write an indented JSON document."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


def _folder_config(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    try:
        return msgspec.json.decode(read_model_file(file, MAX_SETTINGS), type=dict[str, Any])
    except JSON_ERRORS as error:
        raise ModelFileError(f"{file} cannot be read: {error}") from error
