"""What a server without a parser leaves in the text of an answer: thoughts between tags, gpt-oss's channels, and calls
as the model writes them. Each is moved to where a client looks for it.

Templates of some models open the thought in the prompt, so that the answer has its closing tag alone. A stream says so
too late: that a server does it is known from its name or its earlier answers (`opens_thoughts`).
"""

import re
from collections.abc import Callable, Mapping

import msgspec

from inference_core.tokenization.tokenizer import possible_start
from tiers.conversation import Tool, ToolCallDelta
from tiers.dialects.lenient_json import arguments_text, plain_json
from tiers.dialects.usage_counter import Tally
from tiers.dialects.written.harmony import MARKS, ChannelParser, Said
from tiers.dialects.written.written_calls import (
    MOST_WAITING,
    QUOTES,
    THINK_END,
    WRAPPERS,
    WRITTEN,
    WholeCall,
    WrittenText,
    numbered,
)
from tiers.tier import Delta, GenerationRequest, ModelRequest

_TAGS = {row.opening: row.closing for row in WRITTEN.thoughts}
# With the closing ones: of servers that take away all but these.
_STARTS = _TAGS | dict.fromkeys(_TAGS.values(), "")
_CHANNELS = ("<|channel|>", "<|start|>")
_CLOSING = re.compile(rf"(?<![`'\"]){THINK_END}(?![`'\"])")
_OPENS_THOUGHTS = re.compile(r"deepseek-?r1|\bqwq|thinking", re.IGNORECASE)


def opens_thoughts(model: str) -> bool:
    """Whether the template of this model is known to open the thought in the prompt."""
    return _OPENS_THOUGHTS.search(model) is not None


def thinking_of(request: ModelRequest) -> int:
    """Return what of a request decides whether its template opens a thought, as a key."""
    own = [request.extra.get(name) for name in ("chat_template_kwargs", "thinking", "reasoning", "enable_thinking")]
    is_bound = request.response_format is not None or request.sampling.grammar is not None
    said = [request.reasoning_effort, request.reasoning_budget, request.template_variables, own, is_bound]
    return hash(repr(said))


# Tags in one piece: each copies what follows it.
_MOST_STEPS = 200
# What some models call to call others.
_SEVERAL = re.compile(r"(?:multi_tool_use[._])?parallel(?::\d+)?|multi_tool_use")


