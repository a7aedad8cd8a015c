"""JSON schemas of tools as servers with rules of their own take them: an object at the top, without alternatives."""

from typing import Any

_COMBINED = ("anyOf", "oneOf", "allOf")
# What OpenAI refuses at the top as well.
_NOT_AT_TOP = (*_COMBINED, "not", "enum")


def fitting_schema(schema: dict[str, Any], *, combined: bool, needs_properties: bool) -> dict[str, Any]:
    """Return the schema of a tool's arguments as a server takes it: itself, where it fits.

    `combined`: whether `anyOf`, `oneOf` and `allOf` may stand at the top. Otherwise the properties of all alternatives
    are taken together, and those are required that every alternative requires: the result admits all that the schema
    does. `needs_properties`: whether an object must name its properties, be it none.
    """
    fits = combined or not any(name in schema for name in _NOT_AT_TOP)
    if fits and schema.get("type") == "object" and ("properties" in schema or not needs_properties):
        return schema
    found = dict(schema) if fits else _without_alternatives(schema)
    found["type"] = "object"
    if needs_properties:
        found.setdefault("properties", {})
    return found


def _without_alternatives(schema: dict[str, Any]) -> dict[str, Any]:
    found = {name: value for name, value in schema.items() if name not in _NOT_AT_TOP}
    properties, required = _object(found.get("properties")), _names(found.get("required"))
    for part in _schemas(schema.get("allOf")):
        inner = _without_alternatives(part)
        properties = _object(inner.get("properties")) | properties
        required |= _names(inner.get("required"))
    for keyword in ("anyOf", "oneOf"):
        parts = [_without_alternatives(part) for part in _schemas(schema.get(keyword))]
        for part in parts:
            properties = _object(part.get("properties")) | properties
        if parts:
            required |= set.intersection(*(_names(part.get("required")) for part in parts))
    found["properties"] = properties
    found.pop("required", None)
    if known := [name for name in properties if name in required]:
        found["required"] = known
    return found


def _schemas(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _object(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, dict) else {}


def _names(value: Any) -> set[str]:
    return {one for one in value if isinstance(one, str)} if isinstance(value, list) else set()
