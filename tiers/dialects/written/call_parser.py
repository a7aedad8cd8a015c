"""Parse tool calls from a streaming answer: text stays text, calls become deltas, nothing is repeated.

A call `{"name": …, "arguments": {…}}` is read character by character, so that its arguments can be streamed; one of a
`NamedDialect` is passed on when all of it has been read.
"""

import json
from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple

from inference_core.tokenization.tokenizer import possible_start
from tiers.conversation import Tool, ToolCallDelta, new_call_id
from tiers.dialects.written.call_dialects import CallDialect, CallRead, NamedDialect

_ARGUMENTS = ("arguments", "parameters")


class CallScanner:
    """Feed it text that starts with `{`. `name` is set once it is known, `done` when the object has closed; `failed` if
    it is no call. `raw` is all text read. Arguments stream as the model wrote them."""

    def __init__(self, name_key: str = "name") -> None:
        self._name_key = name_key
        self.name: str | None = None
        # Lists of characters: a string that an attribute has is copied whenever it grows.
        self._raw: list[str] = []
        self.done = False
        self.failed = False
        self._stack: list[str] = []
        self._string: list[str] | None = None  # the current open string, raw, from its quote on
        self._escaped = False
        self._key: str | None = None
        self._value: list[str] = []
        self._expects_key = False
        self._pieces: list[str] = []
        self._seen_arguments = False

    @property
    def raw(self) -> str:
        """All that was read."""
        return "".join(self._raw)

    @property
    def ready(self) -> bool:
        """Whether the call can be announced: its name is known and its arguments have started, or the call is done.

        What fails later stays announced, as it would have been if the text had come character by character.
        """
        return self.name is not None and (bool(self._pieces) or self.done)

    def take_arguments(self) -> str:
        """Return the arguments that arrived since the last call."""
        piece = "".join(self._pieces)
        self._pieces.clear()
        return piece

    def feed(self, text: str) -> int:
        """Read `text` until the call ends, fails or has just got its name; return the number of characters read."""
        was_named = self.name is not None
        for index, character in enumerate(text):
            self._raw.append(character)
            self._read(character)
            if self.done or self.failed or (self.name is not None and not was_named):
                return index + 1
        return len(text)

    def _read(self, character: str) -> None:
        if self._string is not None:
            self._read_in_string(character)
        elif character == '"':
            self._string = [character]
            self._put(character)
        elif character in "{[":
            self._open(character)
        elif character in "}]":
            self._close(character)
        elif len(self._stack) == 1 and character in ":,":
            self._separate(character)
        elif len(self._stack) == 1 and self._key is None and not character.isspace():
            self.failed = True
        else:
            self._put(character)

    def _read_in_string(self, character: str) -> None:
        assert self._string is not None
        self._string.append(character)
        self._put(character)
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == '"':
            text, self._string = "".join(self._string), None
            if len(self._stack) == 1 and self._expects_key:
                self._key, self._expects_key, self._value = _decoded(text), False, []

    def _open(self, character: str) -> None:
        self._put(character)
        self._stack.append(character)
        if len(self._stack) == 1:
            self._expects_key = character == "{"
            self.failed = character != "{"

    def _close(self, character: str) -> None:
        if not self._stack or (self._stack[-1], character) not in (("{", "}"), ("[", "]")):
            self.failed = True
            return
        if len(self._stack) == 1:
            self._end_value()
            self._stack.pop()
            self.done = not self.failed
            self.failed = self.failed or self.name is None
            if self.done and not self._seen_arguments:
                self._pieces.append("{}")
            return
        self._stack.pop()
        self._put(character)

    def _separate(self, character: str) -> None:
        if character == ":":
            self._value = []
            self.failed = self._key is None
        else:
            self._end_value()
            self._expects_key, self._key = True, None

    def _put(self, character: str) -> None:
        """Add a character to the open value at the call's own level, if there is one."""
        if not self._stack or self._expects_key or self._key is None:
            return
        begins = not self._value
        if begins and character.isspace():
            return
        self._value.append(character)
        if self._key in _ARGUMENTS and self._value[0] == "{":
            self._seen_arguments = True
            self._pieces.append(character)

    def _end_value(self) -> None:
        value = "".join(self._value).strip()
        if self._key == self._name_key:
            name = _decoded(value)
            # The first one may have been announced.
            self.failed = self.failed or not name or self.name is not None
            self.name = self.name or name
        elif self._key in _ARGUMENTS and value and value[0] != "{":
            # Some models write the arguments' JSON as a string.
            text = _decoded(value) if value[0] == '"' else None
            if text is not None and text.lstrip().startswith("{"):
                self._pieces.append(text)
                self._seen_arguments = True
            else:
                self.failed = value != "null"
        self._value = []


