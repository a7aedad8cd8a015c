"""Tools in namespaces, as Codex gives them, and choices of some tools among all: in `/v1/responses` and in chats."""

import json
from typing import Any

import httpx
import pytest

from tests.gateway.running_gateway import RunningGateway
from tiers.conversation import ToolCallDelta
from tiers.dialects.responses_schemas import ResponseTool
from tiers.dialects.responses_tools import called_tools, flat_name

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCHEMA = {"type": "object", "properties": {"target": {"type": "string"}}}
CLOSE = {"type": "function", "name": "close", "description": "Close one.", "parameters": SCHEMA, "strict": False}
NOTE = {"type": "custom", "name": "note", "description": "Note it.", "format": {"type": "text"}}
AGENTS = {"type": "namespace", "name": "agents", "description": "Other agents.", "tools": [CLOSE, NOTE]}
TOOLS: Any = [{**CLOSE, "description": "Close a file."}, AGENTS]
CALLS = (
    ToolCallDelta(index=0, id="c0", name="agents__close", arguments='{"target": "x"}'),
    ToolCallDelta(index=1, id="c1", name="agents__note", arguments='{"input": "hi"}'),
    ToolCallDelta(index=2, id="c2", name="close", arguments="{}"),
)


async def test_tools_of_a_namespace_are_functions_whose_calls_come_back_with_it(gateway: RunningGateway) -> None:
    tier = gateway.tier(1)
    tier.words, tier.calls = (), CALLS
    whole = await gateway.openai.responses.create(model="tier-1", input="x", tools=TOOLS)
    stream = await gateway.openai.responses.create(model="tier-1", input="x", tools=TOOLS, stream=True)
    last = [event async for event in stream][-1]
    assert last.type == "response.completed"
    for response in (whole, last.response):
        calls = [item.to_dict() for item in response.output]
        assert [(call["type"], call["name"], call.get("namespace")) for call in calls] == [
            ("function_call", "close", "agents"),
            ("custom_tool_call", "note", "agents"),
            ("function_call", "close", None),
        ]
        assert [call.get("arguments", call.get("input")) for call in calls] == ['{"target": "x"}', "hi", "{}"]
        assert response.to_dict()["tools"] == TOOLS
    tooling = tier.requests[0].tooling
    assert tooling is not None
    assert [(tool.name, tool.description) for tool in tooling.tools] == [
        ("close", "Close a file."),
        ("agents__close", "Close one.\n\nAbout all tools of agents: Other agents."),
        ("agents__note", "Note it."),
    ]


async def test_calls_of_a_namespace_go_back_under_the_names_that_the_model_knows(gateway: RunningGateway) -> None:
    tier = gateway.tier(1)
    tier.words, tier.calls = (), CALLS
    called = await gateway.openai.responses.create(model="tier-1", input="x", tools=TOOLS)
    results: Any = [
        {"type": "function_call_output", "call_id": "c0", "output": "0"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "1"},
        {"type": "function_call_output", "call_id": "c2", "output": "2"},
    ]
    whole: Any = [{"role": "user", "content": "x"}, *(item.to_dict() for item in called.output), *results]
    await gateway.openai.responses.create(model="tier-1", input=whole, tools=TOOLS)
    await gateway.openai.responses.create(model="tier-1", input=results, previous_response_id=called.id, tools=TOOLS)
    for request in tier.requests[-2:]:
        messages = request.messages or []
        assert [call.name for call in messages[1].calls] == ["agents__close", "agents__note", "close"]
        assert [(turn.call_id, turn.text) for turn in messages[2:]] == [("c0", "0"), ("c1", "1"), ("c2", "2")]


@pytest.mark.parametrize(
    ("choice", "expected", "names"),
    [
        (
            {"type": "function", "name": "close", "namespace": "agents"},
            ("named", "agents__close"),
            ["close", "agents__close", "agents__note"],
        ),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "close"}]},
            ("required", None),
            ["close"],
        ),
    ],
)
async def test_a_choice_names_tools_with_and_without_namespaces(
    gateway: RunningGateway, choice: Any, expected: tuple[str, str | None], names: list[str]
) -> None:
    answer = await gateway.openai.responses.create(model="tier-1", input="x", tools=TOOLS, tool_choice=choice)
    assert answer.to_dict()["tool_choice"] == choice
    tooling = gateway.tier(1).requests[0].tooling
    assert tooling is not None
    assert (tooling.choice, tooling.name) == expected
    assert [tool.name for tool in tooling.tools] == names


