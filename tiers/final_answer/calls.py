"""Tool calls field by field: whether two answers call the same tools with the same arguments, and how many fields are
equal."""

from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import Any, NamedTuple

import msgspec

from tiers.final_answer.literals import spelt_json
from tiers.final_answer.structured import BINDS, resolved
from tiers.tool_types import Tool, ToolCall

# A string without enum, const, format or pattern that is longer than this or has several lines is free text.
FREE_TEXT_CHARS = 80
MOST_FIELDS = 400
MOST_CALLS = 32
_MOST_DEPTH = 8
# All ways to pair so many calls of one tool are tried; more are paired in the order of their arguments.
_MOST_PAIRED = 5

Path = tuple[str | int, ...]


class CallsCompared(msgspec.Struct, frozen=True, order=True):
    """The fields of two answers' calls, compared. `unequal` and `equal` fields: the name of each call is one, and each
    argument; `arguments`: how many of them are arguments. `free`: long free texts that differ, which are not counted.
    """

    unequal: int
    equal: int
    arguments: int
    free: int

    @property
    def share(self) -> float:
        """The share of fields that are equal."""
        return self.equal / max(self.equal + self.unequal, 1)


class _Field(NamedTuple):
    spelt: str
    is_free: bool


_Fields = dict[Path, _Field]


class _NotComparedError(ValueError):
    """Arguments that are no JSON object, or too many of them."""


def compared_calls(
    tools: Sequence[Tool], calls: Sequence[ToolCall], others: Sequence[ToolCall]
) -> CallsCompared | None:
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
    found = [_paired(ours.get(name, []), theirs.get(name, [])) for name in sorted({*ours, *theirs})]
    return _total(found)


def _by_tool(tools: dict[str, Tool], calls: Sequence[ToolCall]) -> dict[str, list[_Fields]]:
    """Return the fields of the calls by tool, in an order that does not depend on that of the calls."""
    found: dict[str, list[_Fields]] = {}
    left = MOST_FIELDS
    for call in calls:
        tool = tools.get(call.name)
        fields = _fields_of(call.arguments, {} if tool is None else tool.schema)
        left -= len(fields)
        if left < 0:
            raise _NotComparedError
        found.setdefault(call.name, []).append(fields)
    return {name: sorted(calls, key=lambda fields: sorted(map(repr, fields.items()))) for name, calls in found.items()}


def _fields_of(arguments: str, schema: dict[str, Any]) -> _Fields:
    try:
        value = msgspec.json.decode(arguments or "{}")
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _NotComparedError from error
    if not isinstance(value, dict):
        raise _NotComparedError
    value = _defaults(schema) | value
    found: _Fields = {}
    for path, leaf, is_bound in _leaves(schema, schema, value, ()):
        spelt = spelt_json(leaf)
        if spelt is None or len(found) >= MOST_FIELDS:
            raise _NotComparedError
        is_long = isinstance(leaf, str) and (len(leaf) > FREE_TEXT_CHARS or "\n" in leaf)
        found[path] = _Field(spelt, is_long and not is_bound)
    return found


def _defaults(schema: dict[str, Any]) -> dict[str, Any]:
    properties = resolved(schema, schema).get("properties")
    if not isinstance(properties, dict):
        return {}
    return {name: one["default"] for name, one in properties.items() if isinstance(one, dict) and "default" in one}


def _leaves(root: dict[str, Any], schema: Any, value: Any, path: Path) -> Iterator[tuple[Path, Any, bool]]:
    """Yield each value that holds no others, with whether its schema says more than that it is a string."""
    schema = resolved(root, schema)
    if len(path) < _MOST_DEPTH and isinstance(value, dict) and value:
        properties = schema.get("properties")
        known = properties if isinstance(properties, dict) else {}
        for name, one in value.items():
            yield from _leaves(root, known.get(name), one, (*path, name))
    elif len(path) < _MOST_DEPTH and isinstance(value, list) and value:
        for place, one in enumerate(value):
            yield from _leaves(root, schema.get("items"), one, (*path, place))
    elif path:
        yield path, value, _binds(root, schema)


def _binds(root: dict[str, Any], schema: dict[str, Any]) -> bool:
    branches = schema.get("anyOf") or schema.get("oneOf")
    every = [schema, *(resolved(root, one) for one in (branches if isinstance(branches, list) else []))]
    return any(key in one for one in every for key in BINDS)


def _paired(ours: list[_Fields], theirs: list[_Fields]) -> CallsCompared:
    """Compare calls of one tool, paired so that as few fields as possible differ."""
    fewer, more = sorted((ours, theirs), key=len)
    orders = permutations(more) if len(more) <= _MOST_PAIRED else iter([tuple(more)])
    return min(
        _total([*map(_compared, fewer, order), *(_alone(fields) for fields in order[len(fewer) :])]) for order in orders
    )


def _compared(one: _Fields, other: _Fields) -> CallsCompared:
    unequal = equal = free = 0
    for path in one | other:
        mine, its = one.get(path), other.get(path)
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


def _total(found: Sequence[CallsCompared]) -> CallsCompared:
    return CallsCompared(
        sum(one.unequal for one in found),
        sum(one.equal for one in found),
        sum(one.arguments for one in found),
        sum(one.free for one in found),
    )
