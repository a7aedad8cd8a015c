"""An answer that could not end valid is left at the value that did not hold, when it is made again."""

import json
from typing import Any

import pytest

from inference_core.grammar.compiler import value_start
from inference_core.protocol import Grammar, SamplingParams
from tests.inference_core.grammar.byte_vocabulary import ByteVocabulary, byte_compiler
from tests.inference_core.grammar.test_core_with_grammars import World

VOCABULARY = ByteVocabulary()
COMPILER = byte_compiler()
OVERLAPPING = {"oneOf": [{"type": "integer", "minimum": 0}, {"type": "integer", "maximum": 9}]}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "n": OVERLAPPING},
    "required": ["name", "n"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("path", "rest"),
    [
        ([], '{"a": [1, {"b" : "x,]"}], "c": 2}'),
        (["a"], '[1, {"b" : "x,]"}], "c": 2}'),
        (["a", 1, "b"], '"x,]"}], "c": 2}'),
        (["c"], "2}"),
        (["a", 7], '[1, {"b" : "x,]"}], "c": 2}'),
    ],
)
def test_a_path_leads_to_the_start_of_its_value(path: list[str | int], rest: str) -> None:
    text = ' {"a": [1, {"b" : "x,]"}], "c": 2}'
    assert text[value_start(text, path) :] == rest


def allowed_after(schema: Any, start: str, avoided: str) -> set[int]:
    avoid = tuple(VOCABULARY.encode_continued(avoided))
    matcher = COMPILER.compile(Grammar(kind="json_schema", text=json.dumps(schema), avoid=avoid))()
    for token in VOCABULARY.encode_continued(start):
        matcher.accept(token)
    matcher.ask_masks(())
    mask = matcher.masks()[0]
    return {token for token in range(256) if mask[token // 8] >> token % 8 & 1}


def test_another_token_is_drawn_where_the_value_began_and_nowhere_else() -> None:
    failed = '{"name": "x", "n": 5}'
    before = allowed_after(SCHEMA, '{"name": "x", "n": ', "")
    assert allowed_after(SCHEMA, '{"name": "x", "n": ', failed) == before - {ord("5")}
    assert ord("5") in allowed_after(SCHEMA, '{"name": "y", "n": ', failed)
    assert ord("x") in allowed_after(SCHEMA, '{"name": "', failed)


def test_a_value_without_a_choice_leaves_the_answer_at_the_last_choice() -> None:
    schema = {"type": "array", "items": {"const": 1}, "minItems": 1, "oneOf": [{"minItems": 1}, {"maxItems": 4}]}
    assert allowed_after(schema, "[1", "[1]") == {ord(",")}


def test_a_greedy_answer_that_failed_is_another_one_the_second_time() -> None:
    overlapping = {"oneOf": [{"type": "integer", "minimum": -(10**9)}, {"type": "integer", "maximum": 10**9}]}
    schema = {"type": "object", "properties": {"n": overlapping}, "required": ["n"], "additionalProperties": False}

    def ask(avoid: tuple[int, ...]) -> World:
        world = World()
        grammar = Grammar(kind="json_schema", text=json.dumps(schema), avoid=avoid)
        for first in range(20):
            sampling = SamplingParams(temperature=0.0, max_tokens=30, grammar=grammar)
            world.add(f"r{first}", sampling, prompt=(first + 1, 2))
            world.drain()
        return world

    world = ask(())
    failed = [key for key, end in world.ends.items() if end.error_kind == "invalid_end"]
    assert failed
    assert all("'oneOf'" in str(world.ends[key].error) for key in failed)
    tokens = world.tokens[failed[0]]
    again = ask(tuple(tokens))
    assert again.tokens[failed[0]][: len(tokens)] != tokens
