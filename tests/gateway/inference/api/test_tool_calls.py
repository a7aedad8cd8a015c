"""Tools and grammars through the API: what reaches a tier, and how its calls look to the official client."""

import json
from typing import Any

import pytest

from tests.support.app import RunningGateway
from tiers.conversation import ToolCallDelta

pytestmark = pytest.mark.asyncio(loop_scope="module")
HELLO = [{"role": "user", "content": "What is the weather in Lima?"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Now.", "parameters": SCHEMA}}
# The helper takes strict tools only.
STRICT = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
CALLS = (
    ToolCallDelta(index=0, id="call_1", name="get_weather"),
    ToolCallDelta(index=0, arguments='{"city": '),
    ToolCallDelta(index=0, arguments='"Lima"}'),
    ToolCallDelta(index=1, id="call_2", name="get_weather", arguments='{"city": "Rome"}'),
)


async def ask(gateway: RunningGateway, **fields: Any) -> Any:
    return await gateway.openai.chat.completions.create(model="tier-1", messages=HELLO, **fields)


async def test_calls_of_an_answer_have_ids_names_and_arguments(gateway: RunningGateway) -> None:
    gateway.tier(1).words, gateway.tier(1).calls = (), CALLS
    answer = await ask(gateway, tools=[WEATHER])
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    called = [(c.id, c.type, c.function.name, json.loads(c.function.arguments)) for c in choice.message.tool_calls]
    assert called == [
        ("call_1", "function", "get_weather", {"city": "Lima"}),
        ("call_2", "function", "get_weather", {"city": "Rome"}),
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_caller_of_functions_gets_its_call_as_one(gateway: RunningGateway, stream: bool) -> None:
    gateway.tier(1).words, gateway.tier(1).calls = (), CALLS[:3]
    fields = {"functions": [WEATHER["function"]], "function_call": {"name": "get_weather"}, "stream": stream}
    answer = await ask(gateway, **fields)
    chunks = [chunk async for chunk in answer] if stream else [answer]
    said = [choice.delta if stream else choice.message for chunk in chunks for choice in chunk.choices]
    assert not any(one.tool_calls for one in said)
    calls = [one.function_call for one in said if one.function_call is not None]
    whole = ["".join(getattr(call, name) or "" for call in calls) for name in ("name", "arguments")]
    assert whole == ["get_weather", '{"city": "Lima"}']
    assert [choice.finish_reason for choice in chunks[-1].choices] == ["function_call"]
    tooling = gateway.tier(1).requests[0].tooling
    assert tooling is not None
    assert (tooling.choice, tooling.name, tooling.parallel) == ("named", "get_weather", False)


async def test_calls_stream_with_index_then_pieces_of_arguments(gateway: RunningGateway) -> None:
    gateway.tier(1).calls = CALLS
    chunks = [chunk async for chunk in await ask(gateway, tools=[WEATHER], stream=True)]
    pieces = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert [(p.index, p.id, p.type, p.function.name, p.function.arguments) for p in pieces] == [
        (0, "call_1", "function", "get_weather", ""),
        (0, None, None, None, '{"city": '),
        (0, None, None, None, '"Lima"}'),
        (1, "call_2", "function", "get_weather", '{"city": "Rome"}'),
    ]
    assert [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == ["tool_calls"]


async def test_the_clients_stream_helper_puts_calls_together(gateway: RunningGateway) -> None:
    gateway.tier(1).words, gateway.tier(1).calls = (), CALLS
    async with gateway.openai.chat.completions.stream(model="tier-1", messages=HELLO, tools=[STRICT]) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_completion()
    assert "tool_calls.function.arguments.done" in kinds
    assert [call.function.arguments for call in final.choices[0].message.tool_calls or []] == [
        '{"city": "Lima"}',
        '{"city": "Rome"}',
    ]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ("auto", None, True)),
        ({"tool_choice": "auto", "parallel_tool_calls": False}, ("auto", None, False)),
        ({"tool_choice": "none"}, ("none", None, True)),
        ({"tool_choice": "required"}, ("required", None, True)),
        (
            {"tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
            ("named", "get_weather", False),
        ),
    ],
)
async def test_the_choice_of_tools_reaches_the_tier(
    gateway: RunningGateway, fields: dict[str, Any], expected: tuple[str, str | None, bool]
) -> None:
    await ask(gateway, tools=[WEATHER], **fields)
    tooling = gateway.tier(1).requests[0].tooling
    assert tooling is not None
    assert (tooling.choice, tooling.name, tooling.parallel) == expected
    assert (tooling.tools[0].name, tooling.tools[0].schema) == ("get_weather", SCHEMA)


async def test_a_conversation_with_calls_and_results_reaches_the_tier(gateway: RunningGateway) -> None:
    gateway.tier(1).words, gateway.tier(1).calls = (), CALLS[:1]
    first = (await ask(gateway, tools=[WEATHER])).choices[0].message
    gateway.reset()
    history = [*HELLO, first.model_dump(), {"role": "tool", "tool_call_id": "call_1", "content": "Sunny."}]
    await gateway.openai.chat.completions.create(model="tier-1", messages=history, tools=[WEATHER])
    messages = gateway.tier(1).requests[0].messages or []
    assert [(m.role, m.text, m.call_id) for m in messages[1:]] == [
        ("assistant", "", None),
        ("tool", "Sunny.", "call_1"),
    ]
    assert [(c.id, c.name) for c in messages[1].calls] == [("call_1", "get_weather")]


@pytest.mark.parametrize(
    ("fields", "kind", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "json_object", "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
            "json_schema",
            "response_format.json_schema.schema",
        ),
        ({"extra_body": {"structured_outputs": {"json": SCHEMA}}}, "json_schema", "structured_outputs.json"),
        ({"extra_body": {"structured_outputs": {"regex": "[a-z]+"}}}, "regex", "structured_outputs.regex"),
        ({"extra_body": {"structured_outputs": {"choice": ["a", "b"]}}}, "choice", "structured_outputs.choice"),
        ({"extra_body": {"structured_outputs": {"grammar": "start: /a/"}}}, "lark", "structured_outputs.grammar"),
        (
            {"extra_body": {"structured_outputs": {"json_object": True}}},
            "json_object",
            "structured_outputs.json_object",
        ),
    ],
)  # fmt: skip
async def test_every_kind_of_grammar_reaches_the_tier(
    gateway: RunningGateway, fields: dict[str, Any], kind: str, param: str
) -> None:
    await ask(gateway, **fields)
    grammar = gateway.tier(1).requests[0].sampling.grammar
    assert grammar is not None
    assert (grammar.kind, grammar.param) == (kind, param)


async def test_completions_take_the_extension_too(gateway: RunningGateway) -> None:
    await gateway.openai.completions.create(
        model="tier-1", prompt="Say", extra_body={"structured_outputs": {"choice": ["a", "b"]}}
    )
    grammar = gateway.tier(1).requests[0].sampling.grammar
    assert grammar is not None
    assert json.loads(grammar.text) == ["a", "b"]


async def test_text_as_a_format_is_no_grammar(gateway: RunningGateway) -> None:
    await ask(gateway, response_format={"type": "text"})
    assert gateway.tier(1).requests[0].sampling.grammar is None


async def test_the_record_of_an_answer_shows_its_calls(gateway: RunningGateway) -> None:
    gateway.tier(1).words, gateway.tier(1).calls = (), CALLS[:3]
    raw = await gateway.openai.chat.completions.with_raw_response.create(
        model="tier-1", messages=HELLO, tools=[WEATHER]
    )
    shown = (await gateway.http.get(f"/v1/requests/{raw.parse().id}")).json()
    assert shown["answer"] == 'get_weather({"city": "Lima"})'
    assert shown["finish_reason"] == "tool_calls"
