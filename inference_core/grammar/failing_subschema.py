"""Finds the smallest part of a JSON schema that cannot be compiled, so that a refusal can name it."""

from collections.abc import Callable, Iterator
from typing import Any

# Keywords whose value is a schema, a list of schemas, or a mapping of names to schemas.
_ONE = ("items", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPPINGS = ("$defs", "definitions", "properties", "patternProperties", "dependentSchemas")
_MOST_TRIALS = 500


def failing_subschema(schema: Any, error_of: Callable[[Any], str | None]) -> tuple[str, str | None]:
    """Where in a schema that fails the failure is, as `.properties.age`, and what `error_of` says of that part.

    A part that cannot be compiled by itself either is where to look further; ("", its error) if no part fails alone.
    References are followed through the definitions of the whole.
    """
    path, part, reason = "", schema, error_of(schema)
    definitions = {key: schema[key] for key in ("$defs", "definitions") if isinstance(schema, dict) and key in schema}
    trials = _MOST_TRIALS
    going = True
    while going:
        going = False
        for step, inner in _parts(part):
            if trials == 0:
                break
            trials -= 1
            alone = definitions | inner if isinstance(inner, dict) else inner
            error = error_of(alone)
            if error is not None:
                path, part, reason, going = path + step, inner, error, True
                break
    return path, reason


def _parts(schema: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(schema, dict):
        return
    for key in _MAPPINGS:
        if isinstance(schema.get(key), dict):
            yield from ((f".{key}.{name}", inner) for name, inner in schema[key].items())
    for key in _LISTS:
        if isinstance(schema.get(key), list):
            yield from ((f".{key}[{place}]", inner) for place, inner in enumerate(schema[key]))
    yield from ((f".{key}", schema[key]) for key in _ONE if isinstance(schema.get(key), dict))
