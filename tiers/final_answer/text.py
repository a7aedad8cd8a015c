"""Bounded parts of prompts and answers, in one form, and the places where a text marks its final answer.

Strangers write both. Marks are boxes, tags, double brackets, `####`, an answer key, "answer:".
"""

import json
import re
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

SHORT_WORDS = 25
CHECKABLE_CHARS = 6000  # of a prompt and of an answer; reading more would delay other requests
_HEAD_CHARS = 2000

_REFUSAL = re.compile(
    r"\b(?:as an ai\b|i (?:do not|don't|am not|'m not|cannot|can't|could not|couldn't|am unable|was unable)\b"
    r"|i'm (?:not sure|unable|sorry)|sorry\b|unknown\b|unsure\b|unclear\b"
    r"|not (?:known|certain|sure|available|specified)\b"
    r"|no (?:idea|information|data)\b|it depends\b|cannot be determined\b|n/a\b|impossible to (?:say|know|tell)\b)",
    re.IGNORECASE,
)
_EMPHASIS, _SPACE = re.compile(r"\*\*|__|`"), re.compile(r"\s+")
_NEGATED = re.compile(r"\b(?:not|never|neither|nor|isn't|aren't|wasn't|weren't|doesn't|don't|cannot|can't)\b", re.I)


def word_set(words: str) -> frozenset[str]:
    return frozenset(words.split())


def mentions(text: str, *words: str) -> bool:
    """Return whether a casefolded text has one of `words`, also within others. Where a pattern needs one of them, this
    saves nearly every search for it, which takes fifty times as long."""
    return any(map(text.__contains__, words))


def excerpt(prompt: str) -> str:
    """Return the beginning and the end of a long prompt, `CHECKABLE_CHARS` in all: questions and rules stand there."""
    if len(prompt) <= CHECKABLE_CHARS:
        return prompt
    return f"{prompt[:_HEAD_CHARS]}\n{prompt[_HEAD_CHARS - CHECKABLE_CHARS + 1 :]}"


def ending(text: str) -> str:
    """Return the last `CHECKABLE_CHARS` characters of an answer: a long one ends with its result."""
    return text[-CHECKABLE_CHARS:].strip()


def clean(text: str) -> str:
    """Return `text` in one Unicode form without Markdown emphasis, code ticks, outer quotes and surplus white space."""
    text = unicodedata.normalize("NFKC", text).replace("−", "-").replace("–", "-")
    text = _SPACE.sub(" ", _EMPHASIS.sub("", text)).strip()
    return text.strip("\"'“”‘’ ")


def normalised(text: str) -> str:
    """Return `clean` in lower case without a final full stop, for comparing texts."""
    return clean(text).casefold().rstrip(".! ").strip("\"'“”‘’ ")


def is_short(prompt: str) -> bool:
    """Return whether `prompt` is a question of few words."""
    return len(prompt.split()) <= SHORT_WORDS


def refuses(text: str) -> bool:
    """Return whether `text` says that it has no answer."""
    return _REFUSAL.search(text.replace("’", "'")) is not None


def negates(text: str) -> bool:
    """Return whether `text` denies something: what it names is then not its answer."""
    return _NEGATED.search(text.replace("’", "'")) is not None


MOST_MARKS = 8  # of each form, counted from the end of the text
_MOST_CHARS = 3000

_BOX = re.compile(r"\\f?boxed\s?\{")
_TAGS = (("<answer>", "</answer>"), ("<final_answer>", "</final_answer>"), ("[answer]", "[/answer]"))
_HASHES = re.compile(r"^[ \t]*####[ \t]*(\S[^\n]{0,300})$", re.MULTILINE)
_KEY = re.compile(r"[\"'](?:final[_ ])?answer[\"']\s{0,5}:\s{0,5}", re.IGNORECASE)
_SAID = re.compile(
    r"\banswer(?:\s(?:to|for)\s(?:this|the)\s(?:question|problem))?"
    r"(?:\s?\*{0,2}:\*{0,2}(?:\s{0,9}is:?)?|\s(?:is|are|would\sbe|should\sbe)\b\s?(?:therefore|thus|simply|just)?:?|\s?=)"
    r"\s{0,9}(?=([^\n]{1,300}))",
    re.IGNORECASE,
)
_LATER = re.compile(r"^(?:\*\*|__|:|\s)+")


class Mark(NamedTuple):
    """A marked answer: where it starts, what it holds."""

    start: int
    content: str
    strict: bool
    """Whether only an answer takes its form, and no sentence."""


def marks(text: str, *, brackets: bool = False, hashes: bool = True) -> list[Mark]:
    """Return the marked answers of `text` (its last `CHECKABLE_CHARS`), the last one first.

    `brackets`: whether `[[ ]]` is a mark, which the prompt must say: it is also a list of lists. `hashes`: the same of
    `#### x`, which is also a heading.
    """
    text = text[-CHECKABLE_CHARS:]
    marked = [*_boxed(text), *_tagged(text), *_keyed(text), *_said(text)]
    if brackets:
        marked += _bracketed(text)
    if hashes:
        marked += [Mark(match.start(), match[1], strict=True) for match in list(_HASHES.finditer(text))[-MOST_MARKS:]]
    return sorted((mark for mark in marked if mark.content.strip()), key=lambda mark: -mark.start)


def balanced(text: str, start: int) -> str | None:
    """Return what stands between the brace that opens before `start` and its partner; None without a partner."""
    depth = 1
    for index in range(start, min(len(text), start + _MOST_CHARS)):
        if text[index - 1] == "\\" and text[index] in "{}":
            continue
        depth += (text[index] == "{") - (text[index] == "}")
        if depth == 0:
            return text[start:index]
    return None


def _boxed(text: str) -> Iterator[Mark]:
    for box in list(_BOX.finditer(text))[-MOST_MARKS:]:
        content = balanced(text, box.end())
        if content is not None:
            yield Mark(box.start(), content, strict=True)


def _tagged(text: str) -> Iterator[Mark]:
    lower = text.lower()
    if len(lower) != len(text):
        return  # a letter whose lower case is longer: places would differ
    for opening, closing in _TAGS:
        until = len(text)
        for _ in range(MOST_MARKS):
            start = lower.rfind(opening, 0, until)
            if start < 0:
                break
            inside = start + len(opening)
            end = lower.find(closing, inside)
            yield Mark(start, text[inside : len(text) if end < 0 else end].strip(), strict=True)
            until = start


def _bracketed(text: str) -> Iterator[Mark]:
    until = len(text)
    for _ in range(MOST_MARKS):
        end = text.rfind("]]", 0, until)
        start = text.rfind("[[", 0, end) if end > 0 else -1
        if start < 0:
            return
        if text[start - 1 : start] == "[":
            start -= 1  # a list in the brackets
        yield Mark(start, text[start + 2 : end], strict=True)
        until = start


def _keyed(text: str) -> Iterator[Mark]:
    for key in list(_KEY.finditer(text))[-MOST_MARKS:]:
        part = text[key.end() : key.end() + _MOST_CHARS]
        try:
            value = json.JSONDecoder().raw_decode(part)[0]
        except (ValueError, RecursionError):
            continue
        yield Mark(key.start(), value if isinstance(value, str) else json.dumps(value), strict=True)


def _said(text: str) -> Iterator[Mark]:
    for match in list(_SAID.finditer(text))[-MOST_MARKS:]:
        content = _LATER.sub("", match[1])
        yield Mark(match.start(), content, strict=False)
