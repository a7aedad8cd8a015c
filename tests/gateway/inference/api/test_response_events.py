"""The events of a streamed Response: nested, numbered and complete as OpenAI sends them, whatever a tier says."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from tests.support.app import RunningGateway
from tiers.conversation import OpaquePiece, ToolCallDelta
from tiers.deltas import BlockOrder, CollectedChoice, Piece, is_object
from tiers.dialects.chat_opaque import media_piece
from tiers.dialects.responses_answer import ResponseBody, ResponseEnd, ResponseHead, ResponseWriter
from tiers.dialects.responses_schemas import ResponsesRequest, ResponseTool
from tiers.tier import Delta, Usage

EVENT = TypeAdapter(ResponseStreamEvent)
TOOLS = [ResponseTool(type="function", name="look"), ResponseTool(type="custom", name="patch")]
GROWTH = {
    "reasoning": "response.reasoning_text.delta",
    "message": "response.output_text.delta",
    "function_call": "response.function_call_arguments.delta",
    "custom_tool_call": "response.custom_tool_call_input.delta",
}


def call(index: int, arguments: str, name: str = "", call_id: str = "") -> Delta:
    return Delta(tool_calls=[ToolCallDelta(index=index, id=call_id, name=name, arguments=arguments)])


def streamed(deltas: list[Delta]) -> tuple[list[dict[str, Any]], CollectedChoice]:
    """The events of a stream of these deltas."""
    choice = CollectedChoice()
    head = ResponseHead(id="resp_1", created_at=1, model="small", service_tier="default")
    writer = ResponseWriter(ResponseBody(head, ResponsesRequest(model="small", input="x", tools=TOOLS)))
    events = writer.begin(stored=False)
    for delta in deltas:
        choice.take(delta)
        events += writer.piece(delta)
    writer.finish(choice, "")
    events += writer.end(ResponseEnd(usage=Usage(), completed_at=2, x_aio=None), stored=False)
    return [
        json.loads(event.split("\n")[1][len("data: ") :]) for event in events.decode().strip().split("\n\n")
    ], choice


def items_of(events: list[dict[str, Any]]) -> list[tuple[dict[str, Any], str]]:
    """Each item as it was done, with what its deltas brought, after checks of the grammar of events."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    found: list[tuple[dict[str, Any], str]] = []
    item_id: str | None = None
    said = ""
    for event in events[2:-1]:
        assert event["output_index"] == len(found)
        kind = event["type"]
        if kind == "response.output_item.added":
            assert item_id is None
            item_id, said = event["item"]["id"], ""
        elif kind == "response.output_item.done":
            assert event["item"]["id"] == item_id
            found.append((event["item"], said))
            item_id = None
        else:
            assert event["item_id"] == item_id
            said += event["delta"] if kind in GROWTH.values() else ""
    assert item_id is None
    assert len({item["id"] for item, _ in found}) == len(found)
    assert events[-1]["response"]["output"] == [item for item, _ in found]
    return found


def test_interleaved_calls_are_one_item_each_with_all_their_arguments() -> None:
    events, _ = streamed(
        [
            Delta(reasoning="Hm."),
            Delta(text="Both."),
            call(0, "", "look", "x"),
            call(1, "", "patch", "y"),
            call(0, '{"a"'),
            call(1, '{"input"'),
            Delta(text="Then"),
            call(0, ": 1}"),
            call(1, ': "*** Begin"}'),
            Delta(text=" more."),
            Delta(finish_reason="tool_calls"),
        ]
    )
    found = items_of(events)
    assert [(item["type"], item.get("call_id"), said) for item, said in found] == [
        ("reasoning", None, "Hm."),
        ("message", None, "Both."),
        ("function_call", "x", '{"a": 1}'),
        ("custom_tool_call", "y", "*** Begin"),
        ("message", None, "Then more."),
    ]
    assert [item.get("arguments", item.get("input")) for item, _ in found[2:4]] == ['{"a": 1}', "*** Begin"]


@pytest.mark.parametrize("text", ["Here", ""])
def test_images_that_a_model_made_are_items_after_all_others(text: str) -> None:
    drawn = b'[{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]'
    events, _ = streamed([Delta(opaque=media_piece(drawn)), Delta(text=text), Delta(finish_reason="stop")])
    *before, (item, _) = items_of(events)
    assert (item["type"], item["result"]) == ("image_generation_call", "AA==")
    assert [said for _, said in before] == [text] * bool(text)