def _decoded(text: str) -> str | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, str) else None


_BETWEEN = " \n\r\t,;"


class Said(NamedTuple):
    """The content of a piece of an answer: text, and pieces of calls."""

    text: str
    calls: list[ToolCallDelta]


class CallParser:
    """The parser of one choice. Only calls of `names` count; other calls are text. At most `most` calls."""

    def __init__(self, dialect: CallDialect, names: Collection[str], most: int | None = None) -> None:
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
        start = self._buffer.find(self._opener)
        if start >= 0:
            self._text.append(self._buffer[:start].rstrip())
            self._led = self._buffer[len(self._buffer[:start].rstrip()) : start + len(self._opener)]
            self._buffer = self._buffer[start + len(self._opener) :]
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
    return len(text) - len(text[: possible_start(text, (opener,))].rstrip())


class NamedCallParser:
    """The parser of one choice. Only calls of `tools` count; other calls are text. At most `most` calls."""

    def __init__(self, dialect: NamedDialect, tools: Mapping[str, Tool], most: int | None = None) -> None:
        self.count = 0
        self._dialect, self._tools, self._most = dialect, tools, most
        # What a call must begin with, up to its first white space or what varies.
        anchor = dialect.anchor
        self._start = anchor.split()[0].partition("{i")[0] if anchor else ""
        self._varies = "{id}" in anchor or "{index}" in anchor
        heads = (anchor, dialect.opener)
        self._heads = {_squeezed(head + name) for head in heads for name in tools}
        # What may stand behind a call without meaning anything.
        self._marks = [mark.strip() for mark in (dialect.section[1], dialect.separator) if mark.strip()]
        self._buffer = ""
        self._led = ""  # white space before what may be a call
        self._has_text = False
        self._behind_call = False

    def feed(self, text: str) -> Said:
        """Parse the next piece of the answer."""
        self._buffer += text
        return self._advance(at_end=False)

    def finish(self) -> Said:
        """End the answer: return what was held back."""
        return self._advance(at_end=True)

    def _advance(self, *, at_end: bool) -> Said:
        said, calls = list[str](), list[ToolCallDelta]()
        while self._buffer:
            if self.count == self._most:
                self._buffer = ""
            elif self._behind_call and not self._is_past_marks(at_end=at_end):
                break
            elif (start := self._next_start()) is None:
                kept = 0 if at_end or not self._start else held_back(self._buffer, self._start)
                said.append(self._taken(len(self._buffer) - kept))
                break
            elif start:
                before = self._taken(start)
                said.append(before.rstrip())
                self._led = before[len(before.rstrip()) :]
            elif (call := self._call()) is not None:
                self._taken(call.end)
                self._led = ""
                calls.append(ToolCallDelta(index=self.count, id=new_call_id(), name=call.name))
                calls.append(ToolCallDelta(index=self.count, arguments=call.arguments))
                self.count += 1
                self._behind_call = True
            elif not at_end and (self._varies or self._is_head()):
                break
            else:
                said.append(self._led + self._taken(max(len(self._start), 1)))
                self._led = ""
        text = "".join(said)
        self._has_text = self._has_text or bool(text.strip())
        return Said(text, calls)

    def _is_past_marks(self, *, at_end: bool) -> bool:
        """Take white space and marks behind a call off the buffer; False if more of the answer is needed for that."""
        self._buffer = self._buffer.lstrip()
        for mark in self._marks:
            if self._buffer.startswith(mark):
                self._taken(len(mark))
                return True
        if not self._buffer or (not at_end and any(mark.startswith(self._buffer) for mark in self._marks)):
            return False
        self._behind_call = False
        return True

    def _next_start(self) -> int | None:
        """Where the next call may start in the buffer; None: nowhere yet."""
        # Behind the first call, one begins without what stands before all of them; a call may begin with its name.
        may_begin = self.count or not (self._start or self._has_text)
        if may_begin and self._is_head():
            return 0
        start = self._buffer.find(self._start) if self._start else -1
        return None if start < 0 else start

    def _is_head(self) -> bool:
        """Whether the buffer may go on as a call."""
        squeezed = _squeezed(self._buffer)
        return any(head.startswith(squeezed) or squeezed.startswith(head) for head in self._heads)

    def _call(self) -> CallRead | None:
        read = self._dialect.call_at
        return read(self._buffer, self._tools, first=True) or read(self._buffer, self._tools, first=False)

    def _taken(self, length: int) -> str:
        taken, self._buffer = self._buffer[:length], self._buffer[length:]
        return taken


def _squeezed(text: str) -> str:
    return "".join(text.split())
