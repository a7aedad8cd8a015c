"""`/v1/responses` through the official client: texts, items, tools, thoughts, formats, events and refusals."""

import json
from typing import Any

import msgspec
import openai
import pytest
from pydantic import BaseModel

from tests.support.app import RunningGateway
from tiers.conversation import ToolCallDelta, Turn
from tiers.dialects.responses_request import read_responses
from tiers.dialects.responses_schemas import ResponsesRequest

pytestmark = pytest.mark.asyncio(loop_scope="module")
SAID = "Hello there, how are you?"
ADD: dict[str, Any] = {
    "type": "function",
    "name": "add",
    "description": "Adds.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    "strict": False,
}
CALLS = (
    ToolCallDelta(index=0, id="call_1", name="add", arguments='{"a"'),
    ToolCallDelta(index=0, arguments=": 1}"),
)


def turns_of(*items: dict[str, Any]) -> list[Turn]:
    """The turns that items are."""
    body = msgspec.convert({"model": "m", "input": items}, ResponsesRequest)
    return read_responses(body).turns or []


class Greeting(BaseModel):
    words: int


async def test_a_text_is_answered_with_a_message_and_its_usage(gateway: RunningGateway) -> None:
    answer = await gateway.openai.responses.create(
        model="tier-1", input="Say hello.", instructions="Be kind.", max_output_tokens=9, metadata={"team": "x"}
    )
    assert (answer.output_text, answer.status, answer.object, answer.error) == (SAID, "completed", "response", None)
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens) == (12, 5, 17)
    assert answer.usage.input_tokens_details.cached_tokens == 2
    assert (answer.instructions, answer.max_output_tokens, answer.metadata) == ("Be kind.", 9, {"team": "x"})
    asked = gateway.tier(1).requests[0]
    assert [(turn.role, turn.text) for turn in asked.messages or ()] == [
        ("system", "Be kind."),
        ("user", "Say hello."),
    ]
    assert asked.max_tokens == 9
    await gateway.serving.records.recorded(answer.id)  # type: ignore[attr-defined]
    assert (await gateway.http.get(f"/v1/requests/{answer.id}")).json()["tags"] == {"team": "x"}


async def test_the_clients_own_accumulator_follows_the_stream(gateway: RunningGateway) -> None:
    gateway.tier(1).calls = CALLS
    async with gateway.openai.responses.stream(model="tier-1", input="x") as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_response()
    assert final.output_text == SAID
    assert final.output[1].type == "function_call"


async def test_a_schema_binds_the_answer_and_is_parsed(gateway: RunningGateway) -> None:
    gateway.tier(1).words = ('{"words"', ": 2}")
    answer = await gateway.openai.responses.parse(model="tier-1", input="x", text_format=Greeting)
    assert answer.output_parsed == Greeting(words=2)
    grammar = gateway.tier(1).requests[0].sampling.grammar
    assert grammar is not None
    assert "words" in grammar.text


async def test_an_unknown_model_is_not_found(gateway: RunningGateway) -> None:
    with pytest.raises(openai.NotFoundError):
        await gateway.openai.responses.create(model="gpt-9", input="x")


