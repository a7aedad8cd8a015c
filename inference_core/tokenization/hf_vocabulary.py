"""Builds a tokeniser from a Hugging Face folder: tokenizer.json, tokenizer_config.json and chat template.

Files other than tokenizer.json say of tokens which are special or added, and give chat templates.
"""

from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import tokenizers
from tokenizers import Tokenizer

from inference_core.errors import ModelFileError
from inference_core.io.files import JSON_ERRORS, prepare_types
from inference_core.loaders.huggingface.hf_config import end_token_ids
from inference_core.loaders.model_file import MAX_SETTINGS, MAX_TOKENIZER, read_model_file
from inference_core.tokenization.chat_template import ChatTemplate
from inference_core.tokenization.control_tokens import SPM_SPACE, ControlToken, byte_fallback_token, byte_level_token
from inference_core.tokenization.token_bound import TokenBound, byte_fallback_bound, byte_level_bound, producible
from inference_core.tokenization.tokenizer import Vocabulary
from inference_core.tokenization.tokenizer_limits import require_bounded, require_few_added, runs_of_added
from inference_core.tokenization.tokenizer_trial import require_bounded_template, require_small

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
        self.added = _added_token(folder / "tokenizer_config.json", listed)
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
        require_bounded_template(source, self.special, with_tools)
        return ChatTemplate(source, self.special, with_tools)


def decode(file: Path, content: bytes, kind: Any) -> Any:
    """Return a file's JSON as `kind`. Raises ModelFileError."""
    try:
        return msgspec.json.decode(content, type=kind)
    except JSON_ERRORS as error:
        raise ModelFileError(f"{file} is corrupt: {error}") from error


def _table(file: Path) -> dict[str, Any]:
    return decode(file, read_model_file(file, MAX_SETTINGS), dict[str, Any]) if file.exists() else {}


def _added_token(file: Path, listed: Any) -> list[AddedToken]:
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
    """Templates by name, which files write as one text, an object, or a list of objects with `name` and `template`."""
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


# Pre-tokenisers that drop no text.
_LOSSLESS = ("ByteLevel", "Digits", "Metaspace", "Punctuation", "Sequence", "Split")


class _Step(msgspec.Struct):
    """A stage of the pipeline; a `Sequence` contains others."""

    type: str
    decoders: list["_Step"] = []
    pretokenizers: list["_Step"] = []
    normalizers: list["_Step"] = []
    prepend_scheme: str | None = None
    behavior: str | None = None
    pattern: Any = None
    content: str | None = None
    replacement: str | None = None
    prepend: str | None = None


class _Model(msgspec.Struct):
    type: str | None = None
    byte_fallback: bool = False
    continuing_subword_prefix: str | None = None
    end_of_word_suffix: str | None = None
    ignore_merges: bool = False
    merges: list[str | list[str]] = []


class _TokenizerFile(msgspec.Struct):
    """The keys of tokenizer.json that determine the tokens' bytes."""

    model: _Model
    added_tokens: list[AddedToken] = []
    decoder: _Step | None = None
    pre_tokenizer: _Step | None = None
    normalizer: _Step | None = None
    post_processor: Any = None


prepare_types(AddedToken, _TokenizerFile)


def read_hf_vocabulary(folder: Path) -> Vocabulary:
    """Raises ModelFileError if tokenizer.json is missing, corrupt or neither byte-level nor with byte fallback."""
    file = folder / "tokenizer.json"
    content = read_model_file(file, MAX_TOKENIZER)
    described = decode(file, content, _TokenizerFile)
    settings = TokenizerSettings(folder)
    listed = [*described.added_tokens, *settings.added]
    require_few_added(file, (token.content for token in listed), (token.content for token in listed if token.special))
    require_bounded(file, _steps(described.normalizer), _steps(described.pre_tokenizer), described.post_processor)
    require_small(file, content)
    backend = _backend(file, content)
    starts_with_space = any(
        step.type == "Metaspace" and step.prepend_scheme == "first" for step in _steps(described.pre_tokenizer)
    )
    continued = _without_prefix(file, content) if starts_with_space else backend
    described.added_tokens += _added(file, described, settings, backend, continued)
    ids = {name: backend.token_to_id(text) for name, text in settings.special.items()}
    ends = dict.fromkeys([*end_token_ids(folder), ids.get("eos_token")])
    return Vocabulary(
        backend=backend,
        continued=continued,
        controls=[token.control for token in described.added_tokens if token.special],
        literals=[token.control for token in described.added_tokens if not token.special],
        to_bytes=_bytes_rule(file, described),
        chat_template=settings.chat_template(),
        bos_token_id=ids.get("bos_token"),
        eos_token_ids=tuple(end for end in ends if end is not None),
        bound=_bound(described, backend),
    )


