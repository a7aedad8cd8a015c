"""Control tokens in rendered chats: parsed where the template wrote them, plain text where a user did."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from inference_core.errors import InvalidRequestError

# Supplementary private use area B: never meaningful in a prompt, and checked for anyway.
_PRIVATE_USE = range(0x100000, 0x10FFFE)
# Regular expressions hold the interpreter until they have found something: they look at so many characters at a time.
_WINDOW = 1 << 14
_SPACE = re.compile(r"\s*")


@dataclass(frozen=True, slots=True)
class ControlToken:
    """`left_strip` / `right_strip`: the token also swallows the white space on that side."""

    text: str
    token_id: int
    left_strip: bool = False
    right_strip: bool = False


class ControlTokens:
    """The control tokens of one vocabulary."""

    def __init__(self, tokens: Iterable[ControlToken]) -> None:
        # Longest first: a regular expression takes the first alternative that matches.
        ordered = sorted((token for token in tokens if token.text), key=lambda token: -len(token.text))
        self.ids: dict[str, int] = {token.text: token.token_id for token in ordered}
        self.texts = tuple(self.ids)
        self._tokens = {token.text: token for token in ordered}
        self._longest = max(map(len, self.texts), default=0)
        self._pattern = _by_first_character(self.texts, "(?:%s)")

    def split(self, text: str) -> Iterator[str | int]:
        """Pieces of plain text and, between them, ids of the control tokens found."""
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
        """Control tokens from left to right, each where it is seen whole."""
        start = 0
        while start < len(text):
            match = self._pattern.search(text, start, start + _WINDOW + self._longest)
            if match is not None and match.start() <= start + _WINDOW:
                yield match
                start = match.end()
            else:
                start = start + _WINDOW if match is None else match.start()


class TextMask:
    """Hides control tokens inside text from outside while a chat template arranges it.

    Wherever a control token starts in such text (or may start, since the text ends inside one), its first character is
    exchanged for a private-use character that occurs nowhere in the input. The template sees text of the same length,
    can trim and join it, and the control tokens left in its output are its own.
    """

    def __init__(self, control_texts: tuple[str, ...], outside: Any) -> None:
        self._texts = control_texts
        self._longest = max(map(len, control_texts), default=0)
        self._starts = _starts(control_texts)
        used: set[str] = set()
        for text in _strings(outside):
            # A piece at a time, so that the interpreter is not held for the whole of it.
            for at in range(0, 0 if text.isascii() else len(text), _WINDOW):
                used.update(text[at : at + _WINDOW])
        free = (chr(code) for code in _PRIVATE_USE if chr(code) not in used)
        try:
            self._masks = {first: next(free) for first in dict.fromkeys(text[0] for text in control_texts)}
        except StopIteration:
            raise InvalidRequestError("the messages use up all private-use characters", "messages") from None

    def apply(self, value: Any) -> Any:
        """`value` (JSON-like) with every string in it disguised; keys of mappings too."""
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
        """The character in that place, where a control token begins that may go on after the end."""
        tail = text[position:]
        return self._masks[tail[0]] if any(control.startswith(tail) for control in self._texts) else disguised


@lru_cache(maxsize=64)
def _starts(control_texts: tuple[str, ...]) -> re.Pattern[str]:
    """Finds the first character of every control token, also of one within another."""
    return _by_first_character(control_texts, "(?=%s)")


def _by_first_character(texts: tuple[str, ...], rest: str) -> re.Pattern[str]:
    """Looks for a character, and only where it is at what may follow it, put into `rest`."""
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
