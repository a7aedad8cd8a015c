"""A GGUF file's tokeniser as the files of a Hugging Face folder."""

from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer, decoders

from inference_core.loaders.gguf_format.gguf_header import GGUFHeader, StringArray
from inference_core.tokenization.gguf_vocabulary import read_gguf_vocabulary
from inference_core.tokenization.token_bytes import SPM_SPACE, byte_level_token

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
    """Which tokens have which role, and the chat template."""
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
    }
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    for key, name in _SPECIAL.items():
        token_id = header.metadata.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(tokens, StringArray) and isinstance(token_id, int) and 0 <= token_id < len(tokens):
            settings[name] = tokens[token_id]
    template = header.metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        settings["chat_template"] = template
    return settings
