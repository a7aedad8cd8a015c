"""Rewrites JSON schemas for the grammar library, which reads some keywords inexactly and refuses others.

Formats, which more than one in a hundred real schemas needs, become patterns, and patterns are converted. Flags of
OpenAPI 3.0, which generators write, become bounds. The rewritten schema allows what the original allows, or a part of
it. Some of what the library reads inexactly is refused here. The rest, such as `oneOf`, which it reads as `anyOf`, is
found when the finished answer is validated.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from inference_core.grammar.patterns import FORMATS, PARTS, library_pattern

# Keywords whose value is a schema, a list of schemas, or a mapping of names to schemas.
ONE = ("items", "additionalItems", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames")
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
MAPPINGS = ("$defs", "definitions", "properties", "patternProperties", "dependentSchemas")
# Numbers that the library keeps exactly, bounds below the first: it computes in float64.
_EXACT = 1 << 53
_MOST = (1 << 63) - 1024
_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
_FLAGS = (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum"))
_PATTERNS = FORMATS | PARTS


class InexpressibleError(ValueError):
    """A value that no grammar of the library has. The message names it; `path`: its schema, as `.properties.age`."""

    path = ""


def for_library(schema: Any) -> Any:
    """Rewrite a parsed schema. Raises `InexpressibleError`, `RecursionError`."""
    if not isinstance(schema, dict):
        return schema
    rewritten = {key: _inner(key, value) for key, value in schema.items()}
    if rewritten.get("uniqueItems") is False:
        del rewritten["uniqueItems"]
    _write_flags(rewritten)
    _check_values(rewritten)
    _check_bounds(rewritten)
    if "prefixItems" in schema and "additionalItems" in schema:
        raise InexpressibleError("additionalItems says nothing where prefixItems stands; write items instead")
    _write_patterns(rewritten)
    return rewritten


def _inner(key: str, value: Any) -> Any:
    if key in MAPPINGS and isinstance(value, dict):
        return {name: _at(f".{key}.{name}", part) for name, part in value.items()}
    if key in LISTS and isinstance(value, list):
        return [_at(f".{key}[{index}]", part) for index, part in enumerate(value)]
    return _at(f".{key}", value) if key in ONE else value


def _at(step: str, part: Any) -> Any:
    try:
        return for_library(part)
    except InexpressibleError as error:
        error.path = step + error.path
        raise


def _write_flags(schema: dict[str, Any]) -> None:
    """Write the flags of draft 4 and OpenAPI 3.0 as bounds, which the library does not read."""
    for flag, bound in _FLAGS:
        if isinstance(is_exclusive := schema.get(flag), bool):
            del schema[flag]
            if is_exclusive and bound in schema:
                schema[flag] = schema.pop(bound)


def _check_values(schema: Mapping[str, Any]) -> None:
    """Refuse values of `const` and `enum` that the library does not write as they are."""
    for key in ("const", "enum"):
        for number in _leaves(schema.get(key)):
            is_whole = isinstance(number, int) and not isinstance(number, bool)
            if is_whole and (abs(number) > _MOST or int(float(number)) != number):
                raise InexpressibleError(f"{key}: {_named(number)} is no number that grammars hold exactly")


def _check_bounds(schema: Mapping[str, Any]) -> None:
    """Refuse bounds that float64 lacks."""
    for key in _BOUNDS:
        bound = schema.get(key)
        if isinstance(bound, int | float) and abs(bound) >= _EXACT:
            raise InexpressibleError(
                f"{key}: {_named(bound)} is no bound that grammars hold exactly; use less than 2^53"
            )


def _write_patterns(schema: dict[str, Any]) -> None:
    """Write patterns, and formats as patterns, in the library's syntax."""
    if isinstance(schema.get("pattern"), str):
        schema["pattern"] = library_pattern(schema["pattern"])
    patterns = schema.get("patternProperties")
    if isinstance(patterns, dict):
        schema["patternProperties"] = {library_pattern(key): value for key, value in patterns.items()}
    name = schema.get("format")
    if isinstance(name, str):
        del schema["format"]
        kinds = schema.get("type", "string")
        if name in _PATTERNS and "string" in (kinds if isinstance(kinds, list) else [kinds]):
            whole: dict[str, Any] = {"pattern": library_pattern(f"^(?:{_PATTERNS[name]})$")}
            if "pattern" in schema:
                others = schema.get("allOf")
                whole = {"allOf": [*(others if isinstance(others, list) else ()), whole]}
            schema |= whole


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield value


def _named(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
