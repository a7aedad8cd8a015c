"""What a tokeniser file may ask for: no more work than the length of a text bounds, as nothing stops the library."""

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Any, Protocol, TypeVar

from inference_core.errors import InvalidRequestError, ModelFileError

MAX_ADDED_TOKENS = 80_000
MAX_ADDED_CHARACTERS = 1_000_000
"""Of all added tokens together. Models of speech add their codebooks: Llasa 65,792, Orpheus 28,940; of others, Gemma 3
adds some 6,400 and Whisper 1,600."""
MAX_CONTROL_TOKENS = 20_000
"""Of those that are special: every rendered chat is searched for them. Codebooks are not."""
MAX_ADDED_WORK = 2_000_000
"""Tokens that the library sorts while those are added that only the settings list: at each step all that it has."""
MAX_ADDED_TO_TEXT = 64
"""Characters that normalisers put before a text, and tokens that a template puts around it: real models have two."""
MAX_GROWTH = 64
"""Characters that the normalisers make of one: those of real models make three at most."""
_MOST_OF_UNICODE = 18  # NFKD of U+FDFA
_FORMS = ("NFD", "NFKD", "NFC", "NFKC", "Nmt", "Precompiled", "BertNormalizer", "ByteLevel")
_MAX_QUANTIFIERS = 3
_ESCAPED = re.compile(r"\\(?:[pP]\{[^}]*\}|x\{[^}]*\}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|k|[1-9]|.)", re.S)
_REPEATED = re.compile(r"\*|\+|\{\d*,(\d*)\}|\{(\d+)\}")
# Repeated so often, a group counts as repeated without end.
_MANY = 16


class Special(Protocol):
    """An added token."""

    special: bool


Added = TypeVar("Added", bound=Special)


class Step(Protocol):
    """A normaliser of tokenizer.json."""

    type: str
    pattern: Any
    content: str | None
    prepend: str | None


def require_few_added(file: Path, tokens: Iterable[str], controls: Iterable[str]) -> None:
    """Raise ModelFileError for more added tokens than are looked for in a text in little time. `controls`: those of
    `tokens` that are special."""
    texts, special = set(tokens), len(set(controls))
    characters = sum(map(len, texts))
    if special > MAX_CONTROL_TOKENS:
        raise ModelFileError(f"{file}: {special} special tokens; at most {MAX_CONTROL_TOKENS} are supported")
    if len(texts) > MAX_ADDED_TOKENS or characters > MAX_ADDED_CHARACTERS:
        raise ModelFileError(
            f"{file}: {len(texts)} added tokens of {characters} characters; at most {MAX_ADDED_TOKENS} of "
            f"{MAX_ADDED_CHARACTERS} are supported"
        )


def runs_of_added(file: Path, tokens: Iterable[Added], num_tokens: int) -> Iterator[tuple[bool, list[Added]]]:
    """Yield `tokens` in their order in runs of a kind, special or not, which are added at once. Raises ModelFileError
    for so many runs that adding them to `num_tokens` others takes seconds."""
    work = 0
    for special, run in groupby(tokens, key=lambda token: token.special):
        added = list(run)
        num_tokens += len(added)
        work += num_tokens
        if work > MAX_ADDED_WORK:
            raise ModelFileError(f"{file}: special and other added tokens take turns too often; sort them by kind")
        yield special, added


def require_bounded(file: Path, normalizers: Iterable[Step], splits: Iterable[Step], processor: Any) -> None:
    """Raise ModelFileError for normalisers and a post-processor that make a text much longer, and for patterns whose
    search may take time in more than a low power of it."""
    normalizers = list(normalizers)
    added = max(sum(len(step.prepend or "") for step in normalizers), _pieces(processor))
    if added > MAX_ADDED_TO_TEXT:
        raise ModelFileError(
            f"{file} adds {added} characters or tokens to every text; at most {MAX_ADDED_TO_TEXT} are supported"
        )
    growth = prod(map(_growth, normalizers))
    if growth > MAX_GROWTH:
        raise ModelFileError(f"{file}: its normalisers make up to {growth:.0f} characters of one; at most {MAX_GROWTH}")
    for step in (*normalizers, *splits):
        pattern = step.pattern.get("Regex") if isinstance(step.pattern, dict) else None
        if isinstance(pattern, str) and (problem := _problem(pattern)):
            raise ModelFileError(f"{file}: the pattern {pattern[:100]!r} {problem}, which may take time without end")


def _pieces(processor: Any) -> int:
    """Return the length of the longest list anywhere in a post-processor, which says what it puts around a text."""
    longest, parts = 0, [processor]
    while parts:
        part = parts.pop()
        if isinstance(part, list):
            longest = max(longest, len(part))
        parts += part if isinstance(part, list) else part.values() if isinstance(part, dict) else ()
    return longest


def _growth(step: Step) -> float:
    if step.type in _FORMS:
        return _MOST_OF_UNICODE if step.type in ("NFKD", "NFKC") else 1
    content = len(step.content or "")
    text = step.pattern.get("String") if isinstance(step.pattern, dict) else None
    if step.type == "Replace":
        # An expression may match nothing, before every character.
        return max(content / len(text), 1.0) if isinstance(text, str) and text else 1.0 + content
    return 1.0


def _problem(pattern: str) -> str:
    """Why a search for `pattern` may take too long; empty if it does not.

    A group that is repeated must have one way to match: no choice, and no repetition in it.
    """
    if any(escape in ("\\k", *(f"\\{digit}" for digit in range(1, 10))) for escape in _ESCAPED.findall(pattern)):
        return "refers to what it matched before"
    plain = _without_classes(_ESCAPED.sub("x", pattern))
    # Of every open group, and of the whole: whether it has choices or repetitions, and unbounded ones in this choice.
    open_groups: list[tuple[bool, int]] = [(False, 0)]
    at, closed, complex_group = 0, False, False
    while at < len(plain):
        repeated = _REPEATED.match(plain, at)
        if repeated is not None:
            most = next((text for text in repeated.groups() if text is not None), "")
            if not most or int(most) > _MANY:
                if closed and complex_group:
                    return "repeats a group that has choices or repetitions"
                open_groups[-1] = True, open_groups[-1][1] + 1
                if open_groups[-1][1] > _MAX_QUANTIFIERS:
                    return f"has more than {_MAX_QUANTIFIERS} repetitions in a row"
            at, closed = repeated.end(), False
            continue
        letter, closed = plain[at], False
        if letter == "(":
            open_groups.append((False, 0))
        elif letter == ")" and len(open_groups) > 1:
            complex_group, inner = open_groups.pop()
            open_groups[-1] = open_groups[-1][0] or complex_group, open_groups[-1][1] + inner
            closed = True
        elif letter == "|":
            open_groups[-1] = True, 0
        at += 1
    return ""


def _without_classes(pattern: str) -> str:
    """`pattern` with a letter in place of every class of characters, which may hold others."""
    kept, depth = [], 0
    for letter in pattern:
        if letter == "[":
            depth += 1
        elif letter == "]" and depth:
            depth -= 1
            if not depth:
                kept.append("x")
        elif not depth:
            kept.append(letter)
    return "".join(kept)


def unreadable(error: BaseException) -> InvalidRequestError | None:
    """What to raise in place of the library's own errors: plain exceptions, and panics, which are none. Else None."""
    if type(error) is Exception or type(error).__name__ == "PanicException":
        return InvalidRequestError(f"the model's tokeniser cannot read this text: {error}")
    return None
