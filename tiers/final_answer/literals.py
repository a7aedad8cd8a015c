"""Values of programs: Python literals, JSON and tool calls, each in one spelling that keeps types apart."""

import ast
import re
import warnings
from collections.abc import Sequence
from typing import Any

import msgspec

from tiers.tool_types import ToolCall

MOST_CHARS = 3000
_MOST_DEPTH = 24
_FENCE = re.compile(r"```[\w+-]{0,20}[ \t]*\n?")
_ASSERTION = re.compile(r"==\s*([^=\n][^\n]*)$")
_JSON_WORDS = {"true": "True", "false": "False", "null": "None"}


def python_literal(text: str) -> str | None:
    """Return a Python literal in one spelling: sets and keys in order, strings in one quotation; None if `text` is
    none, is long or nested deeply. Nothing of it is evaluated."""
    text = text.strip().strip("`").strip()
    if not text or len(text) > MOST_CHARS or _depth(text) > _MOST_DEPTH:
        return None
    text = _JSON_WORDS.get(text, text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _spelt(ast.literal_eval(text))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError, OverflowError):
        return None


def last_literal(text: str) -> str | None:
    """Return the literal that a text ends with: after its last `==`, in its last code block, or its last line."""
    text = text.strip()
    without = _FENCE.sub("\n", text).strip()
    lines = [line.strip().strip("`*").strip() for line in without.splitlines() if line.strip()]
    if not lines:
        return None
    if compared := _ASSERTION.search(lines[-1][-MOST_CHARS:]):
        return python_literal(compared[1])
    for part in (without, lines[-1]):
        if (found := python_literal(part)) is not None:
            return found
    quoted = re.findall(r"`([^`\n]{1,300})`", text.rsplit("\n", 1)[-1])
    return python_literal(quoted[0]) if len(quoted) == 1 else None


def canonical_json(text: str) -> str | None:
    """Return the JSON value of `text`, alone or in its last code block, with sorted keys and types kept; None if there
    is none, it is long, or its spelling is not JSON's."""
    value = json_value(text)
    return None if value is msgspec.UNSET else spelt_json(value)


def json_value(text: str) -> Any:
    """Return the JSON value of `text`, alone or in its last code block; UNSET if there is none or it is long."""
    text = text.strip()
    if text.endswith("```"):
        blocks = _FENCE.split(text[-2 * MOST_CHARS :])
        text = blocks[-2].strip() if len(blocks) >= 2 else text
    if not text.startswith(("{", "[")) or len(text) > 2 * MOST_CHARS:
        return msgspec.UNSET
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return msgspec.UNSET


def spelt_json(value: Any) -> str | None:
    """Return a JSON value in one spelling; None if it has none."""
    try:
        return msgspec.json.encode(value, order="sorted").decode()
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):
        return None


def canonical_calls(calls: Sequence[ToolCall]) -> str | None:
    """Return tool calls as JSON pairs of name and arguments, sorted; types are kept. None if arguments are not JSON."""
    pairs = []
    for call in calls:
        if len(call.arguments) > 2 * MOST_CHARS:
            return None
        try:
            arguments = spelt_json(msgspec.json.decode(call.arguments or "{}"))
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None
        if arguments is None:
            return None
        pairs.append(f"[{msgspec.json.encode(call.name).decode()},{arguments}]")
    return f"[{','.join(sorted(pairs))}]" if pairs else None


def _depth(text: str) -> int:
    """Return how deeply brackets and signs are nested: what the parser's stack must hold."""
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    signs = max((len(run) for run in re.findall(r"[-+~\s]+", text)), default=0)
    return deepest + signs


def _spelt(value: Any) -> str:
    match value:
        case dict():
            return "{" + ", ".join(sorted(f"{_spelt(key)}: {_spelt(one)}" for key, one in value.items())) + "}"
        case set() | frozenset():
            return "{" + ", ".join(sorted(map(_spelt, value))) + "}" if value else "set()"
        case list():
            return "[" + ", ".join(map(_spelt, value)) + "]"
        case tuple():
            return "(" + ", ".join(map(_spelt, value)) + ("," if len(value) == 1 else "") + ")"
    return repr(value)
