"""The events of a streamed Message: byte for byte as Anthropic sends them, and well formed whatever a tier says."""

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import RawMessageStreamEvent
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from gateway.inference.answer import Answer
from gateway.inference.api.messages.messages import MessageEvents, body_of
from tests.gateway.chats import chat
from tiers.conversation import ToolCallDelta
from tiers.deltas import CollectedChoice, is_object
from tiers.dialects import messages as dialect
from tiers.dialects.chat_opaque import media_piece
from tiers.dialects.messages import PING, UNSIGNED, ThinkingShown, given_call_id
from tiers.tier import Delta, Usage

SHOWN = ThinkingShown(blocks=True, texts=True)
EVENT = TypeAdapter(RawMessageStreamEvent)

# As recorded from api.anthropic.com (`Accept: text/event-stream`), apart from ids, names, numbers and our `x_aio`.
TEXT = """\
event: message_start
data: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"small","content":[],\
"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":12,"cache_creation_input_tokens":0,\
"cache_read_input_tokens":0,"output_tokens":1,"service_tier":"standard"}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}

event: ping
data: {"type": "ping"}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hello"}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":" \\"you\\"!"}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"input_tokens":7,\
"cache_creation_input_tokens":3,"cache_read_input_tokens":2,\
"cache_creation":{"ephemeral_5m_input_tokens":3,"ephemeral_1h_input_tokens":0},"output_tokens":5},\
"x_aio":{"decision_id":"msg_1","tier":1,"model":"small","p_ok":0.5,"cost_usd":0.25,"latency_ms":9.0,"ttft_ms":4.0,\
"overhead_ms":1.0,"classifier":"v1","reason":"asked for","version":"abc","cache":null}}

event: message_stop
data: {"type":"message_stop"}

"""
THOUGHT_AND_CALL = """\
event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}

event: ping
data: {"type": "ping"}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"Let me look."}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"SIGNATURE"}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: content_block_start
data: {"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"toolu_01abcdefgh","name":"look",\
"input":{}}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\\"at\\""}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":": 1}"}}

event: content_block_stop
data: {"type":"content_block_stop","index":1}

""".replace("SIGNATURE", UNSIGNED)
ERROR = """\
event: error
data: {"type":"error","error":{"type":"api_error","message":"The server failed while answering. \
The failure is logged under the request's id."},"request_id":"msg_1"}

"""


class FakeAnswer:
    """What the format reads of an Answer."""

    def __init__(self, stop: tuple[str, ...] = (), core_name: str | None = None) -> None:
        self.request = chat(request_id="msg_1", stop=stop)
        self.tier = SimpleNamespace(model="small", core_name=core_name, number=1, version="abc", is_target=False)
        self.choices = [CollectedChoice()]
        self.usage = Usage(prompt_tokens=12, completion_tokens=5, cached_tokens=2, cache_write_tokens=3)
        self.source = SimpleNamespace(bill=lambda: SimpleNamespace(usage=Usage(prompt_tokens=12)), cached=None)
        self.timings = SimpleNamespace(e2e_ms=9.0, ttft_ms=4.0, overhead_ms=1.0)
        prediction = SimpleNamespace(classifier_version="v1")
        self.decision = SimpleNamespace(inputs=SimpleNamespace(prediction=prediction), reason="asked for")
        self.p_ok, self.cost_usd, self.cost_is_estimated = 0.5, 0.25, False
        self.escalated_from = self.thought_end = self.record = None
        self.attempts: list[Any] = []


def streamed(deltas: Sequence[Delta], thinking: ThinkingShown = SHOWN, answer: Any = None) -> tuple[bytes, Answer]:
    """All events of an answer of these deltas, and the answer."""
    found = cast(Answer, answer or FakeAnswer())
    events = MessageEvents(found, thinking)
    said = events.opening()
    for delta in deltas:
        found.choices[0].take(delta)
        said += events.piece(delta)
    return said + events.closing(found), found


def parsed(said: bytes) -> list[dict[str, Any]]:
    """The events but for pings; each has the form `event: TYPE\\ndata: {"type":TYPE,…}\\n\\n`."""
    found = []
    for event in said.decode().removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        decoded = json.loads(data.removeprefix("data: "))
        assert name == f"event: {decoded['type']}"
        if decoded["type"] != "ping":
            found.append(decoded)
    return found


def call(index: int, arguments: str, name: str = "", call_id: str = "") -> Delta:
    return Delta(tool_calls=[ToolCallDelta(index=index, id=call_id, name=name, arguments=arguments)])


