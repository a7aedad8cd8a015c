"""Validation by schema agrees with an implementation of the whole standard."""

from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quality.judges.json_schema import UnsupportedSchemaError, is_valid
from tests.examples import examples

_SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, 1.0, 2.5, "", "a", "ab", "b"])
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
)
_BOUNDS = st.integers(0, 3)
_PATTERNS = st.sampled_from(["^a", "b$", "[ab]b"])


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    named = st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["object", "array", "string", "number", "integer", "boolean", ["string", "null"]]),
            "enum": st.lists(_SCALARS, min_size=1, max_size=3),
            "const": _SCALARS,
            "minimum": _BOUNDS,
            "exclusiveMaximum": _BOUNDS,
            "multipleOf": st.sampled_from([1, 2, 0.5]),
            "minLength": _BOUNDS,
            "maxLength": _BOUNDS,
            "pattern": _PATTERNS,
            "minItems": _BOUNDS,
            "maxItems": _BOUNDS,
            "uniqueItems": st.booleans(),
            "items": inner,
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "minProperties": _BOUNDS,
            "maxProperties": _BOUNDS,
            "required": st.lists(st.sampled_from("ab"), max_size=2, unique=True),
            "properties": named,
            "patternProperties": st.dictionaries(_PATTERNS, inner, max_size=1),
            "additionalProperties": inner,
            "propertyNames": inner,
            "allOf": st.lists(inner, min_size=1, max_size=2),
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "oneOf": st.lists(inner, min_size=1, max_size=2),
            "not": inner,
            "if": inner,
            "then": inner,
            "else": inner,
        },
    )  # fmt: skip


_SCHEMAS = st.recursive(st.booleans() | _objects(st.booleans()), _objects, max_leaves=6)


@settings(max_examples=examples(300), deadline=None)
@given(value=_VALUES, schema=_SCHEMAS)
def test_values_are_valid_by_us_where_they_are_by_the_standard(value: Any, schema: Any) -> None:
    assert is_valid(value, schema) is jsonschema.Draft202012Validator(schema).is_valid(value)


def test_references_within_the_schema_are_followed() -> None:
    tree = {
        "type": "object",
        "properties": {"left": {"$ref": "#"}, "size": {"$ref": "#/$defs/s"}},
        "$defs": {"s": {"type": "integer"}},
    }
    assert is_valid({"left": {"left": {"size": 1}}}, tree)
    assert not is_valid({"left": {"left": {"size": "1"}}}, tree)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/nowhere"},
        {"$ref": "https://example.com/schema"},
        {"$ref": "#"},
        {"unevaluatedProperties": False},
        {"type": "thing"},
        {"pattern": "("},
        {"required": 5, "type": "object"},
        ["no schema"],
    ],
)
def test_an_unsupported_keyword_is_named(schema: Any) -> None:
    with pytest.raises(UnsupportedSchemaError):
        is_valid("x" if isinstance(schema, dict) and "pattern" in schema else {}, schema)
