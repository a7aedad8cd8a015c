"""Validate a JSON value by a JSON schema: the part of the standard that `response_format` schemas use."""

import re
from collections.abc import Callable, Mapping
from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,), "array": (list,), "string": (str,), "boolean": (bool,), "null": (type(None),),
}  # fmt: skip
_ANNOTATIONS = frozenset(
    ("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$schema",
     "$id", "$defs", "definitions", "format", "contentEncoding", "contentMediaType")
)  # fmt: skip
_DEEPEST = 64


class UnsupportedSchemaError(ValueError):
    """The schema uses an unsupported keyword, so no value can be validated."""


def is_valid(value: Any, schema: Any) -> bool:
    """Return whether `value` (as from `json.loads`) is valid by `schema`, JSON Schema 2020-12; `format` is an
    annotation.

    Raises `UnsupportedSchemaError` for keywords beyond types, enumerations, bounds, objects, arrays, combinations,
    conditions and references within the schema.
    """
    try:
        return _valid(value, schema, schema, 0)
    except re.error as error:
        raise UnsupportedSchemaError(f"a pattern of the schema cannot be read: {error}") from error
    except (TypeError, AttributeError) as error:
        raise UnsupportedSchemaError(f"the schema is not one: {error}") from error


def _valid(value: Any, schema: Any, root: Any, depth: int) -> bool:
    if depth > _DEEPEST:
        raise UnsupportedSchemaError(f"the schema goes deeper than {_DEEPEST} levels")
    if isinstance(schema, bool):
        return schema

    def sub(part: Any, inner: Any) -> bool:
        return _valid(part, inner, root, depth + 1)

    for keyword, argument in schema.items():
        if keyword == "$ref":
            if not sub(value, _referred(argument, root)):
                return False
        elif keyword not in _ANNOTATIONS:
            check = _KEYWORDS.get(keyword)
            if check is None:
                raise UnsupportedSchemaError(f"the keyword {keyword!r} is not supported")
            if not check(value, argument, schema, sub):
                return False
    return True


def _referred(reference: str, root: Any) -> Any:
    if not reference.startswith("#"):
        raise UnsupportedSchemaError(f"the reference {reference!r} leads out of the schema")
    found = root
    for part in filter(None, reference[1:].split("/")):
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, dict) or name not in found:
            raise UnsupportedSchemaError(f"the reference {reference!r} leads nowhere")
        found = found[name]
    return found


_Sub = Callable[[Any, Any], bool]
_Check = Callable[[Any, Any, Mapping[str, Any], _Sub], bool]


def _type(value: Any, wanted: Any, schema: Mapping[str, Any], sub: _Sub) -> bool:
    return any(_is_of(value, name) for name in ([wanted] if isinstance(wanted, str) else wanted))


def _is_of(value: Any, name: str) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if name == "number":
        return number
    if name == "integer":
        return number and float(value).is_integer()
    if name not in _TYPES:
        raise UnsupportedSchemaError(f"there is no type {name!r}")
    return isinstance(value, _TYPES[name])


