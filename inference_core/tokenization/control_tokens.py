"""Control tokens in rendered chats: parsed where the template wrote them, plain text where a user did."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from inference_core.errors import InvalidRequestError

# Supplementary private use area B: never meaningful in a prompt, and checked for anyway.
_PRIVATE_USE = range(0x100000, 0x10FFFE)


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
        self._pattern = re.compile("|".join(f"({_pattern(token)})" for token in ordered)) if ordered else None
        self._group_ids = [token.token_id for token in ordered]

    def split(self, text: str) -> Iterator[str | int]:
        """Pieces of plain text and, between them, ids of the control tokens found."""
        position = 0
        for match in self._pattern.finditer(text) if self._pattern else ():
            if match.start() > position:
                yield text[position : match.start()]
            yield self._group_ids[(match.lastindex or 1) - 1]
            position = match.end()
        if position < len(text):
            yield text[position:]


def _pattern(token: ControlToken) -> str:
    before, after = r"\s*" if token.left_strip else "", r"\s*" if token.right_strip else ""
    return f"{before}{re.escape(token.text)}{after}"


class Disguise:
    """Hides control tokens inside text from outside while a chat template arranges it.

    Wherever a control token starts in such text (or may start, since the text ends inside one), its first character is
    exchanged for a private-use character that occurs nowhere in the input. The template sees text of the same length,
    can trim and join it, and the control tokens left in its output are its own.
    """

    def __init__(self, control_texts: tuple[str, ...], outside: Any) -> None:
        self._texts = control_texts
        self._longest = max(map(len, control_texts), default=0)
        used = {character for text in _strings(outside) for character in text if ord(character) in _PRIVATE_USE}
        free = (chr(code) for code in _PRIVATE_USE if chr(code) not in used)
        try:
            self._masks = {first: next(free) for first in dict.fromkeys(text[0] for text in control_texts)}
        except StopIteration:
            raise InvalidRequestError("the messages use up all private-use characters", "messages") from None
        self._unmask = {ord(mask): first for first, mask in self._masks.items()}

    def put_on(self, value: Any) -> Any:
        """`value` (JSON-like) with every string in it disguised; keys of mappings too."""
        if isinstance(value, str):
            return self._disguised(value)
        if isinstance(value, Mapping):
            return {self.put_on(key): self.put_on(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.put_on(item) for item in value]
        return value

    def take_off(self, text: str) -> str:
        return text.translate(self._unmask)

    def _disguised(self, text: str) -> str:
        starts = [p for first in self._masks for p in _positions(text, first) if self._may_start(text, p)]
        if not starts:
            return text
        characters = list(text)
        for position in starts:
            characters[position] = self._masks[characters[position]]
        return "".join(characters)

    def _may_start(self, text: str, position: int) -> bool:
        if text.startswith(self._texts, position):
            return True
        if len(text) - position >= self._longest:
            return False
        tail = text[position:]
        return any(control.startswith(tail) for control in self._texts)


def _positions(text: str, character: str) -> Iterator[int]:
    position = text.find(character)
    while position >= 0:
        yield position
        position = text.find(character, position + 1)


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
