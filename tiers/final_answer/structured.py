"""Structured outputs field by field: which fields of a schema can be checked, and their values in an answer."""

from collections.abc import Iterator
from typing import Any

import msgspec

from tiers.final_answer.literals import json_value, spelt_json

_MOST_DEPTH = 8
_MOST_FIELDS = 200
# What makes a string more than free text.
BINDS = ("enum", "const", "format", "pattern")


def schema_of(response_format: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the JSON schema of a `response_format`, also one without its envelope; None if it has none."""
    if not isinstance(response_format, dict):
        return None
    envelope = response_format.get("json_schema")
    if isinstance(envelope, dict):
        schema = envelope.get("schema")
        return schema if isinstance(schema, dict) else None
    is_schema = any(key in response_format for key in ("properties", "$ref", "items", "enum", "anyOf"))
    return response_format if is_schema else None


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
    found: dict[str, str] = {}
    for path, field in _fields(schema, schema, value, "", 0):
        spelt = spelt_json(field)
        if spelt is None or len(found) >= _MOST_FIELDS:
            return {}
        found[path] = spelt
    return found


def _fields(root: dict[str, Any], schema: Any, value: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    schema = resolved(root, schema)
    properties = schema.get("properties")
    if depth < _MOST_DEPTH and isinstance(value, dict) and isinstance(properties, dict):
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
    if depth >= _MOST_DEPTH:
        return False
    branches = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(branches, list):
        return any(_is_checkable(root, one, depth + 1) for one in branches[:20] if one != {"type": "null"})
    properties = schema.get("properties")
    if isinstance(properties, dict):
        return any(_is_checkable(root, one, depth + 1) for one in list(properties.values())[:_MOST_FIELDS])
    if isinstance(schema.get("items"), dict):
        return _is_checkable(root, schema["items"], depth + 1)
    kinds = schema.get("type")
    named = {kinds} if isinstance(kinds, str) else {kind for kind in kinds or () if isinstance(kind, str)}
    return bool(named - {"string", "null"})


def resolved(root: dict[str, Any], schema: Any) -> dict[str, Any]:
    """Return `schema`, or what its reference within `root` leads to; empty if that is no object."""
    for _ in range(_MOST_DEPTH):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str) or not reference.startswith("#"):
            break
        schema = root
        for part in reference.lstrip("#/").split("/"):
            schema = schema.get(part) if part and isinstance(schema, dict) else schema
    return schema if isinstance(schema, dict) else {}
