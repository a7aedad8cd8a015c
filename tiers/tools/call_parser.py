"""Parse tool calls from a streaming answer: text stays text, calls become deltas, nothing is repeated."""

from collections.abc import Collection
from typing import Literal, NamedTuple

from tiers.tool_types import ToolCallDelta, new_call_id
from tiers.tools.call_scanner import CallScanner
from tiers.tools.dialect import Dialect

_BETWEEN = " \n\r\t,;"


class Said(NamedTuple):
    """The content of a piece of an answer: text, and pieces of calls."""

    text: str
    calls: list[ToolCallDelta]


class CallParser:
    """The parser of one choice. Only calls of `names` count; other calls are text. At most `most` calls."""

    def __init__(self, dialect: Dialect, names: Collection[str], most: int | None = None) -> None:
        self.count = 0
        self._opener = dialect.opener.strip().removesuffix("[")
        closer = dialect.closer.strip(" \n\r\t[]")
        self._skipped = tuple(m for m in (dialect.also_opens, self._opener, closer) if m)
        self._at_start = dialect.at_start
        self._name_key = dialect.name_key
        self._names, self._most = names, most
        self._state: Literal["start", "text", "between", "call", "ended"] = "start" if dialect.at_start else "text"
        self._buffer = ""
        self._led = ""  # what was read since the last text, to be restored if no call follows
        self._scanner = CallScanner(self._name_key)
        self._announced = False
        self._text: list[str] = []
        self._calls: list[ToolCallDelta] = []

    def feed(self, text: str) -> Said:
        """Parse the next piece of the answer."""
        self._buffer += text
        while self._buffer and self._advance():
            pass
        return self._said()

    def finish(self) -> Said:
        """End the answer: return what was held back."""
        if self._state == "call" and not self._announced:
            self._text.append(self._led + self._scanner.raw)
        elif self._state in ("text", "start") or (self._state == "between" and not self.count):
            self._text.append(self._led + self._buffer)
        self._buffer = self._led = ""
        return self._said()

    def _said(self) -> Said:
        said = Said("".join(self._text), self._calls)
        self._text, self._calls = [], []
        return said

    def _advance(self) -> bool:
        """Process one part of the buffer; False if it needs more of the answer."""
        if self._state == "call":
            return self._read_call()
        if self._state == "between":
            return self._read_between()
        if self._state == "start":
            return self._read_start()
        if self._state == "ended":
            self._buffer = ""
            return False
        return self._read_text()

    def _read_start(self) -> bool:
        text = self._buffer.lstrip()
        if not text or any(m != text and m.startswith(text) for m in self._skipped):
            return False
        self._state = "between" if text.startswith(("{", *self._skipped)) else "text"
        return True

    def _read_text(self) -> bool:
        if self._at_start:
            self._text.append(self._buffer)
            self._buffer = ""
            return False
        place = self._buffer.find(self._opener)
        if place >= 0:
            self._text.append(self._buffer[:place].rstrip())
            self._led = self._buffer[len(self._buffer[:place].rstrip()) : place + len(self._opener)]
            self._buffer = self._buffer[place + len(self._opener) :]
            self._state = "between"
            return True
        kept = held_back(self._buffer, self._opener)
        self._text.append(self._buffer[: len(self._buffer) - kept])
        self._buffer = self._buffer[len(self._buffer) - kept :]
        return False

    def _read_between(self) -> bool:
        """Read markers, brackets and white space between calls."""
        # Small models close an object once too often.
        if self._buffer[0] in _BETWEEN or self._buffer[0] in "[]" or (self.count and self._buffer[0] == "}"):
            self._lead(1)
            return True
        for marker in self._skipped:
            if self._buffer.startswith(marker):
                self._lead(len(marker))
                return True
        if self._buffer[0] == "{" and (self._most is None or self.count < self._most):
            self._state, self._scanner, self._announced = "call", CallScanner(self._name_key), False
            return True
        if any(marker.startswith(self._buffer) for marker in self._skipped):
            return False
        if self.count and (self._at_start or self._buffer[0] == "{"):
            self._state = "ended"  # after calls there is no text, and no more calls than allowed
            return True
        self._back_to_text(self._led if not self.count else "")
        return True

    def _lead(self, length: int) -> None:
        self._led += self._buffer[:length]
        self._buffer = self._buffer[length:]

    def _read_call(self) -> bool:
        scanner = self._scanner
        taken = scanner.feed(self._buffer)
        self._buffer = self._buffer[taken:]
        unknown = scanner.name is not None and scanner.name not in self._names
        if scanner.ready and not unknown and not self._announced:
            self._announced = True
            self._led = ""
            self._calls.append(ToolCallDelta(index=self.count, id=new_call_id(), name=str(scanner.name)))
        if not self._announced and (scanner.failed or unknown):
            self._back_to_text(self._led + scanner.raw)
            return True
        if self._announced and (piece := scanner.take_arguments()):
            self._calls.append(ToolCallDelta(index=self.count, arguments=piece))
        if scanner.done or scanner.failed:
            self.count += 1
            self._state, self._led = "between", ""
        return True

    def _back_to_text(self, read: str) -> None:
        self._text.append(read)
        self._led, self._state = "", "text"


def held_back(text: str, opener: str) -> int:
    """Return how many characters at the end may be white space before an opener, or the start of one."""
    for length in range(min(len(opener) - 1, len(text)), 0, -1):
        if text.endswith(opener[:length]):
            return len(text) - len(text[: len(text) - length].rstrip())
    return len(text) - len(text.rstrip())
