"""Parse streams of events from raw bytes, in chunks of any size: server-sent events, and Amazon's binary form.

Server-sent events: WHATWG HTML, section 9.2.6. A message of `application/vnd.amazon.eventstream` is: its length, the
length of its headers, a checksum of both (4 bytes each, big-endian), the headers, a JSON payload, and a checksum of
all before it.
"""

import re
import zlib

import msgspec

from tiers.errors import TierError

MAX_EVENT_BYTES = 8 * 2**20
BOM = b"\xef\xbb\xbf"


class ServerSentEvent(msgspec.Struct, frozen=True, gc=False):
    """One dispatched event."""

    event: str
    """Empty if the stream named none."""
    data: bytes

    @property
    def is_end(self) -> bool:
        """Whether it only says that the stream is over: `[DONE]`, with or without its brackets, or another word."""
        return self.data.strip(b'[< ">]\r\n').upper() in (b"DONE", b"END", b"EOS", b"EOF", b"STOP")

    @property
    def is_comment(self) -> bool:
        """Whether it only says that the connection is open: gateways pass comments on as data."""
        said = self.data.strip()
        is_open = said[:1] == b":" or said.strip(b'[]" ').lower().replace(b"-", b"") in _OPEN
        return is_open or not said or self.event.replace("-", "").encode() in _OPEN


_OPEN = (b"ping", b"keepalive", b"heartbeat")


class EventTooLargeError(ValueError):
    """A server sent more than `MAX_EVENT_BYTES` without ending an event."""


class EventParser:
    """Converts bytes to events. Lines end in LF, CR or CRLF; comments and other fields are skipped. A line that is no
    field goes on with the data before it, or is data if it is an object.

    Data stays bytes, so that a character split between two reads stays whole.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._data: list[bytes] = []
        self._event = ""
        self._size = 0
        self._first = True
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Return the events that `chunk` completes. Raises EventTooLargeError."""
        if not chunk:
            return []
        # Only a stream that starts with another byte can have no byte order mark.
        if self._first and not self._buffer and chunk[0] != BOM[0]:
            self._first = False
        if not (self._buffer or self._data or self._event or self._first or chunk.find(b"\r") >= 0):
            lines = chunk.split(b"\n")
            whole = lines[:-1:2]
            # Nearly every chunk of a token stream: events of one line, each with its data.
            others = [line for line in whole if line[:6] != b"data: "]
            if len(lines) % 2 and not others and not any(lines[1::2]):
                self._after_cr = False
                events = [ServerSentEvent("", line[6:]) for line in whole]
                return events + self._feed_lines(lines[-1]) if lines[-1] else events
        return self._feed_lines(chunk)

    def _feed_lines(self, chunk: bytes) -> list[ServerSentEvent]:
        if self._after_cr:
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        if not chunk:
            return []
        # A CR at the very end is a line end at once: waiting for a possible LF would delay the event.
        self._after_cr = chunk.endswith(b"\r")
        events: list[ServerSentEvent] = []
        # Only the chunk is searched: a long line may come in many of them.
        first, *others = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._buffer += first
        if others:
            *lines, rest = others
            first, self._buffer = bytes(self._buffer), bytearray(rest)
            for line in (first, *lines):
                self._take(line, events)
        if self._size + len(self._buffer) > MAX_EVENT_BYTES:
            raise EventTooLargeError(f"a server-sent event passed {MAX_EVENT_BYTES} bytes without an end")
        return events

    def flush(self) -> list[ServerSentEvent]:
        """End the stream: return the last event, if the server omitted its blank line."""
        return [*self.feed(b"\n"), *self.feed(b"\n")]

    def _take(self, line: bytes, events: list[ServerSentEvent]) -> None:
        if self._first:
            line = line.removeprefix(BOM)
            self._first = False
        if not line:
            if self._data:
                events.append(ServerSentEvent(self._event, b"\n".join(self._data)))
            self._data, self._event, self._size = [], "", 0
            return
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._size += len(line)
        elif name == b"event":
            self._event = value.decode(errors="replace")
        elif name == b"error":
            # As llama.cpp reported failures until 2025-09.
            self._event = "error"
            self._data.append(value)
        elif not _OTHER_FIELD.match(line) and (self._data or line[:1] == b"{"):
            # JSON over several lines, or without a field.
            self._data.append(line)
            self._size += len(line)


# Comments, and fields that say nothing here.
_OTHER_FIELD = re.compile(rb"[A-Za-z_-]*(:|$)")
PRELUDE_BYTES, CHECKSUM_BYTES = 12, 4
# Bytes of a header's value by its type; types 6 and 7 (bytes and text) state their length.
_SIZES = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}


class EventStreamParser:
    """Yields each message as an event named after its `:event-type`; exceptions as `exception` and their type."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Return the events that `chunk` completes. Raises TierError for other bytes, EventTooLargeError."""
        self._buffer += chunk
        events = []
        while len(self._buffer) >= PRELUDE_BYTES:
            prelude = bytes(self._buffer[:PRELUDE_BYTES])
            total, headers = int.from_bytes(prelude[:4], "big"), int.from_bytes(prelude[4:8], "big")
            if zlib.crc32(prelude[:8]) != int.from_bytes(prelude[8:], "big"):
                raise TierError(f"the server sent what is not an event stream: {prelude!r}")
            if total > MAX_EVENT_BYTES:
                raise EventTooLargeError(f"an event has {total} bytes, more than {MAX_EVENT_BYTES}")
            if len(self._buffer) < total:
                break
            message = bytes(self._buffer[:total])
            del self._buffer[:total]
            end = total - CHECKSUM_BYTES
            if end < PRELUDE_BYTES + headers or zlib.crc32(message[:end]) != int.from_bytes(message[end:], "big"):
                raise TierError("an event's checksum is wrong")
            names = _headers(message[PRELUDE_BYTES : PRELUDE_BYTES + headers])
            is_event = names.get(":message-type", "event") == "event"
            kind = names.get(":event-type", "") if is_event else f"exception {names.get(':exception-type', '')}"
            events.append(ServerSentEvent(kind, message[PRELUDE_BYTES + headers : end]))
        return events

    def flush(self) -> list[ServerSentEvent]:
        """End the stream; an incomplete message is dropped."""
        return []


def _headers(data: bytes) -> dict[str, str]:
    """Return the headers with text. Raises TierError."""
    headers: dict[str, str] = {}
    at = 0
    try:
        while at < len(data):
            name = data[at + 1 : at + 1 + data[at]].decode()
            at += 1 + data[at]
            kind = data[at]
            at += 1
            if kind in (6, 7):
                size = int.from_bytes(data[at : at + 2], "big")
                at += 2
            else:
                size = _SIZES[kind]
            if kind == 7:
                headers[name] = data[at : at + size].decode()
            at += size
    except (IndexError, KeyError, UnicodeDecodeError) as error:
        raise TierError(f"an event's headers cannot be read ({error!r})") from error
    return headers
