"""The event parser gives the same events for any chunking and any line ends."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiers.dialects import event_stream
from tiers.dialects.event_stream import EventParser, EventTooLargeError, ServerSentEvent

STREAM = (
    "\ufeffdata: marked\n\n"
    ': a comment\ndata: {"text": "Grüße 🌍"}\n\n'
    "event: error\ndata: first\nrequest-id: 7\ndata: second\nid: 7\nretry: 10\n\n"
    "\n\ndata:no space\n\ndata\n\ndata: [DONE]\n\n"
)
EVENTS = [
    ServerSentEvent("", b"marked"),
    ServerSentEvent("", '{"text": "Grüße 🌍"}'.encode()),
    ServerSentEvent("error", b"first\nsecond"),
    ServerSentEvent("", b"no space"),
    ServerSentEvent("", b""),
    ServerSentEvent("", b"[DONE]"),
]


@settings(deadline=None)
@given(cuts=st.lists(st.integers(0, 200)), newline=st.sampled_from(["\n", "\r\n", "\r"]))
def test_events_do_not_depend_on_how_the_bytes_are_cut(cuts: list[int], newline: str) -> None:
    raw = STREAM.replace("\n", newline).encode()
    edges = [0, *sorted(min(c, len(raw)) for c in cuts), len(raw)]
    parser = EventParser()
    events = [e for a, b in pairwise(edges) for e in parser.feed(raw[a:b])]
    assert events + parser.flush() == EVENTS


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_every_single_cut_gives_the_same_events(newline: str) -> None:
    raw = STREAM.replace("\n", newline).encode()
    for cut in range(len(raw)):
        parser = EventParser()
        assert parser.feed(raw[:cut]) + parser.feed(raw[cut:]) + parser.flush() == EVENTS


def test_an_event_is_out_as_soon_as_its_blank_line_is_in() -> None:
    parser = EventParser()
    assert parser.feed(b"data: a\r\n\r") == [ServerSentEvent("", b"a")]
    assert parser.feed(b"\ndata: b\r\n\r\n") == [ServerSentEvent("", b"b")]


def test_a_last_event_without_its_blank_line_is_not_lost() -> None:
    parser = EventParser()
    assert parser.feed(b"data: tail") == []
    assert parser.flush() == [ServerSentEvent("", b"tail")]


def test_an_endless_event_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "MAX_EVENT_BYTES", 100)
    for line in (b"data: " + b"x" * 200, b"data: xxxxxxxx\n" * 20):
        with pytest.raises(EventTooLargeError, match="100 bytes"):
            EventParser().feed(line)
