"""Frames: whatever way the bytes are cut up, the same values come out, and nothing oversized or foreign."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_core.protocol import AddRequest, Command, Event, Goodbye, SamplingParams, SequenceOutput, TokenLogprob
from inference_core.transport.framing import FrameError, FrameReader, FrameWriter


@given(values=st.lists(st.lists(st.text(max_size=40), max_size=5), max_size=8), cuts=st.lists(st.integers(1, 30)))
def test_any_cutting_of_the_stream_gives_the_same_values(values, cuts):
    writer, reader = FrameWriter(), FrameReader(list[str])
    stream = b"".join(writer.frame(value) for value in values)
    pieces, rest = [], stream
    for cut in cuts:
        pieces.append(rest[:cut])
        rest = rest[cut:]

    got = [value for piece in [*pieces, rest] for value in reader.feed(piece)]

    assert got == values


def test_commands_and_events_survive_the_way_unchanged():
    command = AddRequest(
        request_id="é",
        model="m",
        prompt_token_ids=[1, 2],
        sampling=SamplingParams(logit_bias={7: -1.5}, stop_token_ids=(3,), seed=2**62, logprobs=1),
        deadline=1.5,
    )
    events = [
        SequenceOutput(request_id="r", index=1, token_ids=[5], logprobs=[TokenLogprob(5, -0.5, [(5, -0.5)])]),
        Goodbye(reason="bye"),
    ]

    assert list(FrameReader(list[Command]).feed(FrameWriter().frame([command]))) == [[command]]
    assert list(FrameReader(list[Event]).feed(FrameWriter().frame(events))) == [events]


def test_a_frame_over_the_limit_is_neither_written_nor_read():
    frame = FrameWriter().frame("x" * 100)

    with pytest.raises(FrameError, match="limit of 50"):
        FrameWriter(max_bytes=50).frame("x" * 100)
    with pytest.raises(FrameError, match="limit of 50"):
        list(FrameReader(str, max_bytes=50).feed(frame[:4]))


@pytest.mark.parametrize(
    "body",
    [b"\xc1", msgspec.msgpack.encode(["no command"]), b"\x91\x81\xa1\xff\x01", b"\x91\x81\xa1a" + b"\x91" * 5000],
    ids=["no MessagePack", "another type", "no UTF-8", "nested"],
)
def test_a_frame_of_something_else_is_refused(body):
    with pytest.raises(FrameError, match="does not hold"):
        list(FrameReader(list[Command]).feed(len(body).to_bytes(4, "big") + body))
