"""Amazon's binary event stream (`application/vnd.amazon.eventstream`), read in chunks of any size.

A message is: its length, the length of its headers, a checksum of both (4 bytes each, big-endian), the headers, a JSON
payload, and a checksum of all before it.
"""

import zlib

from tiers.errors import TierError
from tiers.remote.sse import MAX_EVENT_BYTES, EventTooLargeError, ServerSentEvent

PRELUDE_BYTES, CHECKSUM_BYTES = 12, 4
# Bytes of a header's value by its type; types 6 and 7 (bytes and text) state their length.
_SIZES = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}


class EventStreamParser:
    """Yields each message as an event named after its `:event-type`; exceptions as `exception`."""

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
            kind = names.get(":event-type", "") if is_event else "exception"
            events.append(ServerSentEvent(kind, message[PRELUDE_BYTES + headers : end]))
        return events

    def flush(self) -> list[ServerSentEvent]:
        """End the stream; an incomplete message is dropped."""
        return []


def _headers(data: bytes) -> dict[str, str]:
    """Return the headers with text. Raises TierError."""
    found: dict[str, str] = {}
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
                found[name] = data[at : at + size].decode()
            at += size
    except (IndexError, KeyError, UnicodeDecodeError) as error:
        raise TierError(f"an event's headers cannot be read ({error!r})") from error
    return found
