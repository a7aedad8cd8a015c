"""Requests as the rules of servers change them, and answers in the caller's words again."""

import json
from typing import Any

import msgspec
import pytest

from tests.support.upstream import Call as Received
from tests.support.upstream import LoopbackServer
from tests.tiers.remote.strict_servers import bedrock_answer
from tests.tiers.tier_world import chat, collect, remote_spec
from tiers.conversation import Call, Opaque, OpaqueFields, Tool, Tooling, Turn
from tiers.dialects.adapted_request import adapted, closed_schema, nearest_effort
from tiers.dialects.adapted_turns import NO_RESULT
from tiers.dialects.rules import Rules, rules_of
from tiers.remote.remote_tier import RemoteTier
from tiers.tier import GenerationRequest

LONG = "mcp__" + "x" * 80


async def spoken(call: Received) -> None:
    """One, two, three, in pieces or whole."""
    if not call.body["stream"]:
        await call.whole("one two three")
        return
    await call.begin()
    for piece in ("one t", "wo thr", "ee four"):
        await call.chunk(piece)
    await call.end(finish="length")


@pytest.mark.parametrize("whole", [False, True])
async def test_stop_strings_that_a_server_does_not_take_end_the_answer_here(whole: bool) -> None:
    async with LoopbackServer(spoken) as server:
        tier = RemoteTier(remote_spec(server.base_url, kind="openai-provider", model="gpt-5"))
        tier._dialect.rules = rules_of("openai", "gpt-5")
        request = chat(stop=("three", "zzz"), max_tokens=50, whole=whole)
        (answer,), _ = await collect(tier, request)
        assert (answer.text, answer.finish_reason, answer.stop_sequence) == ("one two ", "stop", "three")
        assert "stop" not in server.calls[0].body
        assert request.sent.changed == ("stop",)
        (answer,), _ = await collect(tier, chat(stop=("zzz",), max_tokens=50, whole=whole))
        assert answer.text.startswith("one two three")
        await tier.close()


def asked(*turns: Turn, **fields: Any) -> GenerationRequest:
    request = chat(**fields)
    return GenerationRequest(request_id="r", sampling=request.sampling, messages=list(turns), tooling=request.tooling)


def turn(role: str, content: str = "", **fields: Any) -> Turn:
    return Turn.of(role, content, **fields)


def call(call_id: str, name: str = "f") -> Turn:
    return turn("assistant", calls=(Call(id=call_id, name=name, arguments="{}"),))


@pytest.mark.parametrize("server", ["anthropic", "bedrock", "mistral"])
def test_ids_that_repeat_or_do_not_fit_stay_pairs_in_order(server: str) -> None:
    request = asked(
        turn("user", "q"), call("f:0"), turn("tool", "1", call_id="f:0"), call("f:0"),
        turn("tool", "2", call_id="f:0"),
    )  # fmt: skip
    found = adapted(request, rules_of(server, "m"))
    _, first, one, second, two = found.request.messages or []
    assert first.calls[0].id == one.call_id
    assert second.calls[0].id == two.call_id
    assert (one.call_id == two.call_id) is (server == "mistral")
    assert found.changed == ("messages.tool_calls.id",)


def result(call_id: str, content: str = "r") -> Turn:
    return turn("tool", content, call_id=call_id)


NONE = result("c2", NO_RESULT)
BOTH = turn("assistant", calls=call("c1").calls + call("c2").calls)
Q = turn("user", "q")