def test_a_text_is_streamed_byte_for_byte_as_recorded() -> None:
    said, _ = streamed([Delta(text="Hello"), Delta(text=' "you"!'), Delta(finish_reason="stop")])
    assert said.decode() == TEXT


def test_a_thought_and_a_call_are_streamed_byte_for_byte_as_recorded() -> None:
    deltas = [
        Delta(reasoning="Let me look."),
        call(0, "", "look", "toolu_01abcdefgh"),
        call(0, '{"at"'),
        call(0, ": 1}"),
        Delta(finish_reason="tool_calls"),
    ]
    said, _ = streamed(deltas)
    blocks = said.decode().partition("\n\n")[2].partition("event: message_delta")[0]
    assert blocks == THOUGHT_AND_CALL


def test_a_failure_is_an_error_event_byte_for_byte() -> None:
    assert MessageEvents(cast(Answer, FakeAnswer()), SHOWN).failed(RuntimeError("secret")).decode() == ERROR


@pytest.mark.parametrize(
    ("last", "stop", "expected"),
    [
        (Delta(finish_reason="stop"), (), ("end_turn", None)),
        (Delta(finish_reason="length"), (), ("max_tokens", None)),
        (Delta(finish_reason="content_filter"), (), ("refusal", None)),
        (Delta(finish_reason="stop", stop_sequence="END"), ("END",), ("stop_sequence", "END")),
        # A server's own, which the caller did not ask for.
        (Delta(finish_reason="stop", stop_sequence="<|eot|>"), ("END",), ("end_turn", None)),
        (Delta(finish_reason="tool_calls"), (), ("tool_use", None)),
    ],
)
def test_both_forms_give_the_reason_of_the_end(
    last: Delta, stop: tuple[str, ...], expected: tuple[str, str | None]
) -> None:
    said, answer = streamed([Delta(text="x"), last], answer=FakeAnswer(stop))
    assert parsed(said)[-2]["delta"] == dict(zip(("stop_reason", "stop_sequence"), expected, strict=True))
    whole = body_of(answer, SHOWN)
    assert (whole.stop_reason, whole.stop_sequence) == expected


def test_a_forced_call_that_its_server_reports_as_a_stop_is_a_use_of_a_tool() -> None:
    said, _ = streamed([call(0, "{}", "look", "a"), Delta(finish_reason="stop")])
    assert parsed(said)[-2]["delta"]["stop_reason"] == "tool_use"


@pytest.mark.parametrize(
    ("core_name", "given", "shown"),
    [("cpu", "call_ab", "toolu_ab"), (None, "call_0123456789ab", "call_0123456789ab"), (None, "", "toolu_10")],
)
def test_ids_of_calls_are_the_servers_own_or_in_anthropics_format(
    core_name: str | None, given: str, shown: str
) -> None:
    said, answer = streamed([call(0, "{}", "look", given)], answer=FakeAnswer(core_name=core_name))
    assert parsed(said)[1]["content_block"]["id"] == shown
    (block,) = json.loads(msgspec.json.encode(body_of(answer, SHOWN)))["content"]
    assert block["id"] == shown


def test_interleaved_calls_are_streamed_one_after_another() -> None:
    deltas = [
        call(0, '{"a"', "first", "x"),
        call(1, '{"b"', "second", "y"),
        Delta(text="Both."),
        call(0, ": 1}"),
        call(1, ": 2}"),
    ]
    said, _ = streamed(deltas)
    started = [event["content_block"] for event in parsed(said) if event["type"] == "content_block_start"]
    assert [block.get("name", block["type"]) for block in started] == ["first", "second", "text"]
    assert blocks_of(said) == [("tool_use", '{"a": 1}'), ("tool_use", '{"b": 2}'), ("text", "Both.")]


def test_arguments_that_are_cut_off_are_an_empty_input_in_a_whole_answer() -> None:
    said, answer = streamed([call(0, '{"a": ', "look", "x"), Delta(finish_reason="length")])
    assert blocks_of(said) == [("tool_use", '{"a": ')]
    assert b'"input":{}' in msgspec.json.encode(body_of(answer, SHOWN))


