"""Extract the final answer of a text in a normalised form: a number, an option, yes or no."""

import re
import unicodedata
from fractions import Fraction
from typing import Literal

import msgspec

_NUMBER = r"[-+]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:[eE][-+]?\d{1,3})?(?:/[1-9]\d*)?|[-+]?\.\d+"
# The guards exclude digits within words, times and dates: 17:40, v2, 2024-05-01 and 3/4/24 are not numbers.
_STANDALONE = re.compile(rf"(?<![\w.,:/])(?<![\d)]-)({_NUMBER})(?![\w:/])(?!-\d)")
_UNIT = r"[^\W\d_]{1,15}(?:\s[^\W\d_]{1,15})?"
_BARE = re.compile(rf"[$€£]?\s?({_NUMBER})\s?(?:%|°|{_UNIT})?")
_MARKERS = (
    re.compile(rf"####\s*[$€£]?\s?({_NUMBER})"),
    re.compile(rf"\\boxed\{{\s*[$€£]?\s?({_NUMBER})[^{{}}]*\}}"),
    re.compile(rf"\banswer\s*(?:is|are|:|=)+\s*[$€£]?\s?({_NUMBER})(?![\w:/])", re.IGNORECASE),
)
_COUNTED = re.compile(
    r"\bhow\s+(?:many|much|old|far|long|tall|fast|heavy)\b|\bwhat\s+(?:number|percentage|fraction)\b", re.IGNORECASE
)
_MEASURED = re.compile(
    r"\bwhat\s+is\s+the\s+(?:\w+\s+)?(?:total|sum|product|difference|quotient|remainder|average|mean|number|value|"
    r"probability|percentage|area|volume|perimeter|speed|cost|price)\b|\bwhich\s+(?:number|value)\b"
    r"|\b(?:calculate|compute|count)\s+(?:the|how)\b",
    re.IGNORECASE,
)
_COMPUTED = re.compile(
    r"\b(?:calculate|compute|evaluate|solve|add|subtract|multiply|divide|sum|product|difference|remainder|quotient"
    r"|total|what is|what's|plus|minus|times)\b|=\s*\??\s*$",
    re.IGNORECASE,
)
_ARITHMETIC = re.compile(r"\d\s*(?:[-+*/×÷^]|\bplus\b|\bminus\b|\btimes\b|\bdivided by\b)\s*\(?-?\d", re.IGNORECASE)
_NUMBER_ALONE = re.compile(
    r"\b(?:only|just|single|with)\s+(?:a|the|one)?\s*(?:number|integer|digit)\b|\bthe number only\b", re.IGNORECASE
)
_OPTION_LINE = re.compile(r"^[ \t]*\(?([A-J])[).:][ \t]+(\S.*?)[ \t]*$", re.MULTILINE)
_OPTION_INLINE = re.compile(r"(?:^|\s)\(?([A-J])\)\s+(\S.*?)(?=\s\(?[A-J]\)\s|$)", re.DOTALL)
_LETTER_MARKER = re.compile(r"\b(?:answer|option|choice)\s*(?:is|are|:|=)*\s*\(?([A-J])\b\)?(.*)", re.IGNORECASE)
_LETTER_FIRST = re.compile(r"\(?([A-J])(?:[).:](?:\s|$)|$)")
_LETTER_ALONE = re.compile(r"(?<![\w'])\(?([A-J])[).:](?:[\s,;]|$)")
_YES_NO = r"(yes|no|true|false)\b"
_SAID_YES_NO = re.compile(rf"\banswer(?:\s+is)?\s*:?\s*[*]*{_YES_NO}", re.IGNORECASE)
_ANY_YES_NO = re.compile(rf"\b{_YES_NO}", re.IGNORECASE)
SHORT_WORDS = 25
SHORT_JSON_CHARS = 500
CHECKABLE_CHARS = 6000  # of prompt and answer; reading more would delay other requests
MAX_NUMBER_CHARS = 100  # longer numbers are useless, and Python refuses to format some thousand digits


def clean(text: str) -> str:
    """Return `text` in one Unicode form without Markdown emphasis, code ticks, outer quotes and surplus white space."""
    text = unicodedata.normalize("NFKC", text).replace("−", "-").replace("–", "-")
    text = re.sub(r"\*\*|__|`", "", text)
    text = re.sub(r"\s+", " ", text).strip()
    return text.strip("\"'“”‘’ ")


def normalised(text: str) -> str:
    """Return `clean` in lower case without a final full stop, for comparing texts."""
    return clean(text).casefold().rstrip(".! ").strip("\"'“”‘’ ")


