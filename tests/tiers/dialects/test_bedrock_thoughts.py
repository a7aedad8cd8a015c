"""Sealed thoughts of Converse are read as blocks, streamed or whole, and stand before the turn when they go back."""

import base64
import json

import msgspec
import pytest

from tests.tiers.remote.provider_shapes import bedrock_end, bedrock_stream
from tiers.catalog.tier_spec import RemoteSpec
from tiers.conversation import Call, Opaque, Turn
from tiers.dialects.bedrock import ConverseServer, message_turns
from tiers.dialects.responses_items import CARRIED, with_carried
from tiers.dialects.usage_counter import Tally
from tiers.tier import Delta

THOUGHTS = [
    {"reasoningContent": {"reasoningText": {"text": "Is it cold?", "signature": "EqQB"}}},
    {"reasoningContent": {"redactedContent": "SGlkZGVu"}},
]
CALL = {"toolUse": {"toolUseId": "call_1", "name": "weather", "input": {"city": "Oslo"}}}


def streamed(wire: ConverseServer, tally: Tally) -> list[Delta]:
    """The deltas of the same answer in pieces."""
    pieces = [(0, {"text": "Is it "}), (0, {"text": "cold?"}), (0, {"signature": "EqQB"})]
    pieces.append((1, {"redactedContent": "SGlkZGVu"}))
    events = [
        ("contentBlockDelta", {"contentBlockIndex": index, "delta": {"reasoningContent": piece}})
        for index, piece in pieces
    ]
    events += [("contentBlockStop", {"contentBlockIndex": index}) for index in (0, 1)]
    events.append(("contentBlockDelta", {"contentBlockIndex": 2, "delta": {"text": "Yes."}}))
    parsed = wire.parser().feed(bedrock_stream([*events, *bedrock_end()]))
    return [delta for event in parsed for delta in wire.read_event(event, tally) or ()]


def whole(wire: ConverseServer, tally: Tally) -> list[Delta]:
    """The deltas of the whole answer."""
    message = {"role": "assistant", "content": [*THOUGHTS, {"text": "Yes."}]}
    return wire.read_whole(json.dumps({"output": {"message": message}, "stopReason": "end_turn"}).encode(), tally)


@pytest.mark.parametrize("read", [streamed, whole])
@pytest.mark.parametrize("wanted", [False, True])
def test_sealed_thoughts_go_back_as_they_came(read: object, wanted: bool) -> None:
    wire = ConverseServer(RemoteSpec(base_url="https://x/", model="anthropic.claude", kind="bedrock", api_key_env="K"))
    tally = Tally(1, 9, lambda: None)  # type: ignore[arg-type, return-value]
    tally.opaque = wanted
    deltas: list[Delta] = read(wire, tally)  # type: ignore[operator]
    assert "".join(delta.reasoning for delta in deltas) == "Is it cold?"
    blocks = tuple(delta.opaque.block for delta in deltas if delta.opaque is not None and delta.opaque.block)
    assert [json.loads(block.json) for block in blocks] == (THOUGHTS if wanted else [])
    call = Call(id="call_1", name="weather", arguments='{"city": "Oslo"}')
    said = Turn.of("assistant", calls=(call,), opaque=blocks)
    [_, turn] = message_turns([Turn.of("user", "Cold?"), said])
    assert json.loads(msgspec.json.encode(turn))["content"] == [*(THOUGHTS if wanted else []), CALL]


@pytest.mark.parametrize("json", [b"", b"[]", b'{"reasoningContent": 1}', b'{}],"system":['])
def test_what_is_no_block_of_converse_is_left_out(json: bytes) -> None:
    said = Turn.of("assistant", "Yes.", opaque=(Opaque("bedrock", json, "thinking"),))
    [_, turn] = message_turns([Turn.of("user", "Cold?"), said])
    assert msgspec.to_builtins(turn) == {"role": "assistant", "content": [{"text": "Yes."}]}


@pytest.mark.parametrize("content", [b"", b"{", msgspec.msgpack.encode(["m", [Opaque("bedrock", b'{}],"system":[')]])])
def test_what_a_client_carries_and_no_server_can_read_changes_nothing(content: bytes) -> None:
    turn = Turn.of("assistant", calls=(Call(id="1", name="f", arguments="{}"),))
    assert with_carried(turn, CARRIED + base64.urlsafe_b64encode(content).decode()) == turn
