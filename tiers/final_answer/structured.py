"""Structured outputs and tool calls field by field: which fields can be checked, their values, and what is equal.

Values of programs, Python literals, JSON and tool calls, each have one spelling that keeps types apart.
"""

import ast
import re
import warnings
from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import Any, NamedTuple

import msgspec

from tiers.conversation import Call, Tool

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
        if (literal := python_literal(part)) is not None:
            return literal
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


def canonical_calls(calls: Sequence[Call]) -> str | None:
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
            return "{" + ", ".join(sorted(f"{_spelt(key)}: {_spelt(member)}" for key, member in value.items())) + "}"
        case set() | frozenset():
            return "{" + ", ".join(sorted(map(_spelt, value))) + "}" if value else "set()"
        case list():
            return "[" + ", ".join(map(_spelt, value)) + "]"
        case tuple():
            return "(" + ", ".join(map(_spelt, value)) + ("," if len(value) == 1 else "") + ")"
    return repr(value)


_MOST_SCHEMA_DEPTH = 8
_MOST_FIELDS = 200
# What makes a string more than free text.
BINDS = ("enum", "const", "format", "pattern")


def has_checkable_field(schema: dict[str, Any]) -> bool:
    """Return whether any field of `schema` is more than free text."""
    return _is_checkable(schema, schema, 0)


def checked_fields(schema: dict[str, Any], text: str) -> dict[str, str]:
    """Return the checkable fields of an answer by their path, each as canonical JSON; empty if `text` is not JSON.

    A path is as `address.city`; a list is one field, "" is the whole of a value without fields. Free text does not
    count: a string without enum, const, format or pattern.
    """
    value = json_value(text)
    if value is msgspec.UNSET:
        return {}
    checked: dict[str, str] = {}
    for path, field in _fields(schema, schema, value, "", 0):
        spelt = spelt_json(field)
        if spelt is None or len(checked) >= _MOST_FIELDS:
            return {}
        checked[path] = spelt
    return checked


def _fields(root: dict[str, Any], schema: Any, value: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    schema = resolved(root, schema)
    properties = schema.get("properties")
    if depth < _MOST_SCHEMA_DEPTH and isinstance(value, dict) and isinstance(properties, dict):
        for name in sorted(value):
            inner = properties.get(name, {})
            if name not in properties or _is_checkable(root, inner, depth + 1):
                yield from _fields(root, inner, value[name], f"{path}.{name}" if path else name, depth + 1)
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        yield path, [dict(_fields(root, schema["items"], item, "", depth + 1)) for item in value[:_MOST_FIELDS]]
    else:
        yield path, value


def _is_checkable(root: dict[str, Any], schema: Any, depth: int) -> bool:
    schema = resolved(root, schema)
    if any(key in schema for key in BINDS):
        return True
    if depth >= _MOST_SCHEMA_DEPTH:
        return False
    branches = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(branches, list):
        return any(_is_checkable(root, branch, depth + 1) for branch in branches[:20] if branch != {"type": "null"})
    properties = schema.get("properties")
    if isinstance(properties, dict):
        return any(_is_checkable(root, subschema, depth + 1) for subschema in list(properties.values())[:_MOST_FIELDS])
    if isinstance(schema.get("items"), dict):
        return _is_checkable(root, schema["items"], depth + 1)
    kinds = schema.get("type")
    listed = kinds if isinstance(kinds, list) else [kinds]
    named = {kind for kind in listed if isinstance(kind, str)}
    return bool(named - {"string", "null"})


def resolved(root: dict[str, Any], schema: Any) -> dict[str, Any]:
    """Return `schema`, or what its reference within `root` leads to; empty if that is no object."""
    for _ in range(_MOST_SCHEMA_DEPTH):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str) or not reference.startswith("#"):
            break
        schema = root
        for part in reference.lstrip("#/").split("/"):
            schema = schema.get(part) if part and isinstance(schema, dict) else schema
    return schema if isinstance(schema, dict) else {}


# A string without enum, const, format or pattern that is longer than this or has several lines is free text.
FREE_TEXT_CHARS = 80
MOST_FIELDS = 400
MOST_CALLS = 32
_MOST_CALL_DEPTH = 8
# All ways to pair so many calls of one tool are tried; more are paired in the order of their arguments.
_MOST_PAIRED = 5

Path = tuple[str | int, ...]


class CallsCompared(msgspec.Struct, frozen=True, order=True):
    """The fields of two answers' calls, compared. The name of each call is a field, and so is each argument."""

    unequal: int
    """Fields that differ."""
    equal: int
    """Fields that are equal."""
    arguments: int
    """How many of all these fields are arguments."""
    free: int
    """Long free texts that differ, which are not counted."""

    @property
    def share(self) -> float:
        return self.equal / max(self.equal + self.unequal, 1)


class _Field(NamedTuple):
    spelt: str
    is_free: bool


_Fields = dict[Path, _Field]


class _NotComparedError(ValueError):
    """Arguments that are no JSON object, or too many of them."""


