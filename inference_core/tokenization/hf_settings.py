"""What a Hugging Face folder's files other than tokenizer.json say of tokens: special, added, chat templates."""

from pathlib import Path
from typing import Any

import msgspec

from inference_core.errors import ModelFileError
from inference_core.io.json_errors import JSON_ERRORS
from inference_core.loaders.model_file import MAX_SETTINGS, read_model_file
from inference_core.tokenization.chat_template import ChatTemplate
from inference_core.tokenization.control_tokens import ControlToken

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
# Of several templates: for chats, and for chats with tools.
_DEFAULT, _WITH_TOOLS = "default", "tool_use"


class AddedToken(msgspec.Struct, kw_only=True):
    """One that the tokeniser looks for in a text before it splits the rest."""

    id: int = -1
    content: str
    special: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False

    @property
    def control(self) -> ControlToken:
        """The token with the white space that it takes with it."""
        return ControlToken(self.content, self.id, self.lstrip, self.rstrip)


class TokenizerSettings:
    """tokenizer_config.json, special_tokens_map.json and the templates of `folder`, as transformers combines them.

    `special`: texts by names such as `bos_token`. `added`: the added tokens that are listed there. Raises
    ModelFileError for files that cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        stated = _table(folder / "tokenizer_config.json")
        listed = stated.get("added_tokens_decoder")
        others = _table(folder / "special_tokens_map.json")
        # Folders without the list are older: in them the map has the last word.
        names = stated | others if listed is None else others | stated
        texts = {name: _token_text(names.get(name) or others.get(name)) for name in _SPECIAL_NAMES}
        self.special = {name: text for name, text in texts.items() if text is not None}
        self.added = _added(folder / "tokenizer_config.json", listed)
        self._template = stated.get("chat_template")

    def chat_template(self) -> ChatTemplate | None:
        """Compile the folder's template, and the one for chats with tools where it is another. Files take precedence
        over the settings. Raises ModelFileError."""
        sources = _sources(self._template)
        file = self._folder / "chat_template.jinja"
        own = {_DEFAULT: _text(file)} if file.exists() else {}
        more = sorted((self._folder / "additional_chat_templates").glob("*.jinja"))
        if own or more:
            sources = own | {other.stem: _text(other) for other in more}
        elif not sources:
            # Of models that read images, too.
            sources = _sources(_table(self._folder / "chat_template.json").get("chat_template"))
        source, with_tools = sources.get(_DEFAULT), sources.get(_WITH_TOOLS)
        if source is None:
            return None
        return ChatTemplate(source, self.special, with_tools)


def decode(file: Path, content: bytes, kind: Any) -> Any:
    """Return a file's JSON as `kind`. Raises ModelFileError."""
    try:
        return msgspec.json.decode(content, type=kind)
    except JSON_ERRORS as error:
        raise ModelFileError(f"{file} is corrupt: {error}") from error


def _table(file: Path) -> dict[str, Any]:
    return decode(file, read_model_file(file, MAX_SETTINGS), dict[str, Any]) if file.exists() else {}


def _added(file: Path, listed: Any) -> list[AddedToken]:
    try:
        by_id = msgspec.convert(listed or {}, dict[int, AddedToken], strict=False)
    except msgspec.ValidationError as error:
        raise ModelFileError(f"{file}: added_tokens_decoder is not a table of tokens: {error}") from error
    return [msgspec.structs.replace(token, id=number) for number, token in sorted(by_id.items())]


def _token_text(value: Any) -> str | None:
    """A token's text, which files write as a string or as an object with a `content`."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _sources(value: Any) -> dict[str, str]:
    """Templates by name, which files write as one text, as an object, or as a list of objects with `name` and
    `template`."""
    if isinstance(value, list):
        entries = [entry for entry in value if isinstance(entry, dict)]
        value = {entry.get("name"): entry.get("template") for entry in entries}
    named = value if isinstance(value, dict) else {_DEFAULT: value}
    return {name: source for name, source in named.items() if isinstance(name, str) and isinstance(source, str)}


def _text(file: Path) -> str:
    try:
        return read_model_file(file, MAX_SETTINGS).decode()
    except UnicodeDecodeError as error:
        raise ModelFileError(f"{file} is not UTF-8: {error}") from error
