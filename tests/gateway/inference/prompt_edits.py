"""Small edits of a prompt: harmless ones leave its answer as it is, the others ask for something else."""

import random
import re
from collections.abc import Callable, Sequence

import msgspec

_LONG_WORD = re.compile(r"\b[^\W\d_]{4,}\b")
_NUMBER = re.compile(r"\d+")
_SYMBOL = re.compile(r"[-+*/^=<>(),]")
_VERB = re.compile(r"\b(?:is|are|was|were|can|does|did|will|should)\b")
_CONTRACTED = (
    ("What is", "What's"),
    ("do not", "don't"),
    ("does not", "doesn't"),
    ("is not", "isn't"),
    ("it is", "it's"),
)

Edit = Callable[[str, random.Random, Sequence[str]], str | None]


class PromptEdit(msgspec.Struct, frozen=True):
    """`edit` makes another text of a prompt, or None where there is nothing to edit; `words` may be put in."""

    name: str
    harmless: bool
    edit: Edit


def words_of(text: str) -> list[str]:
    """The words of four letters and more."""
    return _LONG_WORD.findall(text)


def _replaced(text: str, found: re.Match[str] | None, by: str) -> str | None:
    return None if found is None or found[0] == by else text[: found.start()] + by + text[found.end() :]


def _one(pattern: re.Pattern[str], text: str, rng: random.Random) -> re.Match[str] | None:
    found = list(pattern.finditer(text))
    return rng.choice(found) if found else None


def _other_word(text: str, rng: random.Random, words: Sequence[str]) -> str | None:
    return _replaced(text, _one(_LONG_WORD, text, rng), rng.choice(words))


def _two_swapped(text: str, rng: random.Random, words: Sequence[str]) -> str | None:
    found = list(_LONG_WORD.finditer(text))
    if len(found) < 2:
        return None
    a, b = sorted(rng.sample(found, 2), key=lambda word: word.start())
    swapped = text[: a.start()] + b[0] + text[a.end() : b.start()] + a[0] + text[b.end() :]
    return None if swapped == text else swapped


def _other_number(text: str, rng: random.Random, words: Sequence[str]) -> str | None:
    found = _one(_NUMBER, text, rng)
    return None if found is None else _replaced(text, found, str(int(found[0]) + 1))


def _negated(text: str, rng: random.Random, words: Sequence[str]) -> str | None:
    found = _one(_VERB, text, rng)
    return None if found is None else _replaced(text, found, f"{found[0]} not")


def _other_symbol(text: str, rng: random.Random, words: Sequence[str]) -> str | None:
    return _replaced(text, _one(_SYMBOL, text, rng), rng.choice("-+*/^=<>(),"))


def _courteous(text: str, rng: random.Random, words: Sequence[str]) -> str | None:
    return f"Please {text[:1].lower()}{text[1:]}" if text[1:2].islower() else None


def _spaced(text: str, rng: random.Random, words: Sequence[str]) -> str | None:
    return text.replace(" ", "  ") if " " in text else None


def _curly(text: str, rng: random.Random, words: Sequence[str]) -> str | None:
    return text.replace("'", "’") if "'" in text else None


def _without_mark(text: str, rng: random.Random, words: Sequence[str]) -> str | None:
    return text[:-1] if text[-1:] in (".", "?") else None


def _other_capital(text: str, rng: random.Random, words: Sequence[str]) -> str | None:
    return text[:1].swapcase() + text[1:] if text[:1].isalpha() and text[1:2].islower() else None


def _contracted(text: str, rng: random.Random, words: Sequence[str]) -> str | None:
    edited = text
    for whole, short in _CONTRACTED:
        edited = edited.replace(whole, short)
    return None if edited == text else edited


EDITS = (
    PromptEdit("another first letter's case", True, _other_capital),
    PromptEdit("white space doubled", True, _spaced),
    PromptEdit("last mark left out", True, _without_mark),
    PromptEdit("curly apostrophes", True, _curly),
    PromptEdit("contractions", True, _contracted),
    PromptEdit('"please" in front', True, _courteous),
    PromptEdit("one word replaced", False, _other_word),
    PromptEdit("two words swapped", False, _two_swapped),
    PromptEdit("one number higher by 1", False, _other_number),
    PromptEdit('one "not" more', False, _negated),
    PromptEdit("one symbol replaced", False, _other_symbol),
)
