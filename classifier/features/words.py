"""Words of a turn, and which of a few short texts occur in it: shared by features, encoder and rules of the input.

Words are lower-case, without punctuation, digits masked. Short texts are found in one pass where kernels are built.
"""

import string
from collections.abc import Iterable

from classifier.native import KERNELS

# On bytes, because translating non-ASCII text character by character is many times slower. Digits become "0": a
# number's length generalises to other prompts, its value does not. Punctuation separates words, apostrophes are dropped
# ("don't" → "dont").
_SEPARATORS = string.punctuation.encode()
_TABLE = bytes.maketrans(_SEPARATORS + string.digits.encode(), b" " * len(_SEPARATORS) + b"0" * 10)
_DROPPED = b"'`"
_TYPOGRAPHIC = {"’": "", "‘": " ", "“": " ", "”": " ", "–": " ", "—": " ", "…": " "}


def tokenise(turn: str) -> list[str]:
    """Return the lower-case words of `turn` in order; a number is "0" to "000…" by its length."""
    lower = turn.lower()
    if not lower.isascii():
        for mark, plain in _TYPOGRAPHIC.items():
            lower = lower.replace(mark, plain)
    return lower.encode(errors="replace").translate(_TABLE, _DROPPED).decode().split()


class Marks:
    """At most 64 ASCII texts of two characters or more, to be looked for together."""

    def __init__(self, marks: Iterable[str]) -> None:
        self._marks = tuple(marks)
        self._native = None if KERNELS is None else KERNELS.make_marks(self._marks)

    def within(self, text: str) -> list[str]:
        """Return the marks that occur in `text`, in their own order."""
        if KERNELS is not None and text.isascii():
            found: list[str] = KERNELS.marks_in(self._native, text)
            return found
        return [mark for mark in self._marks if mark in text]
