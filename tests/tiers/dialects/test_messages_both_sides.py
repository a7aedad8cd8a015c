"""What is written in Messages' form is read as what it was, whole and as events, cut anywhere; and a caller gets the
blocks of a server with the same dialect byte for byte."""

import json
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tiers.catalog.tier_spec import RemoteSpec
from tiers.conversation import ToolCallDelta
from tiers.deltas import CollectedChoice
from tiers.dialects.messages import MessageHead, MessageWriter, ThinkingShown, whole_message
from tiers.dialects.messages_server import MessagesServer
from tiers.dialects.usage_counter import Tally
from tiers.tier import Delta, Usage

WIRE = MessagesServer(RemoteSpec(base_url="https://x/", model="claude", kind="anthropic", api_key_env="K"))
HEAD = MessageHead(id="msg_1", model="claude", service_tier="standard", stop=("END",), is_remote=True)
SHOWN = ThinkingShown(blocks=True, texts=True)
USAGE = Usage(prompt_tokens=12, completion_tokens=5, cached_tokens=2, cache_write_tokens=3, cache_write_1h_tokens=1)

TEXTS = st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=3)
OBJECTS = st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=5), min_size=1, max_size=3)
BLOCKS = st.lists(
    st.tuples(st.just("text"), TEXTS) | st.tuples(st.just("thinking"), TEXTS) | st.tuples(st.just("call"), OBJECTS),
    min_size=1,
    max_size=5,
)
ENDS = st.sampled_from([("stop", None), ("stop", "END"), ("length", None), ("content_filter", None)])


def deltas_of(blocks: list[tuple[str, Any]], reason: Any, sequence: str | None) -> list[Delta]:
    deltas: list[Delta] = []
    number = 0
    for kind, said in blocks:
        if kind == "text":
            deltas += [Delta(text=piece) for piece in said]
        elif kind == "thinking":
            deltas += [Delta(reasoning=piece) for piece in said]
        else:
            arguments = json.dumps(said)
            call = ToolCallDelta(index=number, id=f"call_0123456789abc{number}", name="look")
            pieces = [arguments[:3], arguments[3:]]
            deltas += [Delta(tool_calls=[call])]
            deltas += [Delta(tool_calls=[ToolCallDelta(index=number, arguments=piece)]) for piece in pieces]
            number += 1
    reason = "tool_calls" if number and reason == "stop" else reason
    return [*deltas, Delta(finish_reason=reason, stop_sequence=None if number else sequence)]


def collected(deltas: list[Delta]) -> CollectedChoice:
    choice = CollectedChoice()
    for delta in deltas:
        choice.take(delta)
    return choice


def written(deltas: list[Delta]) -> bytes:
    """The events of an answer of these deltas."""
    writer = MessageWriter(HEAD, SHOWN)
    events = writer.begin(Usage(prompt_tokens=12)) + b"".join(map(writer.piece, deltas))
    return events + writer.end(collected(deltas), USAGE, None)


def tally(*, opaque: bool = False) -> Tally:
    made = Tally(1, 9, lambda: None)  # type: ignore[arg-type, return-value]
    made.opaque, made.sent = opaque, True
    return made


def read(events: bytes, counts: Tally, size: int) -> list[Delta]:
    parser, deltas = WIRE.parser(), list[Delta]()
    chunks = [events[at : at + size] for at in range(0, len(events), size)]
    for event in [event for chunk in chunks for event in parser.feed(chunk)]:
        deltas += WIRE.read_event(event, counts) or []
    return deltas


def content(events: bytes) -> list[bytes]:
    return [event for event in events.split(b"\n\n") if event.startswith(b"event: content_block")]


@settings(max_examples=examples(100), deadline=None)
@given(BLOCKS, ENDS, st.integers(1, 200))
def test_what_is_written_is_read_as_what_it_was(blocks: Any, end: tuple[str, str | None], size: int) -> None:
    deltas = deltas_of(blocks, *end)
    said, streamed, whole = collected(deltas), tally(), tally()
    body = msgspec.json.encode(whole_message(HEAD, said, USAGE, SHOWN))
    events = written(deltas)
    for choice in (collected(read(events, streamed, size)), collected(WIRE.read_whole(body, whole))):
        assert (choice.text, choice.reasoning) == (said.text, said.reasoning)
        assert choice.finish_reason == said.finish_reason
        assert choice.stop_sequence == said.stop_sequence
        assert [(call.id, call.name) for call in choice.tool_calls] == [
            (call.id, call.name) for call in said.tool_calls
        ]
        arguments = [[json.loads(call.arguments) for call in of.tool_calls] for of in (choice, said)]
        assert arguments[0] == arguments[1]
    assert streamed.reported == whole.reported == USAGE


@settings(max_examples=examples(100), deadline=None)
@given(BLOCKS, ENDS)
def test_a_caller_of_the_same_dialect_gets_a_servers_blocks_byte_for_byte(
    blocks: Any, end: tuple[str, str | None]
) -> None:
    events = written(deltas_of(blocks, *end))
    deltas = read(events, tally(opaque=True), len(events))
    assert content(written(deltas)) == content(events)

    body = whole_message(HEAD, collected(deltas_of(blocks, *end)), USAGE, SHOWN)
    again = whole_message(HEAD, collected(WIRE.read_whole(msgspec.json.encode(body), tally(opaque=True))), USAGE, SHOWN)
    assert (again.content, again.stop_reason, again.stop_sequence) == (
        body.content,
        body.stop_reason,
        body.stop_sequence,
    )


@settings(max_examples=examples(100), deadline=None)
@given(BLOCKS, ENDS)
def test_blocks_of_a_stream_are_those_of_the_whole_answer(blocks: Any, end: tuple[str, str | None]) -> None:
    # Thoughts and texts between calls are blocks of their own in a stream alone.
    ordered = sorted(blocks, key=lambda block: ("thinking", "text", "call").index(block[0]))
    deltas = deltas_of(ordered, *end)
    streamed = read(written(deltas), tally(opaque=True), 64)
    bodies = [whole_message(HEAD, collected(answer), USAGE, SHOWN) for answer in (streamed, deltas)]
    contents = [json.loads(msgspec.json.encode(body.content)) for body in bodies]
    assert contents[0] == contents[1]
