"""Server-sent events out of raw bytes, however the network cut them (WHATWG HTML, section 9.2.6)."""

from typing import NamedTuple

MAX_EVENT_BYTES = 8 * 2**20
BOM = b"\xef\xbb\xbf"


class ServerSentEvent(NamedTuple):
    """One dispatched event; `event` is empty where the stream named none."""

    event: str
    data: str


class EventTooLargeError(ValueError):
    """A server sent more than `MAX_EVENT_BYTES` without ending an event."""


class EventParser:
    """Feed it bytes, get events. Lines end in LF, CR or CRLF; comments, `id` and `retry` are skipped.

    Bytes are decoded only as whole lines, so that a character split between two reads stays whole.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._data: list[str] = []
        self._event = ""
        self._size = 0
        self._first = True
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """The events that `chunk` completes. Raises EventTooLargeError."""
        if not chunk:
            return []
        if self._after_cr:
            chunk = chunk.removeprefix(b"\n")
        self._buffer += chunk
        # A CR at the very end counts as a line end at once: waiting for a possible LF would delay the event.
        self._after_cr = self._buffer.endswith(b"\r")
        events: list[ServerSentEvent] = []
        *lines, rest = bytes(self._buffer).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._buffer = bytearray(rest)
        for line in lines:
            self._take(line, events)
        if self._size + len(rest) > MAX_EVENT_BYTES:
            raise EventTooLargeError(f"a server-sent event passed {MAX_EVENT_BYTES} bytes without an end")
        return events

    def flush(self) -> list[ServerSentEvent]:
        """At the end of the stream: the last event, if the server forgot its blank line."""
        return [*self.feed(b"\n"), *self.feed(b"\n")]

    def _take(self, line: bytes, events: list[ServerSentEvent]) -> None:
        if self._first:
            line = line.removeprefix(BOM)
            self._first = False
        if not line:
            if self._data:
                events.append(ServerSentEvent(self._event, "\n".join(self._data)))
            self._data, self._event, self._size = [], "", 0
            return
        name, _, value = line.decode("utf-8", errors="replace").partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
            self._size += len(line)
        elif name == "event":
            self._event = value
