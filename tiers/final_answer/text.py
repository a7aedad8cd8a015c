"""Bounded parts of prompts and answers, in one form: strangers write both."""

import re
import unicodedata

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
    """Return the words of a line."""
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
