"""Written answers give the value that they must, agree where they must, and odd texts are read in bounded work."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tiers.final_answer.written_answers import (
    CHOICE,
    CODE,
    FORMULA,
    LEGS,
    MOOD,
    PAIRS,
    TAGS,
    WRITTEN,
)
from tiers.conversation import Call
from tiers.final_answer.extract import agree, expected_kind, final_answer
from tiers.final_answer.structured import checked_fields

CASES = [(written.prompt, text, said) for written in WRITTEN for text, said in written.texts.items()]
FORMS = (
    "\\boxed{ } [[ ]] <answer> </answer> #### answer: $ \\frac 1 , . - % ( ) [ { ' \" A B. yes \n x^ not ** ``` "
    '"answer": 1,000 1e99 \ud800 İ'
)
PIECES = [*FORMS.split(" "), "the answer is "]


@pytest.mark.parametrize(("prompt", "text", "said"), CASES)
def test_a_written_answer_gives_its_value(prompt: str, text: str, said: str | None) -> None:
    answer = final_answer(prompt, text)
    assert (None if answer is None else f"{answer.kind} {answer.value}") == said


@pytest.mark.parametrize(("prompt", "text", "other", "same"), PAIRS)
def test_answers_agree_only_if_they_say_the_same(prompt: str, text: str, other: str, same: bool) -> None:
    assert agree(final_answer(prompt, text), final_answer(prompt, other)) is same
    assert agree(final_answer(prompt, other), final_answer(prompt, text)) is same


@pytest.mark.parametrize(
    ("prompt", "kind"),
    [
        ("Write a poem about how many legs dogs have.", None),
        ("Write a function that adds two numbers.\nassert f(1, 2) == 3", None),
        ("What is the difference between TCP and UDP?", None),
        ("How do I learn Spanish?", None),
        ("Explain gravity.", None),
        ("who sings oh what a night", "entity"),
        (LEGS, "number"),
        (CHOICE, "choice"),
        (CODE, "literal"),
        (MOOD, "label"),
        (TAGS, "string"),
        ("x" * 50_000 + "\nHow many legs do nine dogs have?", "number"),
    ],
)
def test_the_kind_is_known_from_the_prompt(prompt: str, kind: str | None) -> None:
    assert expected_kind(prompt) == kind


def _call(arguments: str) -> list[Call]:
    return [Call(id="x", name="book", arguments=arguments)]


@pytest.mark.parametrize(
    ("call", "other", "same"),
    [
        ('{"a": 1, "b": 2}', '{"b":2,"a":1}', True),
        ('{"a": 1}', '{"a": "1"}', False),
        ('{"a": 1}', '{"a": true}', False),
        ("{", "{", False),
    ],
)
def test_tool_calls_agree_by_name_and_arguments_with_their_types(call: str, other: str, same: bool) -> None:
    assert agree(final_answer("", "", None, _call(call)), final_answer("", "", None, _call(other))) is same


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Rome", "Oslo"]},
        "note": {"type": "string"},
        "when": {"type": "string", "format": "date"},
        "parts": {"type": "array", "items": {"$ref": "#/$defs/part"}},
    },
    "$defs": {"part": {"type": "object", "properties": {"n": {"type": "integer"}, "why": {"type": "string"}}}},
}


def test_structured_outputs_agree_by_field_and_free_text_does_not_count() -> None:
    answer = {"city": "Rome", "note": "warm", "when": "2026-01-01", "parts": [{"n": 1, "why": "a"}]}
    other = {"city": "Oslo", "note": "cold", "when": "2026-01-01", "parts": [{"n": 1, "why": "b"}]}
    texts = [json.dumps(value) for value in (answer, other)]
    fields, others = (checked_fields(SCHEMA, text) for text in texts)
    assert fields == {"city": '"Rome"', "when": '"2026-01-01"', "parts": '[{"n":1}]'}
    assert {name: value == others[name] for name, value in fields.items()} == {
        "city": False,
        "when": True,
        "parts": True,
    }
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    assert expected_kind("Where?", form) == "fields"
    same = json.dumps(answer | {"note": "other"})
    assert agree(final_answer("Where?", texts[0], form), final_answer("Where?", same, form))
    assert not agree(final_answer("Where?", texts[0], form), final_answer("Where?", texts[1], form))
    assert checked_fields(SCHEMA, "no JSON") == {}


@pytest.mark.parametrize("kind", [5, True, None, {}, [5]])
def test_a_schema_whose_type_is_none_has_nothing_to_check(kind: object) -> None:
    form = {"type": "json_schema", "json_schema": {"schema": {"type": kind}}}
    assert expected_kind("How many?", form) is None


def test_a_schema_of_free_text_has_nothing_to_check() -> None:
    form = {"type": "json_schema", "json_schema": {"schema": {"properties": {"essay": {"type": "string"}}}}}
    assert expected_kind("How many?", form) is None
    assert final_answer("How many?", '{"essay": "x"}', form) is None


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=60).map("".join), st.integers(1, 400))
def test_any_text_is_read_and_agrees_with_itself_alone_if_it_has_an_answer(text: str, times: int) -> None:
    for prompt in (LEGS, CHOICE, CODE, FORMULA, MOOD, TAGS, text):
        answer = final_answer(prompt, text)
        assert agree(answer, answer) is (answer is not None)
    expected_kind(text * times)