def _added(
    file: Path, described: _TokenizerFile, settings: TokenizerSettings, *backends: Tokenizer
) -> list[AddedToken]:
    """Add the tokens that only the settings list to `backends`, and return them."""
    contents = {token.content for token in described.added_tokens}
    more = {token.content: token for token in settings.added if token.content not in contents}
    for text in settings.special.values():
        if text not in contents and text not in more and (number := backends[0].token_to_id(text)) is not None:
            more[text] = AddedToken(id=number, content=text, special=True)
    for special, run in runs_of_added(file, more.values(), len(contents)):
        added = [
            tokenizers.AddedToken(
                token.content, special=special, lstrip=token.lstrip, rstrip=token.rstrip, normalized=token.normalized
            )
            for token in run
        ]
        for backend in dict.fromkeys(backends):
            (backend.add_special_tokens if special else backend.add_tokens)(added)
        for backend, token in product(dict.fromkeys(backends), run):
            if (number := backend.token_to_id(token.content)) != token.id:
                raise ModelFileError(
                    f"{file} has no token {token.id}: tokenizer_config.json calls it {token.content!r}, which would be "
                    f"{number} here; take both files from the same model"
                )
    return list(more.values())


def _bytes_rule(file: Path, described: _TokenizerFile) -> Any:
    if any(step.type == "ByteLevel" for step in _steps(described.decoder)):
        return byte_level_token
    if described.model.byte_fallback:
        return byte_fallback_token
    raise ModelFileError(f"{file}: only byte-level tokenisers and those with byte fallback are supported")


def _steps(step: _Step | None) -> list[_Step]:
    if step is None:
        return []
    parts = (*step.decoders, *step.pretokenizers, *step.normalizers)
    return [step, *(inner for part in parts for inner in _steps(part))]


def _bound(described: _TokenizerFile, backend: Tokenizer) -> TokenBound | None:
    """A token bound; None if the file has a stage that may drop or shorten text in an unknown way."""
    model, splitting, normalizing = described.model, _steps(described.pre_tokenizer), _steps(described.normalizer)
    literals = [token for token in described.added_tokens if not token.special]
    if model.type != "BPE" or model.continuing_subword_prefix or model.end_of_word_suffix:
        return None
    if any(token.lstrip or token.rstrip or (token.normalized and normalizing) for token in literals):
        return None
    if any(step.type not in _LOSSLESS or step.behavior == "Removed" for step in splitting):
        return None
    vocabulary = backend.get_vocab(with_added_tokens=False)
    merged = vocabulary if model.ignore_merges else (_union(merge) for merge in model.merges)
    tokens = producible(vocabulary, {token.content for token in described.added_tokens if token.special}, merged)
    texts = [token.content for token in literals]
    if any(step.type == "ByteLevel" for step in splitting):
        composed = any(step.type == "NFC" for step in normalizing)
        is_known = not model.byte_fallback and all(step.type in ("NFC", "Sequence") for step in normalizing)
        return byte_level_bound(tokens, texts, composed=composed) if is_known else None
    marks = [step.replacement == SPM_SPACE for step in splitting if step.type == "Metaspace"]
    marks += [_marks_spaces(step) for step in normalizing]
    return byte_fallback_bound(tokens, texts) if model.byte_fallback and all(marks) else None


def _marks_spaces(step: _Step) -> bool:
    if step.type == "Replace":
        return (step.pattern, step.content) == ({"String": " "}, SPM_SPACE)
    return step.type in ("Prepend", "Sequence")


def _union(merge: str | list[str]) -> str:
    return merge.replace(" ", "") if isinstance(merge, str) else "".join(merge)


def _without_prefix(file: Path, content: bytes) -> Tokenizer:
    """The same tokeniser without a space before the text: for text after a control token."""
    changed = content.replace(b'"prepend_scheme": "first"', b'"prepend_scheme": "never"')
    changed = changed.replace(b'"prepend_scheme":"first"', b'"prepend_scheme":"never"')
    return _backend(file, changed)


_UNLIKELY = "a \U0010fffd"


def _backend(file: Path, content: bytes) -> Tokenizer:
    try:
        backend = Tokenizer.from_buffer(content)
        backend.no_truncation()
        backend.no_padding()
        # Some kinds of models refuse characters that they do not have, unless they have a token for all of these.
        backend.encode(_UNLIKELY)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # The library raises plain Exception, and its panics are not even that.
        raise ModelFileError(f"{file} is not a tokeniser that `tokenizers` can read: {error}") from error
    return backend