# PHP escapes slashes.
@pytest.mark.parametrize("slash", [b"/", rb"\/"])
def test_images_that_a_model_made_are_blocks_after_all_others(slash: bytes) -> None:
    drawn = b'[{"type": "image_url", "image_url": {"url": "data:image%bpng;base64,AA=="}}]' % slash
    elsewhere = b'[{"type": "image_url", "image_url": {"url": "https://a.b/c.png"}}]'
    pieces = [Delta(opaque=media_piece(image)) for image in (drawn, elsewhere)]
    said, answer = streamed([*pieces, Delta(text="Here"), Delta(finish_reason="stop")])
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    started = [event for event in parsed(said) if event["type"] == "content_block_start"]
    assert [event["index"] for event in started] == [0, 1]
    assert started[1]["content_block"] == image
    whole = json.loads(msgspec.json.encode(body_of(answer, SHOWN)))
    assert whole["content"] == [{"type": "text", "text": "Here"}, image]


def test_pings_keep_a_stream_alive_whose_thoughts_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(dialect.time, "monotonic", lambda: now[0])
    events = MessageEvents(cast(Answer, FakeAnswer()), ThinkingShown(blocks=False, texts=False))
    said = []
    for _ in range(12):
        now[0] += 1.0
        said.append(events.piece(Delta(reasoning="x")))
    assert [place for place, event in enumerate(said, start=1) if event == PING] == [5, 10]
    assert b"".join(said) == PING * 2


def blocks_of(said: bytes) -> list[tuple[str, str]]:
    """Type and text of each block, after checks of the grammar of events."""
    found: list[tuple[str, str]] = []
    is_open = False
    first, *middle, ended, stop = parsed(said)
    assert (first["type"], ended["type"], stop["type"]) == ("message_start", "message_delta", "message_stop")
    for event in middle:
        if event["type"] == "content_block_start":
            assert not is_open
            assert event["index"] == len(found)
            found.append((event["content_block"]["type"], ""))
            is_open = True
            continue
        assert is_open
        assert event["index"] == len(found) - 1
        kind, text = found[-1]
        if event["type"] == "content_block_stop":
            is_open = False
            continue
        assert event["type"] == "content_block_delta"
        name = {"text": "text", "thinking": "thinking", "tool_use": "partial_json"}[kind]
        if event["delta"]["type"] != "signature_delta":
            found[-1] = kind, text + event["delta"][name]
    assert not is_open
    return found


PIECES = st.one_of(
    st.builds(lambda text: Delta(text=text), st.text(max_size=5)),
    st.builds(lambda text: Delta(reasoning=text), st.text(max_size=5)),
    st.builds(
        lambda index, arguments: call(index, arguments, "look", str(index)),
        st.integers(0, 3),
        st.sampled_from(["", "{", "}", '{"a": 1}', '{"b":', ' "}"}', "[", " "]),
    ),
    st.builds(
        lambda text, thought, index: Delta(
            text=text, reasoning=thought, tool_calls=call(index, "{}", "look", str(index)).tool_calls
        ),
        st.text(max_size=3),
        st.text(max_size=3),
        st.integers(0, 3),
    ),
)


@given(st.lists(PIECES, max_size=30), st.sampled_from(["stop", "length", "tool_calls"]), st.booleans(), st.booleans())
def test_whatever_a_tier_says_blocks_are_nested_numbered_and_complete(
    deltas: list[Delta], reason: Any, blocks: bool, texts: bool
) -> None:
    said, answer = streamed([*deltas, Delta(finish_reason=reason)], ThinkingShown(blocks=blocks, texts=texts))
    found = blocks_of(said)
    choice = answer.choices[0]
    assert "".join(text for kind, text in found if kind == "text") == choice.text
    thoughts = "".join(text for kind, text in found if kind == "thinking")
    assert thoughts == (choice.reasoning if blocks and texts else "")
    assert blocks or not any(kind == "thinking" for kind, _ in found)
    ids = [event["content_block"].get("id") for event in parsed(said) if event["type"] == "content_block_start"]
    named = [given_call_id(name or "") for name in ids]
    called = {name: text for name, (kind, text) in zip(named, found, strict=True) if kind == "tool_use"}
    # Each call once; what follows the end of its object is no argument.
    assert sorted(called) == [str(index) for index, pieces in enumerate(choice.calls) if pieces]
    for name, text in called.items():
        arguments = choice.tool_calls[int(name)].arguments
        assert arguments == text or (arguments.startswith(text) and is_object(text))
    snapshot = None
    for event in parsed(said):
        if "partial_json" not in str(event):
            snapshot = accumulate_event(event=EVENT.validate_python(event), current_snapshot=snapshot, json_bufs={})
    assert snapshot is not None
    assert len(snapshot.content) == len(found)
