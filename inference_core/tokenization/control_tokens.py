"""What tokens stand for: bytes, which vocabularies store as printable characters, and control tokens in chats.

Control tokens of rendered chats are parsed if the template wrote them, and plain text if a user did. So is every other
added token that the template writes: its `special` flag says whether a reader sees it, not who may write it
(DeepSeek's `<｜User｜>` and Qwen3's `<tool_call>` are not special).
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
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
    """A control token of a tokeniser."""

    text: str
    token_id: int
    left_strip: bool = False
    """The token also consumes the white space on its left."""
    right_strip: bool = False
    """The token also consumes the white space on its right."""


class ControlTokens:
    """The control tokens of one vocabulary."""

    def __init__(self, tokens: Iterable[ControlToken]) -> None:
        # Longest first, since a regular expression takes the first alternative that matches.
        ordered = sorted((token for token in tokens if token.text), key=lambda token: -len(token.text))
        self.ids: dict[str, int] = {token.text: token.token_id for token in ordered}
        self.texts = tuple(self.ids)
        self._tokens = {token.text: token for token in ordered}
        self._longest = max(map(len, self.texts), default=0)
        self._pattern = re.compile("|".join(map(re.escape, self.texts)))

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


@dataclass(frozen=True)
class Marks:
    """Control tokens, which only a template may write."""

    texts: tuple[str, ...]
    sought: tuple[str, ...] = ()
    """What the template looks for in messages. It stays where it is no control token."""
    rests: frozenset[str] = frozenset()
    """Rests of control tokens that the template begins, as in `'<' + name + '>'`."""
    parts: frozenset[str] = frozenset()
    """The beginnings of these tokens."""
    names: frozenset[str] = frozenset(("system", "developer", "user", "assistant", "tool", "function"))
    """Roles, and texts that the template knows, such as keys. They never count as such a rest."""

    @classmethod
    def of(cls, texts: tuple[str, ...], sought: frozenset[str], literals: Collection[str]) -> "Marks":
        """`literals`: what the template writes or compares with; of one with a `{` the part before it is sought."""
        beginnings = {text[:end] for text in texts for end in range(1, len(text))}
        before_braces = {text.partition("{")[0] for text in literals}
        kept = sought.union(before_braces - beginnings)
        longest = max(map(len, texts), default=0)
        endings = {text[-length:] for text in literals for length in range(1, min(longest, len(text) + 1))}
        rests = frozenset(
            text[len(ending) :] for ending in endings & beginnings for text in texts if text.startswith(ending)
        )
        parts = frozenset(rest[:end] for rest in rests for end in range(1, len(rest)))
        return cls(texts, tuple(kept.difference(texts, ("",))), rests, parts, cls.names.union(literals))

    def without(self, own: Set[str]) -> "Marks":
        """Return these where `own` of the control tokens may stay."""
        return replace(self, texts=tuple(t for t in self.texts if t not in own), sought=(*self.sought, *own))

    @cached_property
    def longest(self) -> int:
        return max(map(len, (*self.texts, *self.sought)), default=0)

    @cached_property
    def first(self) -> frozenset[str]:
        return frozenset(text[0] for text in self.texts)

    @cached_property
    def starts(self) -> re.Pattern[str]:
        """A pattern for characters that may start a control token, if the template cuts or joins what follows, too."""
        patterns = []
        for first in self.first:
            whole, stays = ([re.escape(t[1:]) for t in of if t[0] == first] for of in (self.texts, self.sought))
            patterns.append(re.escape(first) + (f"(?:(?={'|'.join(whole)})|(?!{'|'.join(stays)}))" if stays else ""))
        return re.compile("|".join(patterns))


class TextMask:
    """Masks control tokens in untrusted text while a chat template renders it.

    Characters that may start one, or go on with one that the template began, become private-use characters that do not
    occur in the input. The template may trim, cut and join what it sees; control tokens in its output are its own.
    """

    def __init__(self, marks: Marks, outside: Any) -> None:
        self._marks = marks
        used: set[str] = set()
        for text in _strings(outside):
            # In pieces, so that the interpreter lock is not held for the whole text. An escape has up to 12 characters.
            for at in range(0, 0 if text.isascii() and "\\" not in text else len(text), _WINDOW):
                used.update(text[at : at + _WINDOW], map(_unescaped, _ESCAPED.findall(text, at, at + _WINDOW + 12)))
        free = (chr(code) for code in _PRIVATE_USE if chr(code) not in used)
        try:
            self._masks = {first: next(free) for first in marks.first.union(rest[0] for rest in marks.rests)}
        except StopIteration:
            raise InvalidRequestError("the messages use up all private-use characters", "messages") from None

    def only(self, marks: Marks) -> "TextMask":
        """Return a mask of these of the control tokens, which `remove` of this one takes off, too."""
        narrower = copy(self)
        narrower._marks = marks
        return narrower

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
        for first, mask in () if text.isascii() else self._masks.items():
            text = text.replace(mask, first)
        if "\\" in text:
            firsts = {mask: first for first, mask in self._masks.items()}
            text = _ESCAPED.sub(lambda escape: firsts.get(_unescaped(escape[0]), escape[0]), text)
        return text

    def _disguised(self, text: str) -> str:
        marks = self._marks
        start = len(text) - len(said := text.lstrip())
        is_rest = said in marks.parts or any(said[:end] in marks.rests for end in range(1, marks.longest))
        if is_rest and text not in marks.names:
            text = text[:start] + self._masks[said[0]] + said[1:]
        if not any(first in text for first in marks.first):
            return text
        ends = [(at, at + _WINDOW + marks.longest) for at in range(0, len(text), _WINDOW)]
        disguised = "".join(
            marks.starts.sub(lambda start: self._masks[start[0]], text[at:end])[:_WINDOW] for at, end in ends
        )
        # A control token that starts at the end may go on after it.
        end = max(len(text) - marks.longest + 1, 0)
        return disguised[:end] + "".join(
            self._masks[kept] if kept in marks.first and any(c.startswith(text[at:]) for c in marks.texts) else kept
            for at, kept in enumerate(disguised[end:], end)
        )


# How a template writes a mask in a list or an object, and in JSON of ASCII alone.
_ESCAPED = re.compile(r"\\U0010[0-9a-f]{4}|\\udb[c-f][0-9a-f]\\ud[c-f][0-9a-f]{2}")


def _unescaped(escape: str) -> str:
    return escape.encode().decode("unicode_escape").encode("utf-16", "surrogatepass").decode("utf-16")


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
