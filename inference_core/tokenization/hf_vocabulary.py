"""A tokeniser from a Hugging Face folder: tokenizer.json, with tokenizer_config.json and chat template."""

from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

from inference_core.errors import ModelFileError
from inference_core.loaders.hf_config import end_token_ids
from inference_core.loaders.json_errors import JSON_ERRORS
from inference_core.tokenization.chat_template import ChatTemplate
from inference_core.tokenization.control_tokens import ControlToken
from inference_core.tokenization.token_bytes import byte_fallback_token, byte_level_token
from inference_core.tokenization.tokenizer import Vocabulary

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class _AddedToken(msgspec.Struct):
    id: int
    content: str
    special: bool
    lstrip: bool = False
    rstrip: bool = False


class _Step(msgspec.Struct):
    """A stage of the pipeline; `Sequence` holds others."""

    type: str
    decoders: list["_Step"] = []
    pretokenizers: list["_Step"] = []
    prepend_scheme: str | None = None


class _Model(msgspec.Struct):
    byte_fallback: bool = False


class _TokenizerFile(msgspec.Struct):
    """What of tokenizer.json decides how tokens turn into bytes."""

    model: _Model
    added_tokens: list[_AddedToken] = []
    decoder: _Step | None = None
    pre_tokenizer: _Step | None = None


def read_hf_vocabulary(folder: Path) -> Vocabulary:
    """Raises ModelFileError if tokenizer.json is missing, corrupt or neither byte-level nor with byte fallback."""
    file = folder / "tokenizer.json"
    content = _read(file)
    described = _decode(file, content, _TokenizerFile)
    backend = _backend(file, content)
    settings = _settings(folder)
    special = {name: text for name in _SPECIAL_NAMES if (text := _token_text(settings.get(name))) is not None}
    ids = {name: backend.token_to_id(text) for name, text in special.items()}
    ends = dict.fromkeys([*end_token_ids(folder), ids.get("eos_token")])
    starts_with_space = any(
        step.type == "Metaspace" and step.prepend_scheme == "first" for step in _steps(described.pre_tokenizer)
    )
    return Vocabulary(
        backend=backend,
        continued=_without_prefix(file, content) if starts_with_space else backend,
        controls=[
            ControlToken(token.content, token.id, token.lstrip, token.rstrip)
            for token in described.added_tokens
            if token.special
        ],
        literal_tokens={token.id: token.content for token in described.added_tokens if not token.special},
        to_bytes=_bytes_rule(file, described),
        chat_template=_chat_template(folder, settings, special),
        bos_token_id=ids.get("bos_token"),
        eos_token_ids=tuple(end for end in ends if end is not None),
    )


def _bytes_rule(file: Path, described: _TokenizerFile) -> Any:
    if any(step.type == "ByteLevel" for step in _steps(described.decoder)):
        return byte_level_token
    if described.model.byte_fallback:
        return byte_fallback_token
    raise ModelFileError(f"{file}: only byte-level tokenisers and those with byte fallback are supported")


def _steps(step: _Step | None) -> list[_Step]:
    if step is None:
        return []
    return [step, *(inner for part in (*step.decoders, *step.pretokenizers) for inner in _steps(part))]


def _without_prefix(file: Path, content: bytes) -> Tokenizer:
    """The same tokeniser, but a text's start gets no space: for text that follows a control token."""
    changed = content.replace(b'"prepend_scheme": "first"', b'"prepend_scheme": "never"')
    changed = changed.replace(b'"prepend_scheme":"first"', b'"prepend_scheme":"never"')
    return _backend(file, changed)


def _backend(file: Path, content: bytes) -> Tokenizer:
    try:
        backend = Tokenizer.from_buffer(content)
    except Exception as error:  # The library raises plain Exception.
        raise ModelFileError(f"{file} is no tokeniser that `tokenizers` can read: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    return backend


def _settings(folder: Path) -> dict[str, Any]:
    file = folder / "tokenizer_config.json"
    return _decode(file, _read(file), dict[str, Any]) if file.exists() else {}


def _token_text(value: Any) -> str | None:
    """Tokens are written as text or as objects with a `content`."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _chat_template(folder: Path, settings: dict[str, Any], special: dict[str, str]) -> ChatTemplate | None:
    file = folder / "chat_template.jinja"
    source: Any = _text(file) if file.exists() else settings.get("chat_template")
    if isinstance(source, list):  # Several named templates; the one for chats is called default.
        named = [entry for entry in source if isinstance(entry, dict)]
        source = next((entry.get("template") for entry in named if entry.get("name") == "default"), None)
    return ChatTemplate(source, special) if isinstance(source, str) else None


def _text(file: Path) -> str:
    try:
        return _read(file).decode()
    except UnicodeDecodeError as error:
        raise ModelFileError(f"{file} is no UTF-8: {error}") from error


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ModelFileError(f"cannot read {file}: {error.strerror or error}") from error


def _decode(file: Path, content: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(content, type=kind)
    except JSON_ERRORS as error:
        raise ModelFileError(f"{file} is corrupt: {error}") from error
