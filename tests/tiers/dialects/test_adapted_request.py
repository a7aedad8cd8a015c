"""Requests as the rules of servers change their turns, tools and schemas. What a server then gets is recorded."""

import json
from typing import Any

import msgspec
import pytest

from tests.tiers.tier_world import chat
from tiers.conversation import Call, Opaque, Tool, Tooling, Turn
from tiers.dialects.adapted_request import adapted, closed_schema, nearest_effort
from tiers.dialects.adapted_turns import NO_RESULT
from tiers.dialects.rules import Rules, TurnRules, rules_of
from tiers.tier import GenerationRequest


def asked(*turns: Turn, **fields: Any) -> GenerationRequest:
    request = chat(**fields)
    return GenerationRequest(request_id="r", sampling=request.sampling, messages=list(turns), tooling=request.tooling)


def turn(role: str, content: str = "", **fields: Any) -> Turn:
    return Turn.of(role, content, **fields)


def call(call_id: str, name: str = "f") -> Turn:
    return turn("assistant", calls=(Call(id=call_id, name=name, arguments="{}"),))


def result(call_id: str, content: str = "r") -> Turn:
    return turn("tool", content, call_id=call_id)


NONE = result("c2", NO_RESULT)
PAIRED = Rules(turns=TurnRules(paired_results=True))
BOTH = turn("assistant", calls=call("c1").calls + call("c2").calls)
Q = turn("user", "q")


@pytest.mark.parametrize(
    ("turns", "sent"),
    [
        ([Q, call("c1"), turn("user", "wait"), result("c1")], [Q, call("c1"), result("c1"), turn("user", "wait")]),
        ([Q, BOTH, result("c1"), Q], [Q, BOTH, result("c1"), NONE, Q]),
        ([Q, BOTH, result("c1")], [Q, BOTH, result("c1"), NONE]),
        ([Q, call("c2"), Q, call("c1"), result("c1")], [Q, call("c2"), NONE, Q, call("c1"), result("c1")]),
        ([Q, result("c9"), Q], [Q, turn("user", "r"), Q]),
        (
            [Q, call("c1"), call("c2"), result("c1"), result("c2")],
            [Q, call("c1"), result("c1"), call("c2"), result("c2")],
        ),
        (
            [Q, call("c1"), result("c1", "1"), call("c1"), turn("user", "w"), result("c1", "2")],
            [Q, call("c1"), result("c1", "1"), call("c1"), result("c1", "2"), turn("user", "w")],
        ),
    ],
)
def test_each_call_has_its_result_right_after_it(turns: list[Turn], sent: list[Turn]) -> None:
    fitted = adapted(asked(*turns), PAIRED)
    assert fitted.request.messages == sent
    assert fitted.changed == ("messages",)


def test_an_interrupted_custom_tool_has_a_result_of_its_own_type() -> None:
    kinds = {"c1": "custom_tool_call", "c2": "function_call"}
    items = [{"type": kind, "call_id": call_id} for call_id, kind in kinds.items()]
    both = BOTH.with_opaque([Opaque("responses", json.dumps(item).encode(), item["type"]) for item in items])
    *_, custom, function, _ = adapted(asked(Q, both, Q), PAIRED).request.messages or []
    said = json.loads(custom.written("responses")[0].json)
    assert said == {"type": "custom_tool_call_output", "call_id": "c1", "output": NO_RESULT}
    assert function == NONE


@pytest.mark.parametrize("turns", [[Q, BOTH, result("c2"), result("c1"), Q], [Q, BOTH]])
def test_paired_results_stay_and_so_do_calls_that_still_wait(turns: list[Turn]) -> None:
    request = asked(*turns)
    assert adapted(request, PAIRED).request is request


def test_a_request_that_fits_is_passed_on_as_it_is() -> None:
    tool = Tool(name="f", parameters={"type": "object", "properties": {}})
    request = asked(turn("system", "s"), turn("user", "q"), tooling=Tooling(tools=(tool,)))
    for server in ("openai", "anthropic", "mistral", "vllm", "bedrock", "gemini"):
        assert adapted(request, rules_of(server, "m")).request is request


