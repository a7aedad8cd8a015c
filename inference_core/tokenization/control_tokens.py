"""What tokens stand for: bytes, which vocabularies store as printable characters, and control tokens in chats.

Control tokens of rendered chats are parsed if the template wrote them, and plain text if a user did. So is every other
added token that the template writes: its `special` flag says whether a reader sees it, not who may write it
(DeepSeek's `<｜User｜>` and Qwen3's `<tool_call>` are not special).
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from inference_core.errors import InvalidRequestError, ModelFileError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SPM_SPACE = "\u2581"


def byte_level_alphabet() -> dict[str, int]:
    """GPT-2's bijection between 256 printable characters and bytes.

    Printable Latin-1 bytes map to themselves; the others to U+0100 and following, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(hidden)}


# To Latin-1; characters of Latin-1 that stand for no byte become one that it lacks.
_TO_BYTES = dict.fromkeys(range(256), 0x100) | {ord(letter): byte for letter, byte in byte_level_alphabet().items()}


def byte_level_token(text: str) -> bytes:
    """The bytes of a byte-level token: `Ġhello` -> b' hello'. Raises ModelFileError if it is not one."""
    try:
        return text.translate(_TO_BYTES).encode("latin-1")
    except UnicodeEncodeError as error:
        raise ModelFileError(f"token {text!r} has {text[error.start]!r}, which is not a byte's character") from error


def byte_fallback_token(text: str) -> bytes:
    """The bytes of a SentencePiece token with byte fallback: `▁hello` -> b' hello', `<0x0A>` -> a newline."""
    byte = _BYTE_TOKEN.fullmatch(text)
    return bytes([int(byte[1], 16)]) if byte else text.replace(SPM_SPACE, " ").encode()


# Supplementary private use area B: meaningless in prompts; characters that occur anyway are not used.
_PRIVATE_USE = range(0x100000, 0x10FFFE)
# Regular expressions hold the interpreter lock during a search, so text is searched in pieces of this many characters.
_WINDOW = 1 << 14
_SPACE = re.compile(r"\s*")


@dataclass(frozen=True, slots=True)
class ControlToken:
    """`left_strip` / `right_strip`: the token also consumes the white space on that side."""

    text: str
    token_id: int
    left_strip: bool = False
    right_strip: bool = False


class ControlTokens:
    """The control tokens of one vocabulary."""

    def __init__(self, tokens: Iterable[ControlToken]) -> None:
        # Longest first, since a regular expression takes the first alternative that matches.
        ordered = sorted((token for token in tokens if token.text), key=lambda token: -len(token.text))
        self.ids: dict[str, int] = {token.text: token.token_id for token in ordered}
        self.texts = tuple(self.ids)
        self._tokens = {token.text: token for token in ordered}
        self._longest = max(map(len, self.texts), default=0)
        self._pattern = _by_first_character(self.texts, "(?:%s)")

    def split(self, text: str) -> Iterator[str | int]:
        """Split into pieces of plain text and ids of the control tokens between them."""
        position = 0
        for match in self._found(text) if self.texts else ():
            token = self._tokens[match[0]]
            piece = text[position : match.start()]
            if token.left_strip:
                piece = piece.rstrip()
            if piece:
                yield piece
            yield token.token_id
            position = match.end()
            if token.right_strip and (space := _SPACE.match(text, position)):
                position = space.end()
        if position < len(text):
            yield text[position:]

    def _found(self, text: str) -> Iterator[re.Match[str]]:
        """Complete control tokens, from left to right."""
        start = 0
        while start < len(text):
            match = self._pattern.search(text, start, start + _WINDOW + self._longest)
            if match is not None and match.start() <= start + _WINDOW:
                yield match
                start = match.end()
            else:
                start = start + _WINDOW if match is None else match.start()


class TextMask:
    """Masks control tokens in untrusted text while a chat template renders it.

    Where a control token starts in such text (or may start at its end), its first character is replaced by a
    private-use character that does not occur in the input. The template sees text of the same length and may trim and
    join it; the control tokens in its output are its own.
    """

    def __init__(self, control_texts: tuple[str, ...], outside: Any) -> None:
        self._watch(control_texts)
        used: set[str] = set()
        for text in _strings(outside):
            # In pieces, so that the interpreter lock is not held for the whole text.
            for at in range(0, 0 if text.isascii() else len(text), _WINDOW):
                used.update(text[at : at + _WINDOW])
        free = (chr(code) for code in _PRIVATE_USE if chr(code) not in used)
        try:
            self._masks = {first: next(free) for first in dict.fromkeys(text[0] for text in control_texts)}
        except StopIteration:
            raise InvalidRequestError("the messages use up all private-use characters", "messages") from None

    def only(self, control_texts: tuple[str, ...]) -> "TextMask":
        """Return a mask of these of the control tokens, which `remove` of this one takes off, too."""
        narrower = copy(self)
        narrower._watch(control_texts)
        return narrower

    def _watch(self, control_texts: tuple[str, ...]) -> None:
        self._texts = control_texts
        self._longest = max(map(len, control_texts), default=0)
        self._starts = _starts(control_texts)

    def apply(self, value: Any) -> Any:
        """Return `value` (JSON-like) with every string masked, including keys of mappings."""
        if isinstance(value, str):
            return self._disguised(value)
        if isinstance(value, Mapping):
            return {self.apply(key): self.apply(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.apply(item) for item in value]
        return value

    def remove(self, text: str) -> str:
        for first, mask in self._masks.items():
            text = text.replace(mask, first)
        return text

    def _disguised(self, text: str) -> str:
        if not any(first in text for first in self._masks):
            return text
        pieces = [
            self._starts.sub(self._mask, text[at : at + _WINDOW + self._longest])[:_WINDOW]
            for at in range(0, len(text), _WINDOW)
        ]
        disguised = "".join(pieces)
        end = max(len(text) - self._longest + 1, 0)
        return disguised[:end] + "".join(self._masked_end(text, at, disguised[at]) for at in range(end, len(text)))

    def _mask(self, start: re.Match[str]) -> str:
        return self._masks[start[0]]

    def _masked_end(self, text: str, position: int, disguised: str) -> str:
        """The mask for a position where a control token starts that may continue after the end of the text."""
        tail = text[position:]
        return self._masks[tail[0]] if any(control.startswith(tail) for control in self._texts) else disguised


@lru_cache(maxsize=64)
def _starts(control_texts: tuple[str, ...]) -> re.Pattern[str]:
    """A pattern for the first character of every control token, including one inside another."""
    return _by_first_character(control_texts, "(?=%s)")


def _by_first_character(texts: tuple[str, ...], rest: str) -> re.Pattern[str]:
    """A pattern that finds first characters fast, and checks what follows them with `rest`."""
    following: dict[str, list[str]] = {}
    for text in texts:
        following.setdefault(text[0], []).append(re.escape(text[1:]))
    return re.compile("|".join(re.escape(first) + rest % "|".join(more) for first, more in following.items()))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)