def compared_calls(tools: Sequence[Tool], calls: Sequence[Call], others: Sequence[Call]) -> CallsCompared | None:
    """Compare the `calls` of two answers to a request with these `tools`; None if arguments are no JSON objects, or
    there are more than `MOST_CALLS` calls or `MOST_FIELDS` fields in an answer.

    Types are kept: 1 is not "1". The order of keys and of calls does not matter, ids do not count. An argument that is
    left out has its schema's default. Long free texts neither count for nor against.
    """
    if max(len(calls), len(others)) > MOST_CALLS:
        return None
    by_name = {tool.name: tool for tool in tools}
    try:
        ours, theirs = _by_tool(by_name, calls), _by_tool(by_name, others)
    except _NotComparedError:
        return None
    compared = [_paired(ours.get(name, []), theirs.get(name, [])) for name in sorted({*ours, *theirs})]
    return _total(compared)


def _by_tool(tools: dict[str, Tool], calls: Sequence[Call]) -> dict[str, list[_Fields]]:
    """Return the fields of the calls by tool, in an order that does not depend on that of the calls."""
    grouped: dict[str, list[_Fields]] = {}
    left = MOST_FIELDS
    for call in calls:
        tool = tools.get(call.name)
        fields = _fields_of(call.arguments, {} if tool is None else tool.schema)
        left -= len(fields)
        if left < 0:
            raise _NotComparedError
        grouped.setdefault(call.name, []).append(fields)
    return {
        name: sorted(calls, key=lambda fields: sorted(map(repr, fields.items()))) for name, calls in grouped.items()
    }


def _fields_of(arguments: str, schema: dict[str, Any]) -> _Fields:
    try:
        value = msgspec.json.decode(arguments or "{}")
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _NotComparedError from error
    if not isinstance(value, dict):
        raise _NotComparedError
    value = _defaults(schema) | value
    fields: _Fields = {}
    for path, leaf, is_bound in _leaves(schema, schema, value, ()):
        spelt = spelt_json(leaf)
        if spelt is None or len(fields) >= MOST_FIELDS:
            raise _NotComparedError
        is_long = isinstance(leaf, str) and (len(leaf) > FREE_TEXT_CHARS or "\n" in leaf)
        fields[path] = _Field(spelt, is_long and not is_bound)
    return fields


def _defaults(schema: dict[str, Any]) -> dict[str, Any]:
    properties = resolved(schema, schema).get("properties")
    if not isinstance(properties, dict):
        return {}
    return {
        name: field_schema["default"]
        for name, field_schema in properties.items()
        if isinstance(field_schema, dict) and "default" in field_schema
    }


def _leaves(root: dict[str, Any], schema: Any, value: Any, path: Path) -> Iterator[tuple[Path, Any, bool]]:
    """Yield each value that holds no others, with whether its schema says more than that it is a string."""
    schema = resolved(root, schema)
    if len(path) < _MOST_CALL_DEPTH and isinstance(value, dict) and value:
        properties = schema.get("properties")
        schemas = properties if isinstance(properties, dict) else {}
        for name, member in value.items():
            yield from _leaves(root, schemas.get(name), member, (*path, name))
    elif len(path) < _MOST_CALL_DEPTH and isinstance(value, list) and value:
        for index, member in enumerate(value):
            yield from _leaves(root, schema.get("items"), member, (*path, index))
    elif path:
        yield path, value, _binds(root, schema)


def _binds(root: dict[str, Any], schema: dict[str, Any]) -> bool:
    branches = schema.get("anyOf") or schema.get("oneOf")
    every = [schema, *(resolved(root, branch) for branch in (branches if isinstance(branches, list) else []))]
    return any(key in branch for branch in every for key in BINDS)


def _paired(ours: list[_Fields], theirs: list[_Fields]) -> CallsCompared:
    """Compare calls of one tool, paired so that as few fields as possible differ."""
    fewer, more = sorted((ours, theirs), key=len)
    orders = permutations(more) if len(more) <= _MOST_PAIRED else iter([tuple(more)])
    return min(
        _total([*map(_compared, fewer, order), *(_alone(fields) for fields in order[len(fewer) :])]) for order in orders
    )


def _compared(fields: _Fields, other: _Fields) -> CallsCompared:
    unequal = equal = free = 0
    for path in fields | other:
        mine, its = fields.get(path), other.get(path)
        if any(field is not None and field.is_free for field in (mine, its)):
            free += mine != its
        elif mine == its:
            equal += 1
        else:
            unequal += 1
    return CallsCompared(unequal, equal + 1, unequal + equal, free)


def _alone(fields: _Fields) -> CallsCompared:
    """A call that the other answer does not make: its name and its arguments differ."""
    counted = sum(not field.is_free for field in fields.values())
    return CallsCompared(counted + 1, 0, counted, len(fields) - counted)


def _total(comparisons: Sequence[CallsCompared]) -> CallsCompared:
    return CallsCompared(
        sum(compared.unequal for compared in comparisons),
        sum(compared.equal for compared in comparisons),
        sum(compared.arguments for compared in comparisons),
        sum(compared.free for compared in comparisons),
    )