class _Choice:
    """The text of one choice."""

    opened: bool | None = None
    """Whether its thought was opened in the prompt; None where that does not show."""

    def __init__(self, written: WrittenText, *, is_open: bool, is_guess: bool) -> None:
        """`is_open`: presume that the thought was opened in the prompt. `is_guess`: the model's name alone says so, so
        that what may be an answer waits."""
        self._written = written
        self._is_open = is_open
        self._is_guess = is_guess
        self._state = "start"
        self._closing = self._held = ""
        self._is_behind = self._is_fresh = self._has_thought = False
        # What is a thought only if its closing tag comes.
        self._presumed: list[str] | None = None
        self._channels: ChannelParser | None = None

    def is_plain(self, text: str) -> bool:
        """Whether the next piece is nothing but text, as nearly every one is."""
        return self._state == "text" and self._written.is_plain(text)

    def is_told(self, delta: Delta) -> None:
        """Note what the server has separated itself."""
        if delta.reasoning:
            self._is_open, self.opened, self._has_thought = False, False, True
        if delta.tool_calls:
            self._written.tools = {}

    def push(self, text: str, *, whole: bool = False) -> Said:
        """Return what the next piece says; what may be half a tag waits. `whole`: nothing more comes."""
        text, self._held = self._held + text, ""
        thought, steps = "", 0
        while True:
            steps += 1
            if steps > _MOST_STEPS and self._state in ("start", "thought"):
                text = "".join((*(self._presumed or ()), text)) if self._is_guess else text
                self._state, self._presumed = "text", None
            match self._state:
                case "thought":
                    text = text.lstrip() if self._is_fresh else text
                    said, end, text = text.partition(self._closing)
                    self._is_fresh = self._is_fresh and not said
                    if end and self._presumed is not None:
                        if (said or "".join(self._presumed[-1:])).endswith(QUOTES):
                            self._presumed.append(said + end)
                            thought += "" if self._is_guess else said + end
                            continue
                        if "<think>" in (so_far := "".join((*self._presumed, said))):
                            # A thought that begins later was not open before.
                            self._state, self._presumed, self.opened = "text", None, False
                            text = so_far + end + text
                            continue
                    if end:
                        self._state, self._is_behind = "start", True
                        if self._presumed is not None:
                            thought += "".join(self._presumed) if self._is_guess else ""
                            self._presumed, self.opened, self._is_open = None, True, False
                    else:
                        cut = possible_start(said, (self._closing,))
                        said, self._held = said[:cut], said[cut:]
                    if said and self._presumed is not None:
                        self._presumed.append(said)
                    if self._presumed is None or not self._is_guess:
                        thought += said
                    if not end:
                        return Said("", thought, [])
                case "start":
                    if (begun := self._start(text, whole=whole)) is None:
                        self._held = text
                        return Said("", thought, [])
                    before, text = begun
                    thought += before
                case "channels":
                    cut = len(text) if whole else possible_start(text, MARKS)
                    text, self._held = text[:cut], text[cut:]
                    said_there = self._in_channels(text)
                    return Said(said_there.text, thought + said_there.reasoning, said_there.calls)
                case _:
                    return Said(self._written.push(text), thought, [])

    def finish(self, reason: str | None = None) -> Said:
        """Return what still waits. `reason`: why the answer ended."""
        held, self._held = self._held, ""
        if self._state == "channels" and self._channels is not None:
            said, last = self._in_channels(held), self._channels.finish()
            return Said(said.text + last.text, said.reasoning + last.reasoning, said.calls + last.calls)
        if self._state == "text":
            return self._written.finish()
        if self._state != "thought":
            return Said(held, "", [])
        if self._presumed is None or reason == "length":
            waiting = self._presumed or [] if self._is_guess else []
            return Said("", "".join((*waiting, held)), [])
        self.opened = False
        return Said("".join((*self._presumed, held)), "", [])

    def _start(self, text: str, *, whole: bool) -> tuple[str, str] | None:
        """Return the thoughts before what `text` begins with, and the text from there; None if it may be half a tag."""
        start = text.lstrip()
        tag = next((tag for tag in _STARTS if start.startswith(tag)), None)
        if tag is not None and self._written.is_callers(tag):
            self._state = "text"
            return "", text
        if tag is not None:
            if closing := _STARTS[tag]:
                self._state, self._closing, self.opened, self._is_fresh = "thought", closing, False, True
            self._is_open, self._is_behind = False, True
            return "", start[len(tag) :].lstrip()
        if start.startswith(_CHANNELS):
            self._state, self._channels = "channels", self._written.channels()
            return "", start
        wrapper = next((tag for tag in WRAPPERS if start.startswith(tag)), None)
        is_behind = self._is_behind or self._has_thought
        if wrapper is not None and (is_behind or "|" in wrapper) and not self._written.is_callers(wrapper):
            self._written.closing, self._is_behind = WRAPPERS[wrapper], True
            return "", start[len(wrapper) :]
        is_short = len(text) < MOST_WAITING and not whole
        if is_short and any(tag.startswith(start) for tag in (*_STARTS, *_CHANNELS, *WRAPPERS)):
            return None
        bare = self._written.bare(start, whole=not is_short)
        if bare:
            self._state = "text"
            self._written.wait(start)
            return "", ""
        if bare is None:
            return None
        if self._is_open and not whole:
            self._state, self._closing, self._presumed = "thought", THINK_END, []
            return "", start
        else:
            self._state = "text"
            if whole and "<think>" not in text and len(parts := _CLOSING.split(text)) == 2:
                self.opened = True
                return parts[0].strip(), parts[1].lstrip()
        return "", start if self._is_behind else text

    def _in_channels(self, text: str) -> Said:
        assert self._channels is not None
        for token, mark in MARKS.items():
            text = text.replace(token, mark)
        return self._channels.feed(text)


