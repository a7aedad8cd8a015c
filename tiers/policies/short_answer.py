"""Which prompts ask for a short answer that can be compared, and what a text's answer is."""

import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal

AnswerKind = Literal["number", "choice", "yes-no"]

_NUMBER = r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:/[1-9]\d*)?"
_SAID = r"\banswer(?:\s+is)?\s*:?\s*"

_CREATIVE = re.compile(
    r"\b(write|draft|compose|implement|translate|summari[sz]e|rewrite|paraphrase|essay|poem|story|code|function)\b",
    re.I,
)
_OPTION = re.compile(r"(?:^|\s)\(?([A-H])[).:]\s", re.M)
_COUNTED = re.compile(r"\bhow (many|much|old|far|long|tall|fast)\b|\bwhat (number|percentage|fraction)\b", re.I)
_COMPUTED = re.compile(
    r"\b(calculate|compute|evaluate|solve|add|subtract|multiply|divide|sum|product|difference|remainder|quotient"
    r"|total|what is|what's|plus|minus|times)\b|=\s*\??\s*$",
    re.I,
)
_ARITHMETIC = re.compile(r"\d\s*(?:[-+*/×÷^]|\bplus\b|\bminus\b|\btimes\b|\bdivided by\b)\s*\(?-?\d", re.I)
_NUMBER_ASKED = re.compile(r"\b(only|just|single|with) (a|the|one)?\s*(number|integer|digit)\b", re.I)
_YES_NO_ASKED = re.compile(r"\b(yes|true)\s*(?:or|/)\s*(no|false)\b", re.I)
_POLAR = re.compile(r"^\s*(is|are|was|were|does|did)\b[^?.!\n]*\?\s*$", re.I)
_NOT_POLAR = re.compile(r"\b(or|why|how|explain|what|which|there (a|any) way)\b", re.I)
_YES_NO = r"(yes|no|true|false)\b"
MAX_SHORT_WORDS = 25


def answer_kind(prompt: str) -> AnswerKind | None:
    """The kind of short answer that `prompt` asks for, or None. Errs on the side of None."""
    if {"A", "B"} <= {m.group(1) for m in _OPTION.finditer(prompt)}:
        return "choice"
    if _CREATIVE.search(prompt):
        return None
    if _YES_NO_ASKED.search(prompt):
        return "yes-no"
    if _asks_number(prompt):
        return "number"
    is_short = len(prompt.split()) <= MAX_SHORT_WORDS
    if is_short and _POLAR.match(prompt) and not _NOT_POLAR.search(prompt):
        return "yes-no"
    return None


def _asks_number(prompt: str) -> bool:
    is_short = len(prompt.split()) <= MAX_SHORT_WORDS
    if _NUMBER_ASKED.search(prompt):
        return True
    if _ARITHMETIC.search(prompt) and _COMPUTED.search(prompt):
        return True
    return bool(_COUNTED.search(prompt)) and (is_short or any(c.isdigit() for c in prompt))


def extract_answer(kind: AnswerKind, text: str) -> str | None:
    """The answer that `text` gives, in a normal form that is equal for equal answers; None if it gives none."""
    if kind == "number":
        return _number(text)
    return _option(text) if kind == "choice" else _yes_no(text)


def majority(answers: Sequence[str | None]) -> int:
    """Index of the first sample that gave the most frequent answer; the earlier answer wins a tie.

    Samples without an answer do not vote; if none has one, the first sample stands.
    """
    votes = Counter(answer for answer in answers if answer is not None)
    if not votes:
        return 0
    most = max(votes.values())
    return next(i for i, answer in enumerate(answers) if answer is not None and votes[answer] == most)


def _number(text: str) -> str | None:
    for pattern in (rf"####\s*\$?({_NUMBER})", rf"\\boxed\{{\s*\$?({_NUMBER})", rf"{_SAID}[*$\\(]*({_NUMBER})"):
        said = re.findall(pattern, text, re.I)
        if said:
            return _normal(said[-1])
    found = re.findall(_NUMBER, text)
    return _normal(found[-1]) if found else None


def _normal(number: str) -> str:
    above, _, below = number.replace(",", "").partition("/")
    return str(Fraction(above) / Fraction(below or "1"))


def _option(text: str) -> str | None:
    said = re.findall(rf"(?i:{_SAID})[*(]*([A-H])\b(?!')", text)
    if said:
        return str(said[-1])
    for pattern in (r"^\W*([A-H])(?:[).:*]|\s*$)", r"\(([A-H])\)", r"\b([A-H])[).:]"):
        found = re.search(pattern, text)
        if found:
            return found.group(1)
    return None


def _yes_no(text: str) -> str | None:
    found = re.search(rf"{_SAID}[*]*{_YES_NO}", text, re.I) or re.search(rf"\b{_YES_NO}", text, re.I)
    if found is None:
        return None
    return "yes" if found.group(1).lower() in ("yes", "true") else "no"
