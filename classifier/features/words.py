"""How a turn is cut into words: lower-case, punctuation dropped, digits masked; shared by features and encoder."""

import string

# On bytes, since translating non-ASCII text character by character is many times slower. Digits become "0": a
# number's length carries over to other prompts and its value does not. Punctuation separates words, apostrophes vanish
# ("don't" → "dont").
_SEPARATORS = string.punctuation.encode()
_TABLE = bytes.maketrans(_SEPARATORS + string.digits.encode(), b" " * len(_SEPARATORS) + b"0" * 10)
_DROPPED = b"'`"
_TYPOGRAPHIC = {"’": "", "‘": " ", "“": " ", "”": " ", "–": " ", "—": " ", "…": " "}


def tokenise(turn: str) -> list[str]:
    """Lower-case words of `turn` in order; a number is "0" to "000…" by its length."""
    lower = turn.lower()
    if not lower.isascii():
        for mark, plain in _TYPOGRAPHIC.items():
            lower = lower.replace(mark, plain)
    return lower.encode(errors="replace").translate(_TABLE, _DROPPED).decode().split()