def is_short(prompt: str) -> bool:
    """Return whether `prompt` is a question of few words."""
    return len(prompt.split()) <= SHORT_WORDS


def asks_for_number(prompt: str) -> bool:
    """Return whether the right answer to `prompt` is one quantity."""
    if _NUMBER_ALONE.search(prompt) or _MEASURED.search(prompt):
        return True
    if _ARITHMETIC.search(prompt) and _COMPUTED.search(prompt):
        return True
    is_question = is_short(prompt) or prompt.rstrip().endswith("?") or any(c.isdigit() for c in prompt)
    return is_question and _COUNTED.search(prompt) is not None


def numbers(text: str) -> list[Fraction]:
    """Return every free-standing number in `text`, in order."""
    return [value for match in _STANDALONE.findall(clean(text)) if (value := _value(match)) is not None]


def final_number(text: str) -> Fraction | None:
    """Return the number that `text` gives as its answer, or None if it gives none clearly.

    In this order: the last marked one (`#### 7`, `\\boxed{7}`, "the answer is 7"); a text or last line that is only a
    number with a unit; the value after the last "="; the only number of the last sentence that has any.
    """
    text = "\n".join(clean(line) for line in text.strip().splitlines() if clean(line))
    if not text:
        return None
    for marker in _MARKERS:
        if found := marker.findall(text):
            return _value(found[-1])
    for part in (text, text.splitlines()[-1]):
        if bare := _BARE.fullmatch(part.rstrip(".! ")):
            return _value(bare.group(1))
    if equals := re.search(rf"=\s*[$€£]?\s?({_NUMBER})[^=\d]*$", text):
        return _value(equals.group(1))
    for sentence in reversed(re.split(r"(?<=[.!?])\s+|\n", text)):
        candidates = numbers(sentence)
        if candidates:
            return candidates[0] if len(set(candidates)) == 1 else None
    return None


def likely_number(text: str) -> Fraction | None:
    """Return `final_number`, or without a clear one the last number of `text`: good enough for voting, not for
    judging."""
    clear = final_number(text)
    return clear if clear is not None else next(reversed(numbers(text)), None)


def options(prompt: str) -> dict[str, str]:
    """Return the options of a multiple-choice prompt by letter: at least A and B, without gaps; empty for other
    prompts."""
    for pattern in (_OPTION_LINE, _OPTION_INLINE):
        found = {letter: clean(text) for letter, text in pattern.findall(prompt)}
        letters = "".join(sorted(found))
        if len(found) >= 2 and "ABCDEFGHIJ".startswith(letters):
            return found
    return {}


def choice_letter(text: str, offered: dict[str, str]) -> str | None:
    """Return which of `offered` (see `options`) the text chooses, or None if that is unclear."""
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
    alone = {letter for letter in _LETTER_ALONE.findall(flat) if letter in offered}
    return alone.pop() if len(alone) == 1 else None


def yes_or_no(text: str) -> Literal["yes", "no"] | None:
    """Return the text's answer to a polar question: after "answer" if there is one, else its first yes, no, true or
    false."""
    found = _SAID_YES_NO.search(text) or _ANY_YES_NO.search(text)
    if found is None:
        return None
    return "yes" if found.group(1).lower() in ("yes", "true") else "no"


def checkable_answer(prompt: str, text: str) -> str | None:
    """Return the normalised final answer of `text` if `prompt` has one right answer: an option, a number, or short
    JSON. None for other prompts, for long texts, and if `text` gives no clear answer."""
    if len(prompt) + len(text) > CHECKABLE_CHARS:
        return None
    if offered := options(prompt):
        letter = choice_letter(text, offered)
        return None if letter is None else f"option {letter}"
    if asks_for_number(prompt):
        number = final_number(text)
        return None if number is None else f"number {number}"
    return _short_json(text)


def agreement(prompt: str, text: str, other: str) -> float | None:
    """Return 1 if two answers to `prompt` have the same final answer, else 0; None if `text` has none to check."""
    own = checkable_answer(prompt, text)
    return None if own is None else float(checkable_answer(prompt, other) == own)


def _short_json(text: str) -> str | None:
    stripped = text.strip()
    if len(stripped) > SHORT_JSON_CHARS or not stripped.startswith(("{", "[")):
        return None
    try:
        return msgspec.json.encode(msgspec.json.decode(stripped), order="sorted").decode()
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _continues(rest: str, option: str) -> bool:
    return normalised(rest).startswith(normalised(option))


def _value(number: str) -> Fraction | None:
    if len(number) > MAX_NUMBER_CHARS:
        return None
    above, _, below = number.replace(",", "").partition("/")
    return Fraction(above) / Fraction(below or "1")
