"""Split a turn into words: lower-case, without punctuation, digits masked; shared by features and encoder."""

import string

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