def event_of(kind: str, text: str = "", **fields: Any) -> Delta:
    """A server's own event, and what it says."""
    event = json.dumps({"type": f"response.{kind}", "output_index": 0} | fields).encode()
    return Delta(text=text, opaque=OpaquePiece("responses", event=event))


def test_a_text_whose_server_begins_no_item_is_one_of_ours() -> None:
    item = {"id": "m", "type": "message", "content": [{"type": "output_text", "text": "Hi"}]}
    for ending in ([], [event_of("output_item.done", item=item)]):
        events, _ = streamed(
            [
                event_of("output_text.delta", "H", item_id="m", content_index=0, delta="H"),
                event_of("output_text.delta", "i", delta="i"),
                event_of("output_text.done", item_id="m", content_index=0),
                *ending,
                Delta(finish_reason="stop"),
            ]
        )
        assert [(item["type"], said) for item, said in items_of(events)] == [("message", "Hi")]


def test_calls_one_after_another_are_done_as_soon_as_the_next_begins() -> None:
    events, _ = streamed([call(0, '{"a": "}', "look", "x"), call(0, '"}'), call(1, "{}", "look", "y")])
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[2:-1] == [
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.delta",
        "function_call_arguments.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
    ]  # fmt: skip


ARGUMENTS = ["", "{", "}", '{"a": 1}', '{"input":', ' "}', '"}', "[", "\\", "\\\\", " "]
PIECES = st.one_of(
    st.builds(lambda text: Delta(text=text), st.text(max_size=5)),
    st.builds(lambda text: Delta(reasoning=text), st.text(max_size=5)),
    st.builds(
        lambda index, text: call(index, text, ("look", "patch")[index % 2], str(index)),
        st.integers(0, 3),
        st.sampled_from(ARGUMENTS),
    ),
)


@given(st.lists(PIECES, max_size=30))
def test_whatever_a_tier_says_items_are_nested_numbered_and_complete(deltas: list[Delta]) -> None:
    # Servers name a call once.
    named: set[int] = set()
    for place, delta in enumerate(deltas):
        for piece in delta.tool_calls:
            if piece.index in named:
                deltas[place] = call(piece.index, piece.arguments)
            named.add(piece.index)
    events, choice = streamed([*deltas, Delta(finish_reason="stop")])
    found = items_of(events)
    assert "".join(said for item, said in found if item["type"] == "message") == choice.text
    assert "".join(said for item, said in found if item["type"] == "reasoning") == choice.reasoning
    calls = {item["call_id"]: item for item, _ in found if "call_id" in item}
    assert sorted(calls) == sorted(map(str, named))
    for item, said in found:
        if item["type"] == "function_call":
            arguments = choice.tool_calls[int(item["call_id"])].arguments
            assert said == item["arguments"]
            # What follows the end of its object is no argument.
            assert arguments == said or (arguments.startswith(said) and is_object(said))
        elif item["type"] == "custom_tool_call":
            assert said == item["input"]
    state: Any = ResponseStreamState(text_format=omit, input_tools=omit)
    for event in events:
        state.handle_event(EVENT.validate_python(event))


@given(st.lists(st.sampled_from(ARGUMENTS), min_size=1, max_size=12))
def test_a_call_is_over_when_its_arguments_are_an_object(pieces: list[str]) -> None:
    order = BlockOrder()
    for text in pieces:
        order.put(Piece(0, text, ToolCallDelta(index=0, arguments=text)))
    assert bool(order.put(Piece("text", "x"))) == is_object("".join(pieces))


@pytest.mark.asyncio(loop_scope="module")
async def test_what_is_stored_of_a_stream_are_its_items(gateway: RunningGateway) -> None:
    tier = gateway.tier(1)
    tier.words = ("Both.",)
    tier.calls = (
        ToolCallDelta(index=0, id="x", name="look", arguments='{"a"'),
        ToolCallDelta(index=1, id="y", name="look", arguments='{"b"'),
        ToolCallDelta(index=0, arguments=": 1}"),
        ToolCallDelta(index=1, arguments=": 2}"),
    )
    tool: Any = {"type": "function", "name": "look", "parameters": None, "strict": None}
    stream = await gateway.openai.responses.create(model="tier-1", input="x", tools=[tool], stream=True)
    last = [event async for event in stream][-1]
    assert last.type == "response.completed"
    assert [item.type for item in last.response.output] == ["message", "function_call", "function_call"]
    kept = await gateway.openai.responses.retrieve(last.response.id)
    assert msgspec.to_builtins(kept.to_dict()["output"]) == last.response.to_dict()["output"]
