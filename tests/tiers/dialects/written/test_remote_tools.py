"""Tools and grammars sent to an OpenAI-compatible server, and the calls that it returns."""

import json
from typing import Any

import msgspec

from inference_core.protocol import Grammar, SamplingParams
from tests.tiers.tier_world import GREEDY, remote_spec
from tiers.conversation import Call, Tool, ToolCallDelta, Tooling, Turn
from tiers.dialects.chat import request_body
from tiers.dialects.chat_answer import read_chunk
from tiers.dialects.usage_counter import Tally
from tiers.tier import GenerationRequest

ADD = Tool(name="add", parameters={"type": "object", "properties": {}}, strict=True)
CALL = Call(id="call_1", name="add", arguments='{"a": 1}')


def body(**fields: Any) -> dict[str, Any]:
    remote = remote_spec("http://x/v1").remote
    assert remote is not None
    arguments: dict[str, Any] = {
        "request_id": "r",
        "sampling": GREEDY,
        "messages": [Turn.of("user", "Hi")],
    } | fields
    sent: dict[str, Any] = msgspec.json.decode(
        msgspec.json.encode(request_body(remote, GenerationRequest(**arguments), 16))
    )
    return sent


def test_tools_travel_as_openai_has_them() -> None:
    sent = body(tooling=Tooling(tools=(ADD,), choice="named", name="add", parallel=False))
    assert sent["tools"] == [
        {"type": "function", "function": {"name": "add", "parameters": ADD.parameters, "strict": True}}
    ]
    assert sent["tool_choice"] == {"type": "function", "function": {"name": "add"}}
    assert "parallel_tool_calls" not in sent, "a named choice says that already"
    assert body(tooling=Tooling(tools=(ADD,), choice="required"))["tool_choice"] == "required"
    assert body(tooling=Tooling(tools=(ADD,), parallel=False))["parallel_tool_calls"] is False
    assert "tool_choice" not in body(tooling=Tooling(tools=(ADD,)))
    assert body(tooling=Tooling(tools=(ADD,)), given=("tool_choice",))["tool_choice"] == "auto"


def test_calls_and_results_of_a_conversation_travel_too() -> None:
    sent = body(
        messages=[
            Turn.of("assistant", calls=(CALL,)),
            Turn.of("tool", "2", call_id="call_1"),
        ]
    )
    function = {"name": "add", "arguments": '{"a": 1}'}
    assert sent["messages"] == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
        },
        {"role": "tool", "content": "2", "tool_call_id": "call_1"},
    ]


def test_a_response_format_travels_as_it_was_written_and_other_grammars_by_vllms_names() -> None:
    bound = SamplingParams(grammar=Grammar(kind="json_schema", text="{}"))
    written = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}
    assert body(sampling=bound, response_format=written)["response_format"] == written
    for grammar, sent in (
        (Grammar(kind="regex", text="a+"), {"regex": "a+"}),
        (Grammar(kind="choice", text=json.dumps(["a", "b"])), {"choice": ["a", "b"]}),
        (Grammar(kind="lark", text="start: /a/"), {"grammar": "start: /a/"}),
        (Grammar(kind="json_schema", text="{}"), {"json": "{}"}),
        (Grammar(kind="json_object"), {"json_object": True}),
    ):
        assert body(sampling=SamplingParams(grammar=grammar))["structured_outputs"] == sent


def test_a_servers_calls_become_deltas() -> None:
    pieces = [
        {"index": 0, "id": "call_9", "type": "function", "function": {"name": "add", "arguments": ""}},
        {"index": 0, "function": {"arguments": '{"a"'}},
    ]
    tally = Tally(1, 7)
    said = read_chunk(json.dumps({"choices": [{"index": 0, "delta": {"tool_calls": pieces}}]}).encode(), tally)
    assert [call for delta in said for call in delta.tool_calls] == [
        ToolCallDelta(index=0, id="call_9", name="add"),
        ToolCallDelta(index=0, arguments='{"a"'),
    ]
    (last,) = read_chunk(json.dumps({"choices": [{"index": 0, "finish_reason": "tool_calls"}]}).encode(), tally)
    assert last.finish_reason == "tool_calls"


def test_what_is_not_asked_for_is_not_sent() -> None:
    assert not {"tools", "tool_choice", "response_format", "structured_outputs"} & set(body())
    assert msgspec.json.encode(body())
