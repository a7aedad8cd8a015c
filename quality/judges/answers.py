"""The final answer inside a text: a number or an option's letter, cleaned up so that equal answers compare equal."""

import re
import unicodedata
from decimal import Decimal, InvalidOperation

_NUMBER = r"[-+]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:[eE][-+]?\d{1,3})?|[-+]?\.\d+"
# The guards keep us off digits inside words, times and dates: 17:40, v2, 2024-05-01 and 3/4 are not one number each.
_STANDALONE = re.compile(rf"(?<![\w.,:/])(?<![\d)]-)({_NUMBER})(?![\w:/])(?!-\d)")
_UNIT = r"[^\W\d_]{1,15}(?:\s[^\W\d_]{1,15})?"
_BARE = re.compile(rf"[$€£]?\s?({_NUMBER})\s?(?:%|°|{_UNIT})?")
_MARKERS = (
    re.compile(rf"####\s*[$€£]?\s?({_NUMBER})"),
    re.compile(rf"\\boxed\{{\s*[$€£]?\s?({_NUMBER})[^{{}}]*\}}"),
    re.compile(rf"\banswer\s*(?:is|are|:|=)+\s*[$€£]?\s?({_NUMBER})(?![\w:/])", re.IGNORECASE),
)
_ASKS_FOR_NUMBER = re.compile(
    r"\bhow\s+(?:many|much|old|far|long|tall|fast|heavy)\b|\b(?:calculate|compute|count)\b"
    r"|\bwhat\s+is\s+the\s+(?:\w+\s+)?(?:total|sum|product|difference|quotient|remainder|average|mean|number|value|"
    r"probability|percentage|area|volume|perimeter|speed|cost|price)\b"
    r"|\bwhich\s+(?:number|value)\b|\d\s*[-+*/×÷^]\s*\d|\b(?:the|only a) number only\b",
    re.IGNORECASE,
)
_OPTION = re.compile(r"^[ \t]*\(?([A-J])[).:][ \t]+(\S.*?)[ \t]*$", re.MULTILINE)
_LETTER_MARKER = re.compile(r"\b(?:answer|option|choice)\s*(?:is|are|:|=)*\s*\(?([A-J])\b\)?(.*)", re.IGNORECASE)
_LETTER_FIRST = re.compile(r"\(?([A-J])(?:[).:](?:\s|$)|$)")


def clean(text: str) -> str:
    """`text` in one Unicode form without Markdown emphasis, code ticks, quotes around it and surplus white space."""
    text = unicodedata.normalize("NFKC", text).replace("−", "-").replace("–", "-")
    text = re.sub(r"\*\*|__|`", "", text)
    text = re.sub(r"\s+", " ", text).strip()
    return text.strip("\"'“”‘’ ")


def normalised(text: str) -> str:
    """`clean` in lower case without a final full stop, for texts that are equal whatever their dress."""
    return clean(text).casefold().rstrip(".! ").strip("\"'“”‘’ ")


def asks_for_number(prompt: str) -> bool:
    """Whether the right answer to `prompt` is one quantity."""
    return _ASKS_FOR_NUMBER.search(prompt) is not None


def numbers(text: str) -> list[Decimal]:
    """Every free-standing number in `text`, in order."""
    return [value for match in _STANDALONE.findall(clean(text)) if (value := _decimal(match)) is not None]


def final_number(text: str) -> Decimal | None:
    """The number that `text` gives as its answer, or None if it gives none clearly.

    In this order: the last marked one (`#### 7`, `\\boxed{7}`, "the answer is 7"); a text or last line that is nothing
    but a number with a unit; what the last "=" equals; the only number of the last sentence that has any.
    """
    text = "\n".join(clean(line) for line in text.strip().splitlines() if clean(line))
    if not text:
        return None
    for marker in _MARKERS:
        if found := marker.findall(text):
            return _decimal(found[-1])
    for part in (text, text.splitlines()[-1]):
        if bare := _BARE.fullmatch(part.rstrip(".! ")):
            return _decimal(bare.group(1))
    if equals := re.search(rf"=\s*[$€£]?\s?({_NUMBER})[^=\d]*$", text):
        return _decimal(equals.group(1))
    for sentence in reversed(re.split(r"(?<=[.!?])\s+|\n", text)):
        found = numbers(sentence)
        if found:
            return found[0] if len(set(found)) == 1 else None
    return None


def options(prompt: str) -> dict[str, str]:
    """The options of a multiple-choice prompt by letter, empty if it is none: at least A and B, without gaps."""
    found = {letter: clean(text) for letter, text in _OPTION.findall(prompt)}
    letters = "".join(sorted(found))
    return found if len(found) >= 2 and "ABCDEFGHIJ".startswith(letters) else {}


def choice_letter(text: str, offered: dict[str, str]) -> str | None:
    """Which of `offered` (see `options`) the text chooses, or None if that is not clear."""
    flat = clean(text)
    if first := _LETTER_FIRST.match(flat):
        return first.group(1) if first.group(1) in offered else None
    for letter, option in offered.items():
        if normalised(flat) in (normalised(option), normalised(f"{letter} {option}")):
            return letter
    for marked in reversed(list(_LETTER_MARKER.finditer(flat))):
        letter, rest = marked.group(1).upper(), marked.group(2)
        # "the answer is a fishing rod" is option A only if option A is the fishing rod.
        if letter in offered and (not re.match(r"\s+\w", rest) or _continues(rest, offered[letter])):
            return letter
    return None


def _continues(rest: str, option: str) -> bool:
    return normalised(rest).startswith(normalised(option))


def _decimal(text: str) -> Decimal | None:
    try:
        return Decimal(text.replace(",", "")).normalize()
    except InvalidOperation:
        return None
