"""Callers of Anthropic's and OpenAI's newer API, through tiers of the same API: what a server or a client leaves out is
whole again."""

import json
from typing import Any

import pytest

from tests.gateway.inference.answering.test_native_forms import Recorded, recorded
from tests.tiers.remote.loopback_server import Call

__all__ = ["recorded"]
Body = dict[str, Any]
MESSAGE: Body = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "stop_reason": "tool_use",
    "stop_sequence": None, "usage": {"input_tokens": 10, "output_tokens": 4},
}  # fmt: skip
ODD_CALLS: list[Body] = [
    {"type": "tool_use", "id": None, "name": "f", "input": None},
    {"type": "tool_use", "name": "f"},
]
ASKED: Body = {
    "model": "claude", "max_tokens": 100, "messages": [{"role": "user", "content": "Hi"}],
    "tools": [{"name": "f", "input_schema": {"type": "object"}}],
}  # fmt: skip


def answering(content: Any) -> Any:
    """A server of Anthropic's API that answers with these blocks."""

    async def answer(call: Call) -> None:
        if not call.body.get("stream"):
            await call.reply(200, MESSAGE | {"content": content})
            return
        await call.begin()
        await call.event({"type": "message_start", "message": MESSAGE | {"content": [], "stop_reason": None}})
        for index, block in enumerate(content):
            await call.event({"type": "content_block_start", "index": index, "content_block": block})
            await call.event({"type": "content_block_stop", "index": index})
        await call.event({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 4}})
        await call.event({"type": "message_stop"})

    return answer


@pytest.mark.parametrize("stream", [False, True])
async def test_calls_without_an_id_or_an_input_get_them(recorded: Recorded, stream: bool) -> None:
    recorded.server.handler = answering(ODD_CALLS)
    told = await recorded.asked("/v1/messages", ASKED | {"stream": stream})
    if stream:
        events = [json.loads(line[6:]) for line in told.text.split("\n") if line.startswith("data: ")]
        blocks = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    else:
        blocks = told.json()["content"]
    assert [(block["name"], block["input"]) for block in blocks] == [("f", {}), ("f", {})]
    assert len({block["id"] for block in blocks if block["id"]}) == 2


@pytest.mark.parametrize(
    "pieces", [("{}", '{"a": 1}'), ('{"a": 1}',) * 2, ('{"a"', '{"a": 1}'), ('{"a"', ": 1}", "{}")]
)
async def test_an_input_that_comes_twice_reaches_the_caller_once(recorded: Recorded, pieces: tuple[str, ...]) -> None:
    async def answer(call: Call) -> None:
        place = {"index": 0}
        await call.begin()
        await call.event({"type": "message_start", "message": MESSAGE | {"content": []}})
        await call.event({"type": "content_block_start", "content_block": ODD_CALLS[1] | {"input": {}}} | place)
        for piece in pieces:
            delta = {"type": "input_json_delta", "partial_json": piece}
            await call.event({"type": "content_block_delta", "delta": delta} | place)
        await call.event({"type": "content_block_stop"} | place)
        await call.event({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 4}})
        await call.event({"type": "message_stop"})

    recorded.server.handler = answer
    told = await recorded.asked("/v1/messages", ASKED | {"stream": True})
    events = [json.loads(line[6:]) for line in told.text.split("\n") if line.startswith("data: ")]
    deltas = [event["delta"]["partial_json"] for event in events if event["type"] == "content_block_delta"]
    assert json.loads("".join(deltas)) == {"a": 1}


async def test_a_content_that_is_a_text_is_a_block(recorded: Recorded) -> None:
    recorded.server.handler = answering("Hello")
    told = (await recorded.asked("/v1/messages", ASKED)).json()
    assert told["content"] == [{"type": "text", "text": "Hello"}]


@pytest.mark.parametrize("name", ["tools", "include", "reasoning", "text", "tool_choice"])
async def test_null_for_a_field_of_a_response_is_none(recorded: Recorded, name: str) -> None:
    await recorded.asked("/v1/responses", {"model": "openai", "input": "Hi", name: None})
    assert recorded.got.get(name) is None or name == "include"
