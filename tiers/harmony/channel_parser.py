"""Parse an answer in OpenAI's harmony format as it streams: thoughts, calls of tools and the answer, by channel.

A message is `<|start|>ROLE to=RECIPIENT<|channel|>CHANNEL <|constrain|>TYPE<|message|>BODY` and an end; the recipient
may also stand behind the channel. The prompt ends with `<|start|>assistant`, so an answer begins behind that.
"""

import re
from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple

from tiers.tool_types import ToolCallDelta, new_call_id

# A control token as a text that no model can write: lone surrogates are in no decoded text.
MARKS: Mapping[str, str] = {
    "<|start|>": "\ud800",
    "<|end|>": "\ud801",
    "<|message|>": "\ud802",
    "<|channel|>": "\ud803",
    "<|constrain|>": "\ud804",
    "<|return|>": "\ud805",
    "<|call|>": "\ud806",
}
START, END, MESSAGE, CHANNEL, CONSTRAIN, RETURN, CALL = MARKS.values()
_MARK = re.compile(f"([{START}-{CALL}])")
_RECIPIENT = re.compile(r"\bto=(\S+)")
# What may stand between `<|start|>assistant` and a mark: anything else is an answer without a header.
_BEFORE_CHANNEL = re.compile(r"\s*(t(o(=\S*\s*)?)?)?")
_LONGEST_OPENING = 256
_FUNCTIONS = "functions."

Place = Literal["opening", "header", "between", "body"]
Route = Literal["text", "reasoning", "call", "nothing"]


class Said(NamedTuple):
    """What a piece of an answer says."""

    text: str
    reasoning: str
    calls: list[ToolCallDelta]


class ChannelParser:
    """The parser of one choice, whose control tokens appear as `MARKS`. Calls of `names` are calls, at most `most`.

    Messages of the channel `analysis` are reasoning; all others are text, those to a function aside. Several messages
    of one kind are a blank line apart. Messages of other roles say nothing. An answer without any header is text.
    """

    def __init__(self, names: Collection[str], most: int | None = None) -> None:
        self.count = 0
        self._names, self._most = names, most
        self._place: Place = "opening"
        self._header: dict[str, str] = {START: ""}  # its sections, by the mark before each
        self._section = START
        self._route: Route = "nothing"
        self._separator = {"text": "", "reasoning": ""}  # what is said before the next message of the kind
        self._is_empty = True
        self._said: dict[str, list[str]] = {"text": [], "reasoning": []}
        self._calls: list[ToolCallDelta] = []

    @property
    def is_answering(self) -> bool:
        """Whether what comes next is part of the answer's text."""
        return self._place == "body" and self._route == "text"

    def feed(self, text: str) -> Said:
        """Parse the next piece of the answer."""
        for piece in _MARK.split(text):
            if _MARK.fullmatch(piece):
                self._take_mark(piece)
            elif piece:
                self._take_text(piece)
        return self._take_said()

    def finish(self) -> Said:
        """End the answer: return what was held back."""
        self._end_message()
        return self._take_said()

    def _take_said(self) -> Said:
        said = Said("".join(self._said["text"]), "".join(self._said["reasoning"]), self._calls)
        self._said, self._calls = {"text": [], "reasoning": []}, []
        return said

    def _take_text(self, text: str) -> None:
        if self._place == "body":
            self._say(text)
            return
        self._header[self._section] += text
        if self._place == "opening":
            begun = self._header[START]
            if len(begun) > _LONGEST_OPENING or not _BEFORE_CHANNEL.fullmatch(begun):
                self._begin_body("text")
                self._say(begun)

    def _take_mark(self, mark: str) -> None:
        if mark in (MESSAGE, CONSTRAIN) and self._place == "body":
            return  # there it means nothing
        if mark == MESSAGE:
            self._begin_body(self._routed())
        elif mark in (CHANNEL, CONSTRAIN) and self._place != "body":
            self._place, self._section = "header", mark
            self._header.setdefault(mark, "")
        else:
            self._end_message()
            self._header, self._section = {START: ""}, START
            self._place = "header" if mark in (START, CHANNEL) else "between"
            if mark == CHANNEL:  # of a message whose start is missing
                self._header[CHANNEL], self._section = "", CHANNEL

    def _routed(self) -> Route:
        """Where the body of the message with this header goes."""
        if _RECIPIENT.sub("", self._header[START]).strip() not in ("", "assistant"):
            return "nothing"
        name = self._recipient()
        if name in self._names:
            return "nothing" if self._most is not None and self.count >= self._most else "call"
        return "reasoning" if self._header.get(CHANNEL, "").split()[:1] == ["analysis"] else "text"

    def _recipient(self) -> str | None:
        found = _RECIPIENT.search(self._header.get(CHANNEL, "")) or _RECIPIENT.search(self._header[START])
        return None if found is None else found[1].removeprefix(_FUNCTIONS)

    def _begin_body(self, route: Route) -> None:
        self._place, self._route, self._is_empty = "body", route, True
        if route == "call":
            self._calls.append(ToolCallDelta(index=self.count, id=new_call_id(), name=str(self._recipient())))
            self.count += 1

    def _say(self, text: str) -> None:
        self._is_empty = False
        if self._route == "call":
            self._calls.append(ToolCallDelta(index=self.count - 1, arguments=text))
        elif self._route != "nothing":
            self._said[self._route] += [self._separator[self._route], text]
            self._separator[self._route] = ""

    def _end_message(self) -> None:
        if self._place != "body":
            self._begin_unmarked_body()
        if self._place != "body":
            return
        if self._route == "call" and self._is_empty:
            self._say("{}")
        if self._route in self._separator and not self._is_empty:
            self._separator[self._route] = "\n\n"

    def _begin_unmarked_body(self) -> None:
        """Say what stands where a body should, in a message that ends without a mark before its body."""
        if self._place == "header":
            # Behind the channel's name; a role alone, or a call without arguments, is nothing.
            route = self._routed()
            body = _RECIPIENT.sub("", self._header.get(CHANNEL, "")).strip().partition(" ")[2].strip()
            if route == "call":
                return
        else:
            route, body = "text", self._header[START]
            if self._place == "between" and body.strip() == "assistant":
                return
        if body:
            self._begin_body(route)
            self._say(body)
