"""Refuses grammars that are larger than any real one before they are compiled: cheap counts, without recursion."""

import json
import re
from typing import Any, NamedTuple

from inference_core.errors import InvalidRequestError
from inference_core.grammar.limits import MAX_ALTERNATIVES, MAX_CHARACTERS, MAX_DEPTH, MAX_RULES
from inference_core.protocol import Grammar

_ALTERNATIVES = ("enum", "anyOf", "oneOf", "allOf")
_DEFINITIONS = ("$defs", "definitions")
# Literals are skipped; what else opens, closes or separates is counted, and the names that begin rules.
_GRAMMAR = re.compile(
    r'"(?:\\.|[^"\\\n])*"'
    r"|/(?:\\.|[^/\\\n])+/"
    r"|(?P<rule>^[ \t]*[?!]?[A-Za-z_][\w-]*[^\n\"/|():]*:)"
    r"|(?P<mark>[()\[\]{}|])",
    re.MULTILINE,
)
_REGEX = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|(?P<rule>(?!))|(?P<mark>[()|])", re.DOTALL)


class Size(NamedTuple):
    """`depth`: the most that lie within each other; `rules`: or definitions."""

    depth: int = 0
    rules: int = 0
    alternatives: int = 0


def check_bounds(grammar: Grammar) -> None:
    """Raises `InvalidRequestError`, naming the field and the number allowed, for a grammar that is too large."""
    for param, schema in grammar.schemas:
        _check(param, schema, _size_of_json(param, schema))
    _check(grammar.param, grammar.text, _size(grammar))


def _check(param: str, text: str, size: Size) -> None:
    for number, most, what in (
        (len(text), MAX_CHARACTERS, "characters"),
        (size.depth, MAX_DEPTH, "levels of nesting"),
        (size.rules, MAX_RULES, "rules or definitions"),
        (size.alternatives, MAX_ALTERNATIVES, "alternatives"),
    ):
        if number > most:
            raise InvalidRequestError(f"{param} has {number} {what}; at most {most} are allowed", param)


def _size(grammar: Grammar) -> Size:
    if len(grammar.text) > MAX_CHARACTERS:
        return Size()  # refused whatever is in it
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
    if len(text) > MAX_CHARACTERS:
        return Size()
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
    """None for what is no JSON: the compiler says why."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise InvalidRequestError(f"{param}: at most {MAX_DEPTH} levels of nesting are allowed", param) from error
    except ValueError:
        return None
