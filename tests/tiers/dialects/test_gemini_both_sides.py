"""What is written in Gemini's form is read as what it was, whole and as events or an array, cut anywhere; a caller gets
the parts of a server with the same dialect byte for byte, and so does the server those of a caller."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tiers.catalog.tier_spec import RemoteSpec
from tiers.conversation import ToolCallDelta
from tiers.deltas import CollectedChoice
from tiers.dialects.gemini import AnswerHead, GenerateContentRequest, ResponseWriter, whole_response
from tiers.dialects.gemini_request import read_gemini
from tiers.dialects.gemini_server import GeminiServer, contents
from tiers.dialects.usage_counter import Tally
from tiers.tier import Delta, Usage

SERVER = GeminiServer(RemoteSpec(base_url="https://x/", model="gemini", kind="gemini", api_key_env="K"))
HEAD = AnswerHead(id="gen-1", model="gemini", shows_thoughts=True, shows_logprobs=False)
USAGE = Usage(prompt_tokens=12, completion_tokens=5, cached_tokens=2, reasoning_tokens=1)

TEXTS = st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=3)
OBJECTS = st.dictionaries(st.text(max_size=3), st.integers(-9, 9) | st.text(max_size=5), max_size=3)
BLOCKS = st.lists(
    st.tuples(st.just("text"), TEXTS) | st.tuples(st.just("thinking"), TEXTS) | st.tuples(st.just("call"), OBJECTS),
    min_size=1,
    max_size=5,
)
ENDS = st.sampled_from(["stop", "length", "content_filter"])


def deltas_of(blocks: list[tuple[str, Any]], reason: Any) -> list[Delta]:
    deltas: list[Delta] = []
    number = 0
    for kind, said in blocks:
        if kind != "call":
            deltas += [Delta(text=piece) if kind == "text" else Delta(reasoning=piece) for piece in said]
            continue
        arguments = json.dumps(said)
        deltas += [Delta(tool_calls=[ToolCallDelta(index=number, id=f"call_{number}", name="look")])]
        pieces = (arguments[:3], arguments[3:])
        deltas += [Delta(tool_calls=[ToolCallDelta(index=number, arguments=piece)]) for piece in pieces if piece]
        number += 1
    return [*deltas, Delta(finish_reason="tool_calls" if number and reason == "stop" else reason)]


def collected(deltas: list[Delta]) -> CollectedChoice:
    choice = CollectedChoice()
    for delta in deltas:
        choice.take(delta)
    return choice


def written(deltas: list[Delta], *, is_sse: bool = True) -> bytes:
    writer = ResponseWriter(HEAD, is_sse=is_sse)
    return b"".join(map(writer.piece, deltas)) + writer.end([collected(deltas)], USAGE, None)


def tally(*, opaque: bool = False) -> Tally:
    made = Tally(1, 9, lambda: None)  # type: ignore[arg-type, return-value]
    made.opaque, made.sent = opaque, True
    return made


def read(events: bytes, counts: Tally, size: int) -> list[Delta]:
    parser, deltas = SERVER.parser(), list[Delta]()
    chunks = [events[at : at + size] for at in range(0, len(events), size)]
    for event in [event for chunk in chunks for event in parser.feed(chunk)]:
        deltas += SERVER.read_event(event, counts) or []
    return deltas


def parts(events: bytes) -> list[bytes]:
    """The parts in the events of a stream; its last event has an empty text."""
    said = [
        delta.opaque.block.json
        for delta in read(events, tally(opaque=True), len(events))
        if delta.opaque is not None and delta.opaque.block is not None
    ]
    return [part for part in said if part != b'{"text":""}']


@settings(max_examples=examples(100), deadline=None)
@given(BLOCKS, ENDS, st.integers(1, 200))
def test_what_is_written_is_read_as_what_it_was(blocks: Any, reason: str, size: int) -> None:
    deltas = deltas_of(blocks, reason)
    said, streamed, whole = collected(deltas), tally(), tally()
    body = msgspec.json.encode(whole_response(HEAD, [said], USAGE, None))
    for choice in (
        collected(read(written(deltas), streamed, size)),
        collected(SERVER.read_whole(body, whole)),
    ):
        assert (choice.text, choice.reasoning, choice.finish_reason) == (said.text, said.reasoning, said.finish_reason)
        assert [(call.id, call.name, json.loads(call.arguments)) for call in choice.tool_calls] == [
            (call.id, call.name, json.loads(call.arguments)) for call in said.tool_calls
        ]
    assert streamed.reported == whole.reported == USAGE


@settings(max_examples=examples(100), deadline=None)
@given(BLOCKS, ENDS)
def test_an_array_has_the_elements_of_the_events(blocks: Any, reason: str) -> None:
    deltas = deltas_of(blocks, reason)
    events = [json.loads(event.removeprefix(b"data: ")) for event in written(deltas).split(b"\n\n") if event]
    assert json.loads(written(deltas, is_sse=False)) == events


@settings(max_examples=examples(100), deadline=None)
@given(BLOCKS, ENDS)
def test_a_caller_of_the_same_dialect_gets_a_servers_parts_byte_for_byte(blocks: Any, reason: str) -> None:
    events = written(deltas_of(blocks, reason))
    deltas = read(events, tally(opaque=True), len(events))
    assert parts(written(deltas)) == parts(events)
    body = msgspec.json.encode(whole_response(HEAD, [collected(deltas_of(blocks, reason))], USAGE, None))
    again = whole_response(HEAD, [collected(SERVER.read_whole(body, tally(opaque=True)))], USAGE, None)
    assert msgspec.json.encode(again) == body


PARTS = [
    {"text": "Hm.", "thought": True, "thoughtSignature": "U0VBTA=="},
    {"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}, "mediaResolution": {"level": "LOW"}},
    {"functionCall": {"id": "c", "name": "look", "args": {"a": 1.5}}, "thoughtSignature": "U0VBTA=="},
    {"executableCode": {"language": "PYTHON", "code": "1"}},
]


@pytest.mark.parametrize("index", range(len(PARTS)))
def test_a_server_gets_a_callers_parts_as_they_are(index: int) -> None:
    turns = [
        {"role": "user", "parts": [{"text": "What?"}, PARTS[1]]},
        {"role": "model", "parts": [PARTS[index]]},
        {"role": "user", "parts": [{"functionResponse": {"name": "look", "response": {"a": [1, None]}}}]},
    ]
    body = msgspec.convert({"contents": turns}, GenerateContentRequest)
    asked = read_gemini(body, "gemini", stream=False, runs_tools=True)
    assert json.loads(msgspec.json.encode(contents(asked.turns or []))) == turns


@pytest.mark.parametrize("new", ["", ',"new":1'])
@pytest.mark.parametrize(
    ("arguments", "read_as"),
    [('{"a": 1}', {"a": 1}), ('"{\\"a\\": 1}"', {"a": 1}), ('"a"', {"value": "a"}), ("[1]", {}), ("null", {})],
)
def test_arguments_of_any_kind_are_an_object_for_the_caller_and_the_server(
    arguments: str, read_as: Any, new: str
) -> None:
    part = f'{{"functionCall":{{"name":"f","args":{arguments}}}{new}}}'
    body = f'{{"candidates":[{{"content":{{"parts":[{part}]}}}}]}}'
    choice = collected(SERVER.read_whole(body.encode(), tally(opaque=True)))
    (call,), (block,) = choice.tool_calls, choice.opaque["gemini"]
    assert json.loads(call.arguments or "{}") == read_as
    kept = json.loads(block.json)
    assert (kept["functionCall"]["args"] or {}, kept.keys()) == (read_as, json.loads(part).keys())