async def test_names_are_short_enough_for_functions_and_differ() -> None:
    tools = [ResponseTool(type="function", name=f"{'x' * 62}{n}") for n in range(2)]
    names = [flat_name(tool.name, "mcp__server__") for tool in tools]
    assert len(set(names)) == 2
    assert max(map(len, names)) == 64
    assert flat_name("look", "mcp__server__") == "mcp__server__look"
    space = ResponseTool(type="namespace", name="mcp__server__", tools=list(tools))
    assert [tool.name for tool in called_tools([space]).values()] == [tool.name for tool in tools]


async def test_the_tools_of_namespaces_are_counted(gateway: RunningGateway) -> None:
    tools = [{**AGENTS, "name": f"n{n}", "tools": [CLOSE] * 257} for n in range(2)]
    answer = await gateway.http.post("/v1/responses", json={"model": "tier-1", "input": "x", "tools": tools})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")


PATCH: Any = {
    "type": "custom",
    "custom": {
        "name": "patch",
        "description": "Patches.",
        "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": 'start: "***"'}},
    },
}
LOOK: Any = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
TEXT = '*** "Begin"\n😀'
PATCHED = json.dumps({"input": TEXT})
CHAT_CALLS = (
    ToolCallDelta(index=0, id="c0", name="patch", arguments=PATCHED[:15]),
    ToolCallDelta(index=1, id="c1", name="look", arguments="{}"),
    ToolCallDelta(index=0, arguments=PATCHED[15:]),
)


async def chat(gateway: RunningGateway, **fields: Any) -> httpx.Response:
    body = {"model": "tier-1", "messages": [{"role": "user", "content": "x"}], "tools": [PATCH, LOOK]} | fields
    return await gateway.http.post("/v1/chat/completions", json=body)


async def test_a_chat_calls_custom_tools_with_plain_text(gateway: RunningGateway) -> None:
    tier = gateway.tier(1)
    tier.words, tier.calls = (), CHAT_CALLS
    message = (await chat(gateway)).json()["choices"][0]["message"]
    assert message["tool_calls"] == [
        {"id": "c0", "type": "custom", "custom": {"name": "patch", "input": TEXT}},
        {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}},
    ]
    tooling = tier.requests[0].tooling
    assert tooling is not None
    assert 'start: "***"' in (tooling.tools[0].description or "")
    history = [{"role": "user", "content": "x"}, message, *(
        {"role": "tool", "tool_call_id": name, "content": "Done."} for name in ("c0", "c1")
    )]  # fmt: skip
    await chat(gateway, messages=history)
    turn = (tier.requests[-1].messages or [])[1]
    assert [(call.id, call.name, json.loads(call.arguments)) for call in turn.calls] == [
        ("c0", "patch", {"input": TEXT}),
        ("c1", "look", {}),
    ]


async def test_a_streamed_chat_brings_the_text_of_a_custom_call_in_pieces(gateway: RunningGateway) -> None:
    tier = gateway.tier(1)
    tier.words, tier.calls = (), CHAT_CALLS
    events = [line for line in (await chat(gateway, stream=True)).text.split("\n\n") if line.startswith("data: {")]
    deltas = [json.loads(event[6:])["choices"][0]["delta"] for event in events]
    pieces = [call for delta in deltas for call in delta.get("tool_calls", ())]
    first, *more = [piece for piece in pieces if piece["index"] == 0]
    assert (first["id"], first["type"], first["custom"]["name"]) == ("c0", "custom", "patch")
    assert more
    assert "".join(piece["custom"]["input"] for piece in (first, *more)) == TEXT
    assert [piece["function"] for piece in pieces if piece["index"] == 1] == [{"name": "look", "arguments": "{}"}]
    # One call after another, though the tier mixed them.
    assert sorted(piece["index"] for piece in pieces) == [piece["index"] for piece in pieces]


@pytest.mark.parametrize(
    ("choice", "expected", "names"),
    [
        ({"type": "custom", "custom": {"name": "patch"}}, ("named", "patch"), ["patch", "look"]),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "look"}}]},
            },
            ("auto", None),
            ["look"],
        ),
    ],
)
async def test_a_chat_names_a_custom_tool_or_the_tools_it_allows(
    gateway: RunningGateway, choice: Any, expected: tuple[str, str | None], names: list[str]
) -> None:
    assert (await chat(gateway, tool_choice=choice)).status_code == 200
    tooling = gateway.tier(1).requests[0].tooling
    assert tooling is not None
    assert (tooling.choice, tooling.name) == expected
    assert [tool.name for tool in tooling.tools] == names
