"""What a request's schema says of a value, and what happens where it says nothing."""

from typing import Any

import pytest

from quality.judges.json_answers import UnsupportedSchemaError, is_valid

TREE = {
    "type": "object",
    "properties": {"left": {"$ref": "#"}, "size": {"$ref": "#/$defs/s"}},
    "$defs": {"s": {"type": "integer"}},
}


def test_references_within_the_schema_are_followed() -> None:
    assert is_valid({"left": {"left": {"size": 1}}}, TREE)
    assert not is_valid({"left": {"left": {"size": "1"}}}, TREE)


def test_a_schema_without_a_draft_is_read_as_2020_12() -> None:
    pair = {"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "string"}}
    assert is_valid([1, "a"], pair)
    assert not is_valid(["a", 1], pair)


def test_a_schema_that_names_an_older_draft_is_read_by_it() -> None:
    pair = {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "integer"}, {"type": "string"}]}
    assert is_valid([1, "a"], pair)
    assert not is_valid(["a", 1], pair)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/nowhere"},
        {"$ref": "https://example.com/schema"},
        {"$ref": "#"},
        {"type": "thing"},
        {"pattern": "("},
        {"required": 5, "type": "object"},
        ["no schema"],
        {"allOf": [{"$ref": "#"}]},
    ],
)
def test_a_schema_that_cannot_be_evaluated_is_refused(schema: Any) -> None:
    with pytest.raises(UnsupportedSchemaError):
        is_valid("x" if isinstance(schema, dict) and "pattern" in schema else {}, schema)


@pytest.mark.parametrize(
    "schema",
    [{"pattern": "^(a+)+$"}, {"anyOf": [{"not": {"pattern": "^(a+)+$"}}]}, {"patternProperties": {"^(a+)+$": {}}}],
    ids=["pattern", "nested", "names"],
)
def test_no_expression_of_a_caller_is_evaluated(schema: object) -> None:
    long = "a" * 60 + "!"  # would take for ever

    for value in (long, {long: 1}):
        with pytest.raises(UnsupportedSchemaError, match="patterns"):
            is_valid(value, schema)


@pytest.mark.parametrize("schema", [7, {"$schema": {}}, {"$schema": 5}], ids=["number", "object", "draft 5"])
def test_a_schema_of_another_type_is_refused(schema: object) -> None:
    with pytest.raises(UnsupportedSchemaError, match="invalid"):
        is_valid("a", schema)
