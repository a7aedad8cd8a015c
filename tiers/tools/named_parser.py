"""Parse calls of a `NamedDialect` from a streaming answer: a call is passed on when all of it has been read."""

from collections.abc import Mapping

from tiers.tool_types import Tool, ToolCallDelta, new_call_id
from tiers.tools.call_parser import Said, held_back
from tiers.tools.named_dialect import CallRead, NamedDialect


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
            elif (place := self._next_start()) is None:
                kept = 0 if at_end or not self._start else held_back(self._buffer, self._start)
                said.append(self._taken(len(self._buffer) - kept))
                break
            elif place:
                before = self._taken(place)
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
        place = self._buffer.find(self._start) if self._start else -1
        return None if place < 0 else place

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