@pytest.mark.parametrize(
    ("given", "sent"),
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
def test_each_call_has_its_result_right_after_it(given: list[Turn], sent: list[Turn]) -> None:
    found = adapted(asked(*given), Rules(paired_results=True))
    assert found.request.messages == sent
    assert found.changed == ("messages",)


def test_an_interrupted_custom_tool_has_a_result_of_its_own_type() -> None:
    kinds = {"c1": "custom_tool_call", "c2": "function_call"}
    items = [{"type": kind, "call_id": one} for one, kind in kinds.items()]
    both = BOTH.with_opaque([Opaque("responses", json.dumps(item).encode(), item["type"]) for item in items])
    *_, custom, function, _ = adapted(asked(Q, both, Q), Rules(paired_results=True)).request.messages or []
    said = json.loads(custom.written("responses")[0].json)
    assert said == {"type": "custom_tool_call_output", "call_id": "c1", "output": NO_RESULT}
    assert function == NONE


@pytest.mark.parametrize("given", [[Q, BOTH, result("c2"), result("c1"), Q], [Q, BOTH]])
def test_paired_results_stay_and_so_do_calls_that_still_wait(given: list[Turn]) -> None:
    request = asked(*given)
    assert adapted(request, Rules(paired_results=True)).request is request


def test_mistrals_assistant_speaks_between_a_result_and_the_user() -> None:
    request = asked(Q, call("abcdefgh1"), result("abcdefgh1"), Q)
    for server, model in (("mistral", "m"), ("vllm", "mistralai/Devstral-2")):
        found = adapted(request, rules_of(server, model)).request.messages or []
        assert [one.role for one in found] == ["user", "assistant", "tool", "assistant", "user"]


def test_names_are_shortened_the_same_way_each_time_and_apart() -> None:
    tools = Tooling(tools=(Tool(name=LONG), Tool(name=LONG + "y"), Tool(name="short")), choice="named", name=LONG)
    request = asked(turn("user", "q"), call("c", LONG), tooling=tools)
    first, again = (adapted(request, rules_of("openai", "gpt-4.1")) for _ in range(2))
    tooling = first.request.tooling
    assert tooling is not None
    names = [tool.name for tool in tooling.tools]
    assert len(set(names)) == 3
    assert max(map(len, names)) == 64
    assert first.tool_names == again.tool_names == {names[0]: LONG, names[1]: LONG + "y"}
    assert tooling.name == names[0] == (first.request.messages or [])[1].calls[0].name


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
    found = adapted(request, Rules(system=where)).request.messages or []
    assert [one.role for one in found] == roles
    text = "|".join(one.text for one in found)
    assert text.index("S1") < text.index("b") < text.index("S2") < text.index("c")


@pytest.mark.parametrize("server", ["anthropic", "gemini", "bedrock"])
def test_a_system_turn_alone_is_what_is_asked(server: str) -> None:
    fitted = adapted(asked(turn("system", "Be brief."), turn("system", "Say hi.")), rules_of(server, "claude-opus-4-8"))
    assert [one.role for one in fitted.request.messages or ()] == ["user"]
    assert "Say hi." in (fitted.request.messages or ())[0].text
    assert "messages.role" in fitted.changed


@pytest.mark.parametrize(
    ("asked_for", "taken", "sent"),
    [("max", ("low", "high"), "high"), ("none", ("low", "high"), "low"), ("medium", ("low", "high"), "high")],
)
def test_an_effort_is_that_which_is_not_below(asked_for: str, taken: tuple[str, ...], sent: str) -> None:
    assert nearest_effort(asked_for, taken) == sent


async def test_at_most_four_cache_points_reach_bedrock() -> None:
    block = Opaque("messages", b'{"type":"text","text":"x","cache_control":{"type":"ephemeral"}}', "text")
    marked = {"opaque": [block], "cache_mark": True}
    turns = [turn("system", "x", **marked)]
    for _ in range(3):
        turns += [turn("user", "x", **marked), turn("assistant", "x", **marked)]
    turns.append(turn("user", "x", **marked))

    async def answer(call: Received) -> None:
        await call.reply(200, bedrock_answer(call.body))

    async with LoopbackServer(answer) as server:
        model = "eu.anthropic.claude-sonnet-4-5"
        tier = RemoteTier(
            remote_spec(server.base_url, kind="bedrock", model=model, api_key_env="K"), environ={"K": "k"}
        )
        request = GenerationRequest(request_id="r", sampling=chat().sampling, messages=turns, max_tokens=9, whole=True)
        await collect(tier, request)
        body = server.calls[0].body
        await tier.close()
    point = {"cachePoint": {"type": "default"}}
    assert body["system"][-1] == point
    assert [point in one["content"] for one in body["messages"]] == [False] * 4 + [True] * 3


NAME: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": 40, "description": "of a person"}
A = {"$ref": "#/$defs/A"}
NAME_SENT = {"type": "string", "description": 'of a person\nIt must hold: {"minLength":1,"maxLength":40}'}


@pytest.mark.parametrize(
    ("given", "sent"),
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
def test_a_schema_is_closed_and_what_else_it_demands_is_said(given: Any, sent: Any) -> None:
    before = json.dumps(given)
    assert closed_schema(given) == sent
    assert closed_schema(sent) == sent
    assert json.dumps(given) == before


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


FENCED = [
    ('```json\n{"a": "}```"}\n```', '{"a": "}```"}'),
    ('Here it is:\n\n```\n[1, "\\\\", "\\""]\n```\nAnything else?', '[1, "\\\\", "\\""]'),
    ('{"a": "```json {}```"}', '{"a": "```json {}```"}'),
    ('"```json {}```"', '"```json {}```"'),
    ("I cannot say {that}.", "I cannot say {that}."),
    ("```python\nprint()\n```", "```python\nprint()\n```"),
    ('```json\n{"a": [1', '{"a": [1'),
    ("true", "true"),
    ("", ""),
]


@pytest.mark.parametrize(("said", "text"), FENCED)
@pytest.mark.parametrize("size", [0, 1, 2, 5])
async def test_json_comes_without_its_code_block(said: str, text: str, size: int) -> None:
    async def play(call: Call) -> None:
        if not size:
            await call.whole(said)
            return
        await call.begin()
        for place in range(0, len(said), size):
            await call.chunk(said[place : place + size])
        await call.end()

    async with LoopbackServer(play) as server:
        tier = RemoteTier(remote_spec(server.base_url))
        for form, expected in (({"type": "json_object"}, text), (None, said)):
            request = msgspec.structs.replace(chat(whole=not size), response_format=form)
            (answer,), _ = await collect(tier, request)
            assert answer.text == expected
        await tier.close()


async def test_json_of_claude_comes_without_its_code_block_unless_its_own_api_was_asked() -> None:
    said, text = FENCED[0]

    async def play(call: Received) -> None:
        body = {"type": "message", "content": [{"type": "text", "text": said}], "stop_reason": "end_turn"}
        await call.reply(200, body | {"usage": {"input_tokens": 9, "output_tokens": 9}})

    async with LoopbackServer(play) as server:
        tier = RemoteTier(remote_spec(server.base_url, kind="anthropic"))
        for fields, expected in ((None, text), (OpaqueFields("messages"), said)):
            request = msgspec.structs.replace(
                chat(whole=True), response_format={"type": "json_object"}, opaque=fields, wants_opaque=True
            )
            (answer,), _ = await collect(tier, request)
            assert answer.text == expected
        await tier.close()