async def test_the_bytes_of_a_stream_are_openais_events_in_openais_order(gateway: RunningGateway) -> None:
    gateway.tier(1).reasoning, gateway.tier(1).words = ("Hm.",), ("Hi", "!")
    body = {"model": "tier-1", "input": "x", "stream": True, "include": ["reasoning.encrypted_content"]}
    answer = await gateway.http.post("/v1/responses", json=body, headers={"x-aio-cache": "off"})
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = []
    for number, event in enumerate(answer.text.removesuffix("\n\n").split("\n\n")):
        name, data = event.split("\n")
        fields = json.loads(data.removeprefix("data: "))
        assert name == f"event: {fields['type']}"
        assert fields.pop("sequence_number") == number
        events.append(fields)
    rs, msg = (f"{kind}_{events[0]['response']['id']}" for kind in ("rs", "msg"))
    thought = {"type": "reasoning_text", "text": "Hm."}
    thoughts = {"id": rs, "type": "reasoning", "summary": [], "content": [thought], "encrypted_content": "aio1.SG0u"}
    text = {"type": "output_text", "text": "Hi!", "annotations": [], "logprobs": []}
    message = {"id": msg, "type": "message", "status": "completed", "role": "assistant", "content": [text]}
    in_rs = {"item_id": rs, "output_index": 0, "content_index": 0}
    in_msg = {"item_id": msg, "output_index": 1, "content_index": 0}
    fresh = {**thoughts, "content": []}
    del fresh["encrypted_content"]
    assert events[2:-1] == [
        {"type": "response.output_item.added", "output_index": 0, "item": fresh},
        {"type": "response.content_part.added", **in_rs, "part": {**thought, "text": ""}},
        {"type": "response.reasoning_text.delta", **in_rs, "delta": "Hm."},
        {"type": "response.reasoning_text.done", **in_rs, "text": "Hm."},
        {"type": "response.content_part.done", **in_rs, "part": thought | {"reasoning": thought["text"]}},
        {"type": "response.output_item.done", "output_index": 0, "item": thoughts},
        {
            "type": "response.output_item.added", "output_index": 1,
            "item": {**message, "status": "in_progress", "content": []},
        },
        {"type": "response.content_part.added", **in_msg, "part": {**text, "text": ""}},
        {"type": "response.output_text.delta", **in_msg, "delta": "Hi", "logprobs": []},
        {"type": "response.output_text.delta", **in_msg, "delta": "!", "logprobs": []},
        {"type": "response.output_text.done", **in_msg, "text": "Hi!", "logprobs": []},
        {"type": "response.content_part.done", **in_msg, "part": text},
        {"type": "response.output_item.done", "output_index": 1, "item": message},
    ]  # fmt: skip
    first, second, last = events[0], events[1], events[-1]
    assert [event["type"].removeprefix("response.") for event in (first, second, last)] == [
        "created", "in_progress", "completed",
    ]  # fmt: skip
    assert first["response"] == second["response"]
    assert (first["response"]["status"], first["response"]["output"]) == ("in_progress", [])
    assert last["response"]["output"] == [thoughts, message]


async def test_thoughts_go_back_to_the_model_in_any_form_that_agents_keep(gateway: RunningGateway) -> None:
    tier = gateway.tier(1)
    tier.reasoning = ("Think", " hard.")
    answer = await gateway.openai.responses.create(
        model="tier-1", input="x", store=False, include=["reasoning.encrypted_content"]
    )
    thoughts = answer.output[0].to_dict()
    said: Any = {"role": "assistant", "content": "So."}
    kept = [
        thoughts,
        {**thoughts, "content": []},
        {**thoughts, "content": [], "encrypted_content": None, "summary": [{"type": "summary_text", "text": "Short."}]},
        {**thoughts, "content": [], "encrypted_content": "sealed elsewhere"},
    ]
    read = [turns_of(thoughts, said) for thoughts in kept]
    assert [[turn.thoughts for turn in turns] for turns in read] == [["Think hard."], ["Think hard."], ["Short."], [""]]


async def test_the_request_of_a_coding_agent_is_answered(gateway: RunningGateway) -> None:
    """As Codex sends them: nothing stored, thoughts and calls given back as items, a grammar for patches."""
    gateway.tier(1).reasoning = ("Hm.",)
    user = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Mend it."}]}
    patch = {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch"'}
    body: dict[str, Any] = {
        "model": "auto",
        "instructions": "You are a coding agent.",
        "input": [user],
        "tools": [ADD, {"type": "custom", "name": "apply_patch", "description": "Patches.", "format": patch}],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0198c2f1",
    }
    stream = await gateway.openai.responses.create(**body)
    (*_, last) = [event async for event in stream]
    assert last.type == "response.completed"
    call = {"type": "custom_tool_call", "status": "completed", "call_id": "c1", "name": "apply_patch", "input": "***"}
    result = {"type": "custom_tool_call_output", "call_id": "c1", "output": "Done."}
    thoughts = last.response.output[0].to_dict()
    body["input"] = [user, thoughts, call, result]
    stream = await gateway.openai.responses.create(**body)
    assert [event.type async for event in stream][-1] == "response.completed"
