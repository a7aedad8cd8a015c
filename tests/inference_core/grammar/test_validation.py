"""Answers are checked by the dialect that a schema names, or else by what its keywords mean in their drafts."""

import json
from random import Random
from typing import Any

import pytest

from inference_core.errors import InvalidRequestError
from inference_core.grammar.validation import AnswerValidator, UncheckedError
from inference_core.protocol import Grammar
from tests.examples import examples
from tests.inference_core.grammar.drawn_schemas import drawn_schema
from tests.inference_core.grammar.test_answers_obey import COMPILER, random_answer
from tests.inference_core.grammar.test_schema_rewriting import allows, follows

PAIR = {"type": "array", "items": [{"type": "integer"}, {"type": "string"}], "minItems": 2, "maxItems": 2}
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
TEXTS = ["1", '"a"', "null", "[]", '[1, "a", 2]', "[[1, 2], {}]", "{}", '{"score": 1, "b": [1]}', "[", "1e999"]


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        (PAIR, ['[1, "a"]'], ['["a", 1]', "[1]", '[1, "a", 2]']),
        ({"anyOf": [PAIR, {"type": "null"}]}, ["null", '[1, "a"]'], ['["a", 1]']),
        ({"type": "array", "items": PAIR}, ['[[1, "a"], [2, "b"]]', "[]"], ['[[1, "a"], 5]', '[["a", 1]]']),
        ({"type": "object", "properties": {"p": PAIR}, "required": ["p"]}, ['{"p": [1, "a"]}'], ['{"p": [1, 2]}']),
        ({"type": "array", "items": [{"type": "integer"}], "additionalItems": False}, ["[]", "[1]"], ["[1, 2]"]),
        (
            {"type": "array", "items": [{"type": "integer"}], "additionalItems": {"type": "null"}},
            ["[1, null]"],
            ["[1, 2]"],
        ),
        ({"type": "array", "items": {"type": "integer"}, "additionalItems": False}, ["[1, 2]"], ['["a"]']),
        ({"type": "integer", "maximum": 5, "exclusiveMaximum": False}, ["5"], ["6"]),
        ({"$schema": DRAFT_7, **PAIR}, ['[1, "a"]'], ['["a", 1]']),
    ],
)
def test_keywords_without_a_dialect_mean_what_they_mean_in_their_drafts(
    schema: dict[str, Any], valid: list[str], invalid: list[str]
) -> None:
    validator = AnswerValidator(json.dumps(schema))

    assert [text for text in valid if validator.error(text) is not None or not allows(schema, text)] == []
    assert [text for text in invalid if validator.error(text) is None or allows(schema, text)] == []


@pytest.mark.parametrize("schema", [{"$id": 5}, {"$id": ["x"], "type": "object"}])
def test_a_schema_that_no_answer_can_be_checked_against_is_refused_before_an_answer_begins(
    schema: dict[str, Any],
) -> None:
    with pytest.raises(InvalidRequestError, match=r"cannot be compiled: .*\$id.* of the schema") as caught:
        COMPILER.compile(Grammar(kind="json_schema", text=json.dumps(schema), param="response_format"))
    assert caught.value.param == "response_format"


@pytest.mark.parametrize(
    ("schema", "is_answers_fault"),
    [
        ({"anyOf": [{"$ref": "#"}, {"const": "a"}]}, False),
        ({"oneOf": [{"type": "string", "pattern": "^a$"}, {"type": "string", "minLength": 1}]}, True),
    ],
)
def test_at_an_end_that_cannot_be_checked_the_schema_is_at_fault(
    schema: dict[str, Any], is_answers_fault: bool
) -> None:
    matcher = COMPILER.compile(Grammar(kind="json_schema", text=json.dumps(schema)))()

    assert not follows(matcher, '"a"')
    assert isinstance(matcher.failure, InvalidRequestError)
    assert matcher.has_invalid_end == is_answers_fault


def test_an_identifier_next_to_a_reference_of_draft_7_names_nothing() -> None:
    schema = {
        "$schema": DRAFT_7,
        "$id": "http://a.example/base/",
        "definitions": {
            "outer": {"$id": "http://a.example/part.json", "type": "string"},
            "inner": {"$id": "part.json", "type": "number"},
        },
        "allOf": [{"$id": "http://a.example/", "$ref": "part.json"}],
    }

    assert allows(schema, "1")
    assert not allows(schema, '"a"')


def test_no_drawn_schema_makes_a_check_fail() -> None:
    draw = Random(5)
    for _ in range(examples(300)):
        try:
            validator = AnswerValidator(json.dumps(drawn_schema(draw, sound=False)))
        except UncheckedError:
            continue
        for text in TEXTS:
            validator.failing_path(text)
            validator.error(text)


def test_an_answer_to_a_drawn_schema_comes_to_its_end() -> None:
    draw, ended = Random(7), 0
    for seed in range(examples(150)):
        grammar = Grammar(kind="json_schema", text=json.dumps(drawn_schema(draw, sound=True)))
        try:
            COMPILER.compile(grammar)
        except InvalidRequestError:
            continue
        ended += random_answer(grammar, seed, 100) is not None
    assert ended > 0
