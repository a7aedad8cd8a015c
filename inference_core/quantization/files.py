"""Writes a quantised model as a Hugging Face folder: settings, tokeniser and chat template, and its weights.

Tensors are written as they are made: numbered safetensors files of bounded size, and their index.
"""

import shutil
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders

from inference_core.errors import ModelFileError
from inference_core.io.files import JSON_ERRORS
from inference_core.loaders.checkpoint import Checkpoint
from inference_core.loaders.gguf_format.gguf_header import GGUFHeader, StringArray
from inference_core.loaders.huggingface.hf_checkpoint import INDEX
from inference_core.loaders.model_file import MAX_SETTINGS, read_model_file
from inference_core.model_config import ModelConfig
from inference_core.tokenization.control_tokens import SPM_SPACE, byte_level_token
from inference_core.tokenization.gguf_vocabulary import read_gguf_vocabulary

_SPECIAL = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}


def export_tokenizer(path: Path, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json, chat template included, to `folder`. Raises ModelFileError."""
    vocabulary = read_gguf_vocabulary(path)
    backend: Tokenizer = vocabulary.backend
    if vocabulary.to_bytes is byte_level_token:
        backend.decoder = decoders.ByteLevel()
    else:
        backend.decoder = decoders.Sequence(
            [decoders.Replace(SPM_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    (folder / "tokenizer.json").write_text(backend.to_str(pretty=True), encoding="utf-8")
    settings = msgspec.json.format(msgspec.json.encode(_settings(GGUFHeader(path))), indent=2)
    (folder / "tokenizer_config.json").write_bytes(settings + b"\n")


def _settings(header: GGUFHeader) -> dict[str, Any]:
    """tokenizer_config.json: the special tokens and the chat template."""
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    for key, name in _SPECIAL.items():
        token_id = header.metadata.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(tokens, StringArray) and isinstance(token_id, int) and 0 <= token_id < len(tokens):
            settings[name] = tokens[token_id]
    template = header.metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        settings["chat_template"] = template
    return settings


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
        "rope_theta": config.rope.theta,
        "tie_word_embeddings": config.tie_embeddings,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids),
    }
    if config.architecture == "mistral":
        described["sliding_window"] = config.attention.sliding_window
    scaling = config.rope.scaling
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


SHARD_BYTES = 512 * 2**20


class ShardWriter:
    """Buffers tensors up to `shard_bytes`, then writes them to `folder`. A context manager: at the end it names the
    files and writes the index; after an exception it removes all files.
    """

    def __init__(self, folder: Path, shard_bytes: int = SHARD_BYTES) -> None:
        self._folder = folder
        self._shard_bytes = shard_bytes
        self._held: dict[str, torch.Tensor] = {}
        self._held_bytes = 0
        self._shards: list[tuple[Path, list[str]]] = []
        self.total_bytes = 0

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Add a tensor, and write the buffered ones if they fill a file."""
        self._held[name] = tensor.contiguous()
        self._held_bytes += tensor.nbytes
        self.total_bytes += tensor.nbytes
        if self._held_bytes >= self._shard_bytes:
            self._flush()

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is None:
            self._flush()
            self._name_files()
        else:
            for path, _names in self._shards:
                path.unlink(missing_ok=True)

    def _flush(self) -> None:
        if not self._held:
            return
        path = self._folder / f".shard-{len(self._shards) + 1:05}.tmp"
        save_file(self._held, path, metadata={"format": "pt"})
        self._shards.append((path, list(self._held)))
        self._held, self._held_bytes = {}, 0

    def _name_files(self) -> None:
        total = len(self._shards)
        weight_map: dict[str, str] = {}
        for number, (path, names) in enumerate(self._shards, 1):
            name = "model.safetensors" if total == 1 else f"model-{number:05}-of-{total:05}.safetensors"
            path.replace(self._folder / name)
            weight_map |= dict.fromkeys(names, name)
        if total > 1:
            index = {"metadata": {"total_size": self.total_bytes}, "weight_map": weight_map}
            (self._folder / INDEX).write_bytes(msgspec.json.format(msgspec.json.encode(index), indent=2))
