"""Misspelt words of a turn, put right for the classifier alone.

A word that is not frequent and is one edit away from a frequent one counts as that one: a letter is another one,
missing, too many, or exchanged with the next; what ends in one letter more, less or other is another
form of a word. Words of a text in another language would be taken for misspelt English ones: where two thirds
of them are unknown, none is changed. The frequent words are those of the shipped encoder, and words of courtesy.
"""

import re
import string
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from classifier.native import KERNELS

FREQUENT_WORDS = Path(__file__).with_name("frequent_words.txt")
# Shorter words are too near to each other, longer ones are no words.
LEAST, MOST = 5, 24
# Known words of which there must be one in three.
_ONE_OF = 3
# Words with digits, apostrophes or letters beyond ASCII are left as they are.
_RUN = re.compile("[0-9A-Za-z_'\x80-\U0010ffff]+")
_LETTERS = re.compile(f"[A-Za-z]{{{LEAST},{MOST}}}")


def corrected(text: str) -> str:
    """Return `text` with its misspelt words replaced, in lower case; the same string without any. Deterministic."""
    if KERNELS is not None:
        found = KERNELS.corrections(_native(), text)
    else:
        found = list(_corrections(text))
    if not found:
        return text
    parts: list[str] = []
    at = 0
    for start, end, word in found:
        parts += (text[at:start], word)
        at = end
    return "".join((*parts, text[at:]))


@cache
def frequent_words() -> dict[str, int]:
    """Return the frequent words and their ranks, the most frequent first."""
    return {word: rank for rank, word in enumerate(FREQUENT_WORDS.read_text("ascii").split())}


@cache
def _native() -> object:
    return KERNELS.make_spelling(list(frequent_words()))


def _corrections(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield (start, end, the word meant) of each misspelt word."""
    known = frequent_words()
    words = [run for run in _RUN.finditer(text) if _LETTERS.fullmatch(run[0])]
    unknown = [run for run in words if run[0].lower() not in known]
    if len(words) > _ONE_OF * (len(words) - len(unknown)):
        return
    for run in unknown:
        word = run[0].lower()
        near = (one for one in _edits(word) if one in known and not _other_form(one, word))
        meant = min(near, key=known.__getitem__, default=None)
        if meant is not None:
            yield run.start(), run.end(), meant


def _other_form(one: str, word: str) -> bool:
    shorter = min(len(one), len(word)) - (len(one) == len(word))
    return one[:shorter] == word[:shorter]


def _edits(word: str) -> Iterator[str]:
    """Yield what is one edit away from `word`."""
    for at in range(len(word) + 1):
        before, after = word[:at], word[at:]
        if len(after) > 1:
            yield f"{before}{after[1]}{after[0]}{after[2:]}"
        if after:
            yield before + after[1:]
        for letter in string.ascii_lowercase:
            if after:
                yield f"{before}{letter}{after[1:]}"
            yield f"{before}{letter}{after}"
