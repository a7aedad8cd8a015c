"""Streams of remote servers: server-sent events and Amazon's binary events, cut into pieces of any size."""

import re
import struct
import zlib

from tests.fuzz.pieces import pieces_of
from tests.hostile.target import fuzz_target
from tiers.dialects.event_stream import BOM, EventParser, EventStreamParser, EventTooLargeError, ServerSentEvent
from tiers.errors import TierError

SSE = [
    b'data: {"choices": []}\n\ndata: [DONE]\n\n',
    b"event: message_start\r\ndata: a\r\ndata:b\r\n\r\n: comment\r\nid: 1\r\nretry: 5\r\n\r\n",
    BOM + b"data\rdata: \xc3\xa9\r\revent\r\n\n",
    b"data: a\n\ndata: b\ndata: c\n\nevent: x\ndata: d",
]


def reference_events(data: bytes) -> list[ServerSentEvent]:
    """The events of a whole stream, as the standard says it: by lines, at once. Lines that can be no field go on with
    the data."""
    text = data.removeprefix(BOM).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    events, kept, kind = [], [], ""
    for line in [*text.split(b"\n"), b""]:
        if not line:
            if kept:
                events.append(ServerSentEvent(kind, b"\n".join(kept)))
            kept, kind = [], ""
            continue
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            kept.append(value)
        elif name == b"event":
            kind = value.decode(errors="replace")
        elif (kept or line[:1] == b"{") and re.match(rb"[A-Za-z_-]*(:|$)", line) is None:
            kept.append(line)
    return events


@fuzz_target(SSE, [b"data: ", b"data:", b"event: ", b"\n\n", b"\r\n", b"\r", b"\n", b": ", BOM, b"id: 1\n"])
def server_sent_events(data: bytes) -> str:
    """Any cuts give the events of the whole, which are those of the standard's algorithm."""
    parser = EventParser()
    events = [event for piece in pieces_of(data) for event in parser.feed(piece)] + parser.flush()
    assert events == reference_events(data)
    return f"{min(len(events), 3)} events"


def message(headers: bytes, payload: bytes) -> bytes:
    """A message of Amazon's event stream with right lengths and checksums."""
    prelude = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    body = prelude + struct.pack(">I", zlib.crc32(prelude)) + headers + payload
    return body + struct.pack(">I", zlib.crc32(body))


def text_header(name: bytes, value: bytes) -> bytes:
    """A header with text."""
    return bytes([len(name)]) + name + b"\x07" + struct.pack(">H", len(value)) + value


HEADERS = text_header(b":event-type", b"contentBlockDelta") + text_header(b":message-type", b"event")


@fuzz_target([message(HEADERS, b'{"delta": {"text": "a"}}') * 2, message(b"", b""), b"\x00" * 16])
def amazon_events_as_sent(data: bytes) -> str:
    """Whatever bytes arrive: events, or the documented errors; the same for any cuts."""
    whole, cut = _events([data]), _events(list(pieces_of(data)))
    assert whole == cut
    return f"{min(len(whole[0]), 3)} events, {whole[1]}"


@fuzz_target([HEADERS, b"\x01a\x00", b"\x01a\x09" + bytes(16), b"\x00\x06\x00\x01a"], [b":event-type", b"\x07\x00\x01"])
def amazon_event_headers(data: bytes) -> str:
    """Headers behind right checksums: the payload comes back, or the headers are refused."""
    payload = data[: len(data) // 3]
    events, error = _events(list(pieces_of(message(data, payload))))
    assert error or [event.data for event in events] == [payload]
    return error or events[0].event[:2]


def _events(pieces: list[bytes]) -> tuple[list[ServerSentEvent], str]:
    parser, events = EventStreamParser(), list[ServerSentEvent]()
    try:
        for piece in pieces:
            events += parser.feed(piece)
    except EventTooLargeError:
        return events, "too large"
    except TierError as error:
        if type(error) is not TierError:
            raise
        return [], str(error)[:24]
    return events, ""