@pytest.mark.parametrize(
    ("where", "roles"),
    [
        ("anywhere", ["user", "system", "assistant", "system", "user"]),
        ("after-user", ["user", "system", "assistant", "user"]),
        ("first", ["user", "assistant", "user"]),
    ],
)
def test_a_late_system_turn_keeps_its_place(where: Any, roles: list[str]) -> None:
    request = asked(
        turn("user", "a"), turn("system", "S1"), turn("assistant", "b"), turn("system", "S2"), turn("user", "c")
    )
    messages = adapted(request, Rules(turns=TurnRules(system=where))).request.messages or []
    assert [message.role for message in messages] == roles
    text = "|".join(message.text for message in messages)
    assert text.index("S1") < text.index("b") < text.index("S2") < text.index("c")


@pytest.mark.parametrize(
    ("asked_for", "taken", "sent"),
    [("max", ("low", "high"), "high"), ("none", ("low", "high"), "low"), ("medium", ("low", "high"), "high")],
)
def test_an_effort_is_that_which_is_not_below(asked_for: str, taken: tuple[str, ...], sent: str) -> None:
    assert nearest_effort(asked_for, taken) == sent


NAME: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": 40, "description": "of a person"}
A = {"$ref": "#/$defs/A"}
NAME_SENT = {"type": "string", "description": 'of a person\nIt must hold: {"minLength":1,"maxLength":40}'}


@pytest.mark.parametrize(
    ("schema", "sent"),
    [
        # As Pydantic writes a model, and Zod an object.
        ({"$defs": {"A": {"type": "object", "properties": {"n": NAME}}}, "$schema": "http://json-schema.org/draft-07/",
          "type": "object", "properties": {"a": A, "b": {"allOf": [A]}}, "required": ["a"]},
         {"$defs": {"A": {"type": "object", "properties": {"n": NAME_SENT}, "additionalProperties": False}},
          "type": "object", "properties": {"a": A, "b": A}, "required": ["a"], "additionalProperties": False}),
        ({"type": "array", "items": {"oneOf": [{"type": "integer"}, {"type": "null"}]}, "minItems": 1, "maxItems": 5},
         {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "minItems": 1,
          "description": 'It must hold: {"maxItems":5}'}),
        ({"type": "string", "format": "uuid"}, {"type": "string", "format": "uuid"}),
        ({"type": "string", "format": "phone"}, {"type": "string", "description": 'It must hold: {"format":"phone"}'}),
        ({"type": ["object", "null"], "properties": {}, "additionalProperties": True},
         {"type": ["object", "null"], "properties": {}, "additionalProperties": False}),
        ({"enum": ["a", 1, None]}, {"enum": ["a", 1, None]}),
        ({"anyOf": 5}, {"anyOf": 5}),
        ({"type": 5, "properties": 3}, {"type": 5, "properties": 3}),
        # A property may have the name of a keyword.
        ({"type": "object", "properties": {"minimum": {"type": "integer", "minimum": 0}}},
         {"type": "object", "additionalProperties": False,
          "properties": {"minimum": {"type": "integer", "description": 'It must hold: {"minimum":0}'}}}),
    ],
)  # fmt: skip
def test_a_schema_is_closed_and_what_else_it_demands_is_said(schema: Any, sent: Any) -> None:
    before = json.dumps(schema)
    assert closed_schema(schema) == sent
    assert closed_schema(sent) == sent
    assert json.dumps(schema) == before


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}},
        {"type": "object", "properties": {"a": {}}},
        {"type": "array"},
        {"type": "array", "prefixItems": [{"type": "integer"}], "items": False},
        {"type": "object", "properties": {"a": {"enum": [{}]}}},
        {"allOf": [{"type": "object", "properties": {}}, {"type": "object", "properties": {}}]},
        {"$ref": "https://example.org/a.json"},
        {"$ref": "#/$defs/A", "$defs": {"A": {"type": "array", "items": {"$ref": "#/$defs/A"}}}},
        {"type": "object", "properties": {"a": {"$ref": "#"}}},
    ],
)
def test_a_schema_that_no_closed_one_stands_for_is_asked_for_in_words(schema: dict[str, Any]) -> None:
    assert closed_schema(schema) is None
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    request = msgspec.structs.replace(asked(turn("user", "Hi")), response_format=form)
    fitted = adapted(request, rules_of("anthropic", "claude-sonnet-5"))
    first, _ = fitted.request.messages or []
    assert json.dumps(schema, separators=(",", ":")) in first.text
    assert (fitted.request.response_format, fitted.changed) == (None, ("response_format",))