def same(one: Any, other: Any) -> bool:
    """Compare JSON values: 1 equals 1.0, but neither equals true."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def _bound(kind: type | tuple[type, ...], measure: Callable[[Any], Any], holds: Callable[[Any, Any], bool]) -> _Check:
    """Check a keyword that limits a measure of one kind of value; booleans are not numbers."""
    return lambda value, limit, schema, sub: (
        not isinstance(value, kind) or isinstance(value, bool) or holds(measure(value), limit)
    )


def _properties(value: Any, properties: Any, schema: Mapping[str, Any], sub: _Sub) -> bool:
    return not isinstance(value, dict) or all(
        sub(value[name], inner) for name, inner in properties.items() if name in value
    )


def _pattern_properties(value: Any, patterns: Any, schema: Mapping[str, Any], sub: _Sub) -> bool:
    return not isinstance(value, dict) or all(
        sub(part, inner) for pattern, inner in patterns.items() for name, part in value.items()
        if re.search(pattern, name)
    )  # fmt: skip


def _additional(value: Any, inner: Any, schema: Mapping[str, Any], sub: _Sub) -> bool:
    named, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    return not isinstance(value, dict) or all(
        sub(part, inner) for name, part in value.items()
        if name not in named and not any(re.search(pattern, name) for pattern in patterns)
    )  # fmt: skip


def _items(value: Any, inner: Any, schema: Mapping[str, Any], sub: _Sub) -> bool:
    if isinstance(inner, list):
        raise UnsupportedSchemaError("a list of items is of an older draft; say prefixItems")
    return not isinstance(value, list) or all(sub(part, inner) for part in value[len(schema.get("prefixItems", [])) :])


def _prefix_items(value: Any, inner: Any, schema: Mapping[str, Any], sub: _Sub) -> bool:
    return not isinstance(value, list) or all(sub(part, of) for part, of in zip(value, inner, strict=False))


def _distinct(value: Any, wanted: Any, schema: Mapping[str, Any], sub: _Sub) -> bool:
    return not (wanted and isinstance(value, list)) or not any(
        same(value[i], value[j]) for i in range(len(value)) for j in range(i)
    )


def _condition(value: Any, condition: Any, schema: Mapping[str, Any], sub: _Sub) -> bool:
    return sub(value, schema.get("then" if sub(value, condition) else "else", True))


def _multiple(value: Any, of: Any) -> bool:
    times = value / of
    return bool(abs(times - round(times)) < 1e-9)


_NUMBER = (int, float)
_KEYWORDS: dict[str, _Check] = {
    "type": _type,
    "enum": lambda value, allowed, schema, sub: any(same(value, one) for one in allowed),
    "const": lambda value, wanted, schema, sub: same(value, wanted),
    "minimum": _bound(_NUMBER, lambda v: v, lambda v, limit: bool(v >= limit)),
    "maximum": _bound(_NUMBER, lambda v: v, lambda v, limit: bool(v <= limit)),
    "exclusiveMinimum": _bound(_NUMBER, lambda v: v, lambda v, limit: bool(v > limit)),
    "exclusiveMaximum": _bound(_NUMBER, lambda v: v, lambda v, limit: bool(v < limit)),
    "multipleOf": _bound(_NUMBER, lambda v: v, _multiple),
    "minLength": _bound(str, len, lambda n, limit: bool(n >= limit)),
    "maxLength": _bound(str, len, lambda n, limit: bool(n <= limit)),
    "pattern": _bound(str, lambda v: v, lambda v, pattern: re.search(pattern, v) is not None),
    "minItems": _bound(list, len, lambda n, limit: bool(n >= limit)),
    "maxItems": _bound(list, len, lambda n, limit: bool(n <= limit)),
    "uniqueItems": _distinct,
    "items": _items,
    "prefixItems": _prefix_items,
    "minProperties": _bound(dict, len, lambda n, limit: bool(n >= limit)),
    "maxProperties": _bound(dict, len, lambda n, limit: bool(n <= limit)),
    "required": _bound(dict, lambda v: v, lambda v, names: all(name in v for name in names)),
    "properties": _properties,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional,
    "propertyNames": lambda value, inner, schema, sub: (
        not isinstance(value, dict) or all(sub(name, inner) for name in value)
    ),
    "allOf": lambda value, all_of, schema, sub: all(sub(value, inner) for inner in all_of),
    "anyOf": lambda value, any_of, schema, sub: any(sub(value, inner) for inner in any_of),
    "oneOf": lambda value, one_of, schema, sub: sum(sub(value, inner) for inner in one_of) == 1,
    "not": lambda value, inner, schema, sub: not sub(value, inner),
    "if": _condition,
    "then": lambda value, inner, schema, sub: True,
    "else": lambda value, inner, schema, sub: True,
}
