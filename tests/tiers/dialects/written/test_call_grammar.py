"""Grammars of forced and strict calls: what they allow is parsed back as the same calls."""

import json
from typing import Any

import jsonschema
import pytest

from inference_core.protocol import Grammar
from tests.inference_core.grammar.test_answers_obey import random_answer
from tiers.conversation import Tool, Tooling
from tiers.dialects.written.call_dialects import HERMES, LLAMA3, MISTRAL, CallDialect
from tiers.dialects.written.call_grammar import call_grammar
from tiers.dialects.written.call_parser import CallParser
from tiers.errors import TierRequestError

ADD: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["a"],
    "additionalProperties": False,
}
# A schema that refers to its own root and definitions must mean the same inside the grammar of a call.
LINKED: dict[str, Any] = {
    "type": "object",
    "properties": {"next": {"$ref": "#/$defs/end"}},
    "required": ["next"],
    "additionalProperties": False,
    "$defs": {"end": {"enum": ["na", None]}},
}
TOOLS = (Tool(name="add", parameters=ADD, strict=True), Tool(name="link", parameters=LINKED), Tool(name="now"))
SCHEMAS = {tool.name: tool.schema for tool in TOOLS}


def calls_in(dialect: CallDialect, answer: str) -> tuple[str, list[tuple[str, str]]]:
    parser = CallParser(dialect, SCHEMAS)
    said = [parser.feed(answer), parser.finish()]
    calls: list[list[str]] = []
    for delta in (delta for part in said for delta in part.calls):
        if delta.id:
            calls.append([delta.name, ""])
        calls[-1][1] += delta.arguments
    return "".join(part.text for part in said), [(name, arguments) for name, arguments in calls]


@pytest.mark.parametrize("dialect", [HERMES, LLAMA3, MISTRAL], ids=lambda d: d.name)
@pytest.mark.parametrize("parallel", [False, True])
def test_a_forced_answer_is_valid_calls_and_nothing_else(dialect: CallDialect, parallel: bool) -> None:
    grammar = call_grammar(Tooling(tools=TOOLS, choice="required", parallel=parallel), dialect, {}, None)
    assert grammar is not None
    seen = set()
    for seed in range(12):
        answer = random_answer(grammar, seed, most=3000)
        assert answer is not None
        text, calls = calls_in(dialect, answer)
        assert text == ""
        assert len(calls) == 1 or (parallel and 1 < len(calls) <= 8)
        for name, arguments in calls:
            seen.add(name)
            jsonschema.validate(json.loads(arguments), SCHEMAS[name])
    assert len(seen) > 1


def test_a_named_function_is_the_only_one_that_is_called() -> None:
    grammar = call_grammar(Tooling(tools=TOOLS, choice="named", name="link", parallel=False), HERMES, {}, None)
    assert grammar is not None
    assert grammar.schemas == (("tools[1].function.parameters", json.dumps(LINKED)),)
    for seed in range(4):
        answer = random_answer(grammar, seed)
        assert answer is not None
        ((name, arguments),) = calls_in(HERMES, answer)[1]
        assert name == "link"
        jsonschema.validate(json.loads(arguments), LINKED)


def test_tools_at_will_bind_nothing_unless_one_is_strict_or_the_answer_is_bound() -> None:
    assert call_grammar(Tooling(tools=TOOLS[1:]), HERMES, {}, None) is None
    assert call_grammar(Tooling(tools=TOOLS), HERMES, {}, None) is not None
    answer = Grammar(kind="json_object")
    assert call_grammar(Tooling(tools=TOOLS, choice="none"), HERMES, {}, answer) is answer


@pytest.mark.parametrize("dialect", [HERMES, LLAMA3, MISTRAL], ids=lambda d: d.name)
def test_with_a_constrained_answer_the_grammar_allows_calls_or_the_answer(dialect: CallDialect) -> None:
    person = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    bound = Grammar(kind="json_schema", text=json.dumps(person))
    grammar = call_grammar(Tooling(tools=TOOLS, parallel=False), dialect, {}, bound)
    assert grammar is not None
    kinds = set()
    for seed in range(60):
        if len(kinds) == 2:
            break
        answer = random_answer(grammar, seed)
        if answer is None:
            continue
        text, calls = calls_in(dialect, answer)
        kinds.add(bool(calls))
        if not calls:
            jsonschema.validate(json.loads(text), person)
    assert kinds == {False, True}


def test_free_text_with_a_strict_function_constrains_a_started_call() -> None:
    from tests.inference_core.grammar.byte_vocabulary import ByteVocabulary
    from tests.inference_core.grammar.test_answers_obey import COMPILER

    vocabulary = ByteVocabulary()
    grammar = call_grammar(Tooling(tools=TOOLS[:1]), HERMES, {}, None)
    assert grammar is not None
    for said, fits in (
        ("Just < text > here.", True),
        ('Well.\n<tool_call>\n{"name": "add", "arguments": {"a": 7}}\n</tool_call>\nDone', True),
        ('<tool_call>\n{"name": "sub"', False),
        ('<tool_call>\n{"name": "add", "arguments": {"a": 777', False),
    ):
        matcher = COMPILER.compile(grammar)()
        tokens = vocabulary.encode_continued(said)
        taken = matcher._state.try_consume_tokens(tokens)
        assert (taken == len(tokens)) is fits, said


def test_a_regular_expression_cannot_be_combined_with_optional_tools() -> None:
    with pytest.raises(TierRequestError) as caught:
        call_grammar(
            Tooling(tools=TOOLS), HERMES, {}, Grammar(kind="regex", text="a", param="structured_outputs.regex")
        )
    assert caught.value.param == "structured_outputs.regex"


@pytest.mark.parametrize("text", ["{", '{"items":' * 20_000 + "{}" + "}" * 20_000], ids=["cut off", "deep"])
def test_a_schema_that_cannot_be_read_is_refused_by_its_field(text: str) -> None:
    answer = Grammar(kind="json_schema", text=text, param="structured_outputs.json")
    with pytest.raises(TierRequestError) as caught:
        call_grammar(Tooling(tools=TOOLS), HERMES, {}, answer)
    assert caught.value.param == "structured_outputs.json"


def test_markers_that_are_control_tokens_are_named_by_their_ids() -> None:
    grammar = call_grammar(Tooling(tools=TOOLS, choice="required"), MISTRAL, {"[TOOL_CALLS]": 5}, None)
    assert grammar is not None
    assert '<[5]> "["' in grammar.text
