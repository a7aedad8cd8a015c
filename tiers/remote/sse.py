"""Parse server-sent events from raw bytes, in chunks of any size (WHATWG HTML, section 9.2.6)."""

import msgspec

MAX_EVENT_BYTES = 8 * 2**20
BOM = b"\xef\xbb\xbf"


class ServerSentEvent(msgspec.Struct, frozen=True, gc=False):
    """One dispatched event; `event` is empty if the stream named none."""

    event: str
    data: bytes


class EventTooLargeError(ValueError):
    """A server sent more than `MAX_EVENT_BYTES` without ending an event."""


class EventParser:
    """Converts bytes to events. Lines end in LF, CR or CRLF; comments, `id` and `retry` are skipped.

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
        if not (self._buffer or self._data or self._event or self._first or b"\r" in chunk):
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