class _Texts:
    """The texts of one choice: the answer, and the thoughts that its server has separated, where some have tags, too.
    Calls in a thought count where nothing else is said. `tools`: of the request."""

    def __init__(
        self,
        tools: Mapping[str, Tool],
        most: int | None,
        is_callers: Callable[[str], bool],
        *,
        is_open: bool,
        is_guess: bool,
    ) -> None:
        self.answer = _Choice(WrittenText(tools, most, is_callers), is_open=is_open, is_guess=is_guess)
        self._thoughts = WrittenText(tools, most, is_callers)
        separated = WrittenText({}, None, is_callers)
        separated.closing = THINK_END
        self._separated = _Choice(separated, is_open=False, is_guess=False)
        self._tools, self._most = tools, most
        # Calls of what calls others, by their index.
        self._several: dict[int, list[ToolCallDelta]] = {}
        self._has_said = self._is_answering = False
        self._next = 0

    def move(self, delta: Delta, *, whole: bool) -> None:
        """Move what is in the texts of `delta`."""
        answer, reasoning = self.answer, delta.reasoning
        if self._is_answering and not (reasoning or delta.tool_calls) and answer.is_plain(delta.text):
            return
        self._is_answering = bool(delta.text) and not self._several
        answer.is_told(delta)
        text = delta.text
        if reasoning:
            reasoning, more = self._of_field(self._separated.push(reasoning, whole=whole))
            text = more + text
        if delta.text or delta.tool_calls:
            last, more = self._of_field(self._separated.finish())
            reasoning, text = reasoning + last, more + text
        said = answer.push(text, whole=whole) if text else Said("", "", [])
        reasoning += said.reasoning
        delta.text, delta.tool_calls = said.text, [*map(self._counted, self._single(delta.tool_calls)), *said.calls]
        if delta.text.strip() or delta.tool_calls or self._several:
            self._has_said, self._thoughts.tools = True, {}
            reasoning = self._thoughts.release() + reasoning
        delta.reasoning = self._thoughts.push(reasoning) if reasoning else ""

    def rest(self, reason: str | None) -> Said:
        """Return what still waits, at the end of the answer. `reason`: why it ended."""
        reasoning, text = self._of_field(self._separated.finish())
        before = self.answer.push(text) if text else Said("", "", [])
        said = self.answer.finish(reason)
        text, calls = before.text + said.text, [*self._several_calls(), *said.calls]
        if text.strip() or calls or self._has_said or reason == "length":
            self._thoughts.tools = {}
        thought = self._thoughts.push(reasoning + before.reasoning + said.reasoning)
        last = self._thoughts.finish(alone=True)
        # White space behind a call is no text.
        return Said("" if last.calls else text, thought + last.text, [*calls, *last.calls])

    def _of_field(self, read: Said) -> tuple[str, str]:
        """Return the thought and the text in a field of thoughts: there is text behind a thought between tags alone."""
        if self._separated.opened is False:
            return read.reasoning, read.text
        return read.reasoning + read.text, ""

    def _counted(self, call: ToolCallDelta) -> ToolCallDelta:
        self._next = max(self._next, call.index + 1)
        return call

    def _single(self, calls: list[ToolCallDelta]) -> list[ToolCallDelta]:
        """Return the pieces of `calls` but those of one that calls others, which wait for their end."""
        left = []
        for call in calls if self._tools else ():
            if call.name and call.name not in self._tools and _SEVERAL.fullmatch(call.name):
                self._several[call.index] = []
            if (pieces := self._several.get(call.index)) is None:
                left.append(call)
            else:
                pieces.append(call)
        return left if self._tools else calls

    def _several_calls(self) -> list[ToolCallDelta]:
        made: list[ToolCallDelta] = []
        for index, pieces in self._several.items():
            said = plain_json("".join(piece.arguments for piece in pieces).encode() or b"{}")
            uses = said.get("tool_uses") if isinstance(said, dict) else None
            read = [
                WholeCall(
                    str(use.get("recipient_name")).removeprefix("functions."), arguments_text(use.get("parameters"))
                )
                for use in uses or ()
                if isinstance(use, dict)
            ]
            if not read or any(call.name not in self._tools for call in read):
                made += pieces
                continue
            self._next = max(self._next, *(position + 1 for position in self._several))
            for call in numbered(read, self._most):
                position = self._next if call.index else index
                made.append(msgspec.structs.replace(call, index=position))
                self._next = max(self._next, position + 1)
        return made


