"""`/v1/responses` through the official client: texts, items, tools, thoughts, formats, events and refusals."""

import json
from typing import Any

import msgspec
import openai
import pytest
from pydantic import BaseModel

from tests.gateway.running_gateway import RunningGateway
from tiers.conversation import ToolCallDelta, Turn
from tiers.dialects.responses_request import read_responses
from tiers.dialects.responses_schemas import ResponsesRequest
from tiers.errors import TierError

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


async def test_items_are_the_turns_of_a_conversation_with_its_calls(gateway: RunningGateway) -> None:
    items: list[Any] = [
        {"role": "developer", "content": "Add."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "1 and 1?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {
            "type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
            "content": [{"type": "output_text", "text": "Wait.", "annotations": []}],
        },
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}", "id": "fc_1"},
        {"type": "function_call", "call_id": "c2", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "2"},
    ]  # fmt: skip
    await gateway.openai.responses.create(model="tier-1", input=items, tools=[ADD])  # type: ignore[list-item]
    turns = gateway.tier(1).requests[0].messages or []
    assert [turn.role for turn in turns] == ["system", "user", "assistant", "tool"]
    assert turns[2].text == "Wait."
    assert [call.id for call in turns[2].calls] == ["c1", "c2"]
    assert (turns[3].call_id, turns[3].text) == ("c1", "2")


async def test_the_events_of_a_stream_are_numbered_nested_and_add_up_to_the_response(gateway: RunningGateway) -> None:
    tier = gateway.tier(4)
    tier.reasoning, tier.calls = ("Think", " hard."), CALLS
    stream = await gateway.openai.responses.create(model="tier-4", input="x", tools=[ADD], stream=True)  # type: ignore[list-item]
    events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert [kind for place, kind in enumerate(kinds) if kinds[place - 1 : place] != [kind]] == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done", "content_part.done",
        "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done",
        "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    last = events[-1]
    assert last.type == "response.completed"
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [item.model_dump() for item in last.response.output] == [item.model_dump() for item in done]
    assert last.response.output_text == SAID
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == SAID
    call = last.response.output[2]
    assert call.type == "function_call"
    assert (call.call_id, call.name, json.loads(call.arguments)) == ("call_1", "add", {"a": 1})
    whole = await gateway.openai.responses.create(model="tier-4", input="x", tools=[ADD])  # type: ignore[list-item]
    strip = {"id": True}
    assert [item.model_dump(exclude=strip) for item in whole.output] == [
        item.model_dump(exclude=strip) for item in last.response.output
    ]


async def test_the_clients_own_accumulator_follows_the_stream(gateway: RunningGateway) -> None:
    gateway.tier(1).calls = CALLS
    async with gateway.openai.responses.stream(model="tier-1", input="x") as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_response()
    assert final.output_text == SAID
    assert final.output[1].type == "function_call"


async def test_text_between_calls_and_their_results_is_of_the_same_turn(gateway: RunningGateway) -> None:
    items: list[Any] = [
        {"role": "user", "content": "1 and 1?"},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"},
        {"role": "assistant", "content": "One more."},
        {"type": "function_call", "call_id": "c2", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "2"},
        {"type": "function_call_output", "call_id": "c2", "output": "2"},
        {"role": "assistant", "content": "2."},
    ]
    await gateway.openai.responses.create(model="tier-1", input=items, tools=[ADD])  # type: ignore[list-item]
    turns = gateway.tier(1).requests[0].messages or []
    assert [(turn.role, turn.text, len(turn.calls)) for turn in turns] == [
        ("user", "1 and 1?", 0),
        ("assistant", "One more.", 2),
        ("tool", "2", 0),
        ("tool", "2", 0),
        ("assistant", "2.", 0),
    ]


async def test_the_verbosity_of_a_text_goes_to_providers(gateway: RunningGateway) -> None:
    answer = await gateway.openai.responses.create(model="tier-1", input="x", text={"verbosity": "low"})
    assert answer.text is not None
    assert answer.text.verbosity == "low"
    assert gateway.tier(1).requests[0].passed == {"verbosity": "low"}


async def test_a_schema_binds_the_answer_and_is_parsed(gateway: RunningGateway) -> None:
    gateway.tier(1).words = ('{"words"', ": 2}")
    answer = await gateway.openai.responses.parse(model="tier-1", input="x", text_format=Greeting)
    assert answer.output_parsed == Greeting(words=2)
    grammar = gateway.tier(1).requests[0].sampling.grammar
    assert grammar is not None
    assert "words" in grammar.text


async def test_a_tier_that_breaks_half_way_is_a_failed_response(gateway: RunningGateway) -> None:
    gateway.tier(1).fail_at, gateway.tier(1).error = 2, TierError("upstream broke")
    stream = await gateway.openai.responses.create(model="tier-1", input="x", stream=True)
    last = [event async for event in stream][-1]
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert last.response.error.code == "server_error"


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


async def test_log_probabilities_come_with_the_text_if_they_are_included(gateway: RunningGateway) -> None:
    include: Any = ["message.output_text.logprobs", "file_search_call.results"]
    ask = gateway.openai.responses.create
    answer = await ask(model="tier-1", input="x", include=include, top_logprobs=2)
    assert answer.top_logprobs == 2
    (message,) = answer.output
    assert message.type == "message"
    part = message.content[0]
    assert part.type == "output_text"
    assert [one.token for one in part.logprobs or ()] == ["Hello", " there,", " how", " are", " you?"]
    assert [len(one.top_logprobs) for one in part.logprobs or ()] == [2] * 5
    stream = await ask(model="tier-1", input="x", include=include, top_logprobs=2, stream=True)
    deltas = [event async for event in stream if event.type == "response.output_text.delta"]
    assert [one.token for event in deltas for one in event.logprobs] == [one.token for one in part.logprobs or ()]


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


async def test_images_audio_and_files_are_media_of_the_turn() -> None:
    content = [
        {"type": "input_text", "text": "What is this?"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"},
        {"type": "input_file", "file_data": "data:application/pdf;base64,AA==", "filename": "x.pdf"},
        {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
    ]
    (turn,) = turns_of({"role": "user", "content": content})
    assert turn.text == "What is this?"
    assert [(block.kind, block.data) for block in turn.media] == [
        ("image", {"url": "data:image/png;base64,AA==", "detail": "low"}),
        ("file", {"file_data": "data:application/pdf;base64,AA==", "filename": "x.pdf"}),
        ("audio", {"data": "AA==", "format": "wav"}),
    ]


async def test_thoughts_are_a_summary_for_clients_that_ask_for_one(gateway: RunningGateway) -> None:
    gateway.tier(1).reasoning = ("Think", " hard.")
    ask = gateway.openai.responses.create
    stream = await ask(model="tier-1", input="x", reasoning={"summary": "auto"}, stream=True)
    events = [event async for event in stream]
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[2:8] == [
        "output_item.added", "reasoning_summary_part.added", "reasoning_summary_text.delta",
        "reasoning_summary_text.delta", "reasoning_summary_text.done", "reasoning_summary_part.done",
    ]  # fmt: skip
    last = events[-1]
    assert last.type == "response.completed"
    thoughts = last.response.output[0]
    assert thoughts.type == "reasoning"
    assert ([part.text for part in thoughts.summary], thoughts.content) == (["Think hard."], None)
    whole = await ask(model="tier-1", input="x", reasoning={"summary": "auto"})
    assert whole.output[0].to_dict() == {**thoughts.to_dict(), "id": whole.output[0].id}


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
