"""Refuses grammars that are larger than any real one, naming the limit. The counts are cheap and not recursive.

The serving process checks only the length. The grammar's process counts the rest.
"""

import json
import re
from typing import Any, NamedTuple

from inference_core.errors import InvalidRequestError
from inference_core.grammar.limits import MAX_ALTERNATIVES, MAX_CHARACTERS, MAX_DEPTH, MAX_RULES
from inference_core.protocol import Grammar

_ALTERNATIVES = ("enum", "anyOf", "oneOf", "allOf")
_DEFINITIONS = ("$defs", "definitions")
# Skips literals; counts brackets and separators outside of them, and names that start rules. Reads every character
# once: the quantifiers are possessive, and a literal may lack its end.
_GRAMMAR = re.compile(
    r'"(?:\\.|[^"\\\n])*+"?'
    r"|/(?:\\.|[^/\\\n])++/?"
    r"|(?P<rule>^[ \t]*+[?!]?[A-Za-z_][^\n\"/|():]*+:)"
    r"|(?P<mark>[()\[\]{}|])",
    re.MULTILINE,
)
_REGEX = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*+\]?|(?P<rule>(?!))|(?P<mark>[()|])", re.DOTALL)


class Size(NamedTuple):
    """`depth`: levels of nesting; `rules`: rules or definitions."""

    depth: int = 0
    rules: int = 0
    alternatives: int = 0


def check_length(grammar: Grammar) -> None:
    """Raises `InvalidRequestError` for a text that is too long."""
    for param, text in (*grammar.schemas, (grammar.param, grammar.text)):
        _check(param, len(text), MAX_CHARACTERS, "characters")


def check_bounds(grammar: Grammar) -> None:
    """Raises `InvalidRequestError` for a grammar with too many levels, rules or alternatives."""
    sizes = [(param, _size_of_json(param, text)) for param, text in grammar.schemas]
    for param, size in (*sizes, (grammar.param, _size(grammar))):
        _check(param, size.depth, MAX_DEPTH, "levels of nesting")
        _check(param, size.rules, MAX_RULES, "rules or definitions")
        _check(param, size.alternatives, MAX_ALTERNATIVES, "alternatives")


def _check(param: str, number: int, most: int, what: str) -> None:
    if number > most:
        raise InvalidRequestError(f"{param}: at most {most} {what} are allowed; it has {number}", param)


def _size(grammar: Grammar) -> Size:
    if grammar.kind == "json_schema":
        return _size_of_json(grammar.param, grammar.text)
    if grammar.kind == "choice":
        choices = _parsed(grammar.param, grammar.text)
        return Size(alternatives=len(choices) if isinstance(choices, list) else 0)
    return _size_of_marks(grammar.text, _REGEX if grammar.kind == "regex" else _GRAMMAR)


def _size_of_marks(text: str, pattern: re.Pattern[str]) -> Size:
    depth = deepest = rules = alternatives = 0
    for match in pattern.finditer(text):
        mark = match["mark"]
        if match["rule"]:
            rules += 1
        elif mark == "|":
            alternatives += 1
        elif mark is not None and mark in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif mark is not None:
            depth -= 1
    return Size(deepest, rules, alternatives)


def _size_of_json(param: str, text: str) -> Size:
    deepest = rules = alternatives = 0
    left: list[tuple[Any, int]] = [(_parsed(param, text), 1)]
    while left:
        part, depth = left.pop()
        if isinstance(part, dict):
            alternatives += sum(len(part[key]) for key in _ALTERNATIVES if isinstance(part.get(key), list))
            rules += sum(len(part[key]) for key in _DEFINITIONS if isinstance(part.get(key), dict))
            inner = part.values()
        elif isinstance(part, list):
            inner = part  # type: ignore[assignment]
        else:
            continue
        deepest = max(deepest, depth)
        left += [(each, depth + 1) for each in inner if isinstance(each, dict | list)]
    return Size(deepest, rules, alternatives)


def _parsed(param: str, text: str) -> Any:
    """Parsed JSON; None if it is not JSON, for which the compiler gives the reason."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise InvalidRequestError(f"{param}: at most {MAX_DEPTH} levels of nesting are allowed", param) from error
    except ValueError:
        return None