MOST_WAYS = 64


class InlineText:
    """Reads the texts of an answer to `request`. `is_open`: whether its thought is taken to be open; `is_guess`: by the
    model's name alone; `way`: what of the request decides that (`thinking_of`). Tags that the caller asked for are
    text."""

    def __init__(
        self, request: GenerationRequest, *, is_open: bool = False, is_guess: bool = False, way: int = 0
    ) -> None:
        self.way = way
        turns = [turn.text for turn in request.messages or () if turn.role not in ("assistant", "tool")]

        def is_callers(tag: str) -> bool:
            return any(tag in turn for turn in turns)

        tooling = request.tooling
        tools = {} if tooling is None else {tool.name: tool for _, tool in tooling.callable_tools}
        most = None if tooling is None or tooling.parallel else 1
        self._choices = {
            index: _Texts(tools, most, is_callers, is_open=is_open, is_guess=is_guess) for index in range(request.n)
        }

    def moved(self, deltas: list[Delta], *, whole: bool = False) -> list[Delta]:
        """Return `deltas` with what is in their texts; what may be half a tag waits. `whole`: nothing more comes."""
        passed: list[Delta] = []
        for delta in deltas:
            if (choice := self._choices.get(delta.index)) is not None and not delta.refusal:
                is_said = bool(delta.text or delta.reasoning or delta.tool_calls)
                if is_said:
                    choice.move(delta, whole=whole)
                if is_said and not (
                    delta.text or delta.reasoning or delta.tool_calls or delta.annotations or delta.opaque
                ):
                    continue
            passed.append(delta)
        return passed

    def rest(self, tally: Tally) -> list[Delta]:
        """Return what still waits, at the end of the answer."""
        ends = [(index, choice.rest(tally.reason(index))) for index, choice in self._choices.items()]
        return [
            Delta(index=index, text=said.text, reasoning=said.reasoning, tool_calls=said.calls)
            for index, said in ends
            if any(said)
        ]

    def opened(self, tally: Tally) -> bool | None:
        """Whether the thoughts of an answer that has ended were opened in the prompt; None where it does not show."""
        for index, texts in self._choices.items():
            choice = texts.answer
            if choice.opened is None and len(_CLOSING.split("".join(tally.texts.get(index, ())))) == 2:
                return True
            if choice.opened is not None:
                return choice.opened
        return None


class SeenThoughts:
    """Whether the answers of one server begin within a thought, by the way of thinking that was asked for."""

    def __init__(self) -> None:
        self._opened: dict[int, bool] = {}

    def reader(
        self, request: GenerationRequest, adapted: GenerationRequest, tally: Tally, *, usual: bool
    ) -> InlineText | None:
        """Return what reads the texts of the answer to `request`, sent as `adapted`; None where they are left alone:
        those that go on from the caller's own, are scored token by token, or go to a client of the same API. `usual`:
        whether answers are taken to begin within a thought before one has been seen."""
        turns = request.messages
        is_chat = turns is not None and all(turn.role != "assistant" for turn in turns[-1:])
        if not is_chat or request.is_in(tally.form) or tally.scored:
            return None
        way = thinking_of(adapted)
        is_guess = way not in self._opened
        return InlineText(adapted, is_open=self._opened.get(way, usual), is_guess=is_guess, way=way)

    def note(self, inline: InlineText, tally: Tally) -> None:
        """Note how an answer that has ended began."""
        opened = inline.opened(tally)
        if opened is not None and (inline.way in self._opened or len(self._opened) < MOST_WAYS):
            self._opened[inline.way] = opened
