"""Builds a tokeniser from a Hugging Face folder: tokenizer.json, tokenizer_config.json and chat template."""

from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import tokenizers
from tokenizers import Tokenizer

from inference_core.errors import ModelFileError
from inference_core.loaders.huggingface.hf_config import end_token_ids
from inference_core.loaders.model_file import MAX_TOKENIZER, read_model_file
from inference_core.tokenization.hf_settings import AddedToken, TokenizerSettings, decode
from inference_core.tokenization.token_bound import TokenBound, byte_fallback_bound, byte_level_bound, producible
from inference_core.tokenization.token_bytes import SPM_SPACE, byte_fallback_token, byte_level_token
from inference_core.tokenization.tokenizer import Vocabulary
from inference_core.tokenization.tokenizer_limits import require_bounded, require_few_added, runs_of_added

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


def read_hf_vocabulary(folder: Path) -> Vocabulary:
    """Raises ModelFileError if tokenizer.json is missing, corrupt or neither byte-level nor with byte fallback."""
    file = folder / "tokenizer.json"
    content = read_model_file(file, MAX_TOKENIZER)
    described = decode(file, content, _TokenizerFile)
    settings = TokenizerSettings(folder)
    listed = [*described.added_tokens, *settings.added]
    require_few_added(file, (token.content for token in listed), (token.content for token in listed if token.special))
    require_bounded(file, _steps(described.normalizer), _steps(described.pre_tokenizer))
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
    known = {token.content for token in described.added_tokens}
    more = {token.content: token for token in settings.added if token.content not in known}
    for text in settings.special.values():
        if text not in known and text not in more and (number := backends[0].token_to_id(text)) is not None:
            more[text] = AddedToken(id=number, content=text, special=True)
    for special, run in runs_of_added(file, more.values(), len(known)):
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
        # Some kinds of models refuse characters that they do not have, unless they have a token for all of these.
        backend.encode(_UNLIKELY)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # The library raises plain Exception, and its panics are not even that.
        raise ModelFileError(f"{file} is not a tokeniser that `tokenizers` can read: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    return backend
