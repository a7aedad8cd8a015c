"""What a server without a parser leaves in the text of an answer: thoughts between tags, gpt-oss's channels, and calls
as the model writes them. Each is moved to where a client looks for it.

Templates of some models open the thought in the prompt, so that the answer has its closing tag alone. A stream says so
too late: that a server does it is known from its name or its earlier answers (`opens_thoughts`).
"""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from inference_core.tokenization.tokenizer import possible_start
from tiers.harmony import MARKS, ChannelParser, Said
from tiers.message_content import Tool, ToolCallDelta, new_call_id
from tiers.remote.lenient_json import arguments_text, objects_in, plain_json
from tiers.remote.usage_counter import Tally
from tiers.tier import Delta, GenerationRequest
from tiers.tools.dialect import (
    HERMES,
    LISTED,
    LLAMA3,
    MISTRAL,
    PYTHON_CALLS,
    ArgumentMarks,
    NamedDialect,
)
from tiers.tools.probe_dialect import AnyDialect, parser_of

_THINK = "</think>"
_TAGS = {
    "<think>": _THINK,
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
    "<reasoning>": "</reasoning>",
    "<seed:think>": "</seed:think>",
    "<|START_THINKING|>": "<|END_THINKING|>",
    "<|channel>thought": "<channel|>",
    "<|begin_of_thought|>": "<|end_of_thought|>",
    "[THINK]": "[/THINK]",
    "◁think▷": "◁/think▷",
}
# With the closing ones: of servers that take away all but these.
_STARTS = _TAGS | dict.fromkeys(_TAGS.values(), "")
_CHANNELS = ("<|channel|>", "<|start|>")
# Not where it is spoken of.
_QUOTES = ("`", "'", '"')
_CLOSING = re.compile(rf"(?<![`'\"]){_THINK}(?![`'\"])")
_OPENS_THOUGHTS = re.compile(r"deepseek-?r1|\bqwq|thinking", re.IGNORECASE)


def opens_thoughts(model: str) -> bool:
    """Whether the template of this model is known to open the thought in the prompt."""
    return _OPENS_THOUGHTS.search(model) is not None


def thinking_of(request: GenerationRequest) -> int:
    """Return what of a request decides whether its template opens a thought, as a key."""
    own = [request.extra.get(name) for name in ("chat_template_kwargs", "thinking", "reasoning", "enable_thinking")]
    is_bound = request.response_format is not None or request.sampling.grammar is not None
    said = [request.reasoning_effort, request.reasoning_budget, request.template_variables, own, is_bound]
    return hash(repr(said))


def _marked(key: str, mid: str, close: str) -> ArgumentMarks:
    return ArgumentMarks(key, mid, close, mid, close, "\n", "raw")


# DeepSeek, Qwen3-Coder, GLM, MiniMax, Kimi, Gemma and later models of Mistral.
_DIALECTS: tuple[AnyDialect, ...] = (
    HERMES,
    NamedDialect(
        ("<｜DSML｜function_calls>\n", "\n</｜DSML｜function_calls>"), '<｜DSML｜invoke name="',
        "\n</｜DSML｜invoke>", "\n", '">\n', ArgumentMarks(
            '<｜DSML｜parameter name="', '" string="true">', "</｜DSML｜parameter>", '" string="false">',
            "</｜DSML｜parameter>", "\n", "raw",
        ),
    ),
    NamedDialect(
        ("", ""), "<tool_call>\n<function=", "\n</function>\n</tool_call>", "\n", ">\n",
        _marked("<parameter=", ">\n", "\n</parameter>"),
    ),
    NamedDialect(("", ""), "<function=", "\n</function>", "\n", ">\n", _marked("<parameter=", ">\n", "\n</parameter>")),
    NamedDialect(
        ("", ""), "<tool_call>", "\n</tool_call>", "\n", "\n",
        _marked("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>"),
    ),
    NamedDialect(
        ("<minimax:tool_call>\n", "\n</minimax:tool_call>"), '<invoke name="', "\n</invoke>", "\n", '">\n',
        _marked('<parameter name="', '">', "</parameter>"),
    ),
    NamedDialect(
        ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"), "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "",
        "<｜tool▁sep｜>",
    ),
    NamedDialect(
        ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"), "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        "\n```<｜tool▁call▁end｜>", "\n", "\n```json\n",
    ),
    NamedDialect(
        ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"), "<|tool_call_begin|>functions.",
        "<|tool_call_end|>", "", ":{index}<|tool_call_argument_begin|>",
    ),
    NamedDialect(
        ("", ""), "<|tool_call>call:", "}<tool_call|>", "", "{",
        ArgumentMarks("", ':<|"|>', '<|"|>', ":", "", ",", "raw"),
    ),
    NamedDialect(("", ""), "[TOOL_CALLS]", "", "", "[ARGS]"),
    NamedDialect(("", ""), "[TOOL_CALLS]", "", "", "[CALL_ID]{id}[ARGS]"),
    MISTRAL,
    LISTED,
    PYTHON_CALLS,
    LLAMA3,
)  # fmt: skip
_OPENERS = ("<tool_call>", "<function=", "<minimax:tool_call>", "<｜DSML｜function_calls>", "<｜tool▁calls▁begin｜>",
            "<|tool_calls_section_begin|>", "[TOOL_CALLS]", "<|tool_call|>", "<|tool_call>", "<|tool_call_start|>",
            "<|python_tag|>")  # fmt: skip
_OPENER = re.compile("|".join(map(re.escape, _OPENERS)))
# An answer that is a call in JSON, and what may become one.
_BARE_CALL = re.compile(r'(?:```(?:json)?\s*)?\[?\s*\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:')
# Short beginnings of these letters alone may become one.
_BARE_LETTERS = frozenset('`json[{ \n"type:function,am')
_LONGEST_BARE = 48
# A parser copies what follows a call.
_PIECE = 2048
# Tags in one piece: each copies what follows it.
_MOST_STEPS = 200


class _BareCall(NamedTuple):
    name: str
    text: str


def _bare_call(data: bytes) -> _BareCall:
    """Return the name and the arguments of a call in JSON."""
    said = plain_json(data)
    arguments = arguments_text(said.get("arguments", said.get("parameters")))
    return _BareCall(str(said.get("name")), arguments or "{}")


class _Choice:
    """The text of one choice. `opened`: whether its thought was opened in the prompt; None where it does not show.
    `is_open`: whether that is presumed; `is_guess`: by the model's name alone, so that what may be an answer waits."""

    opened: bool | None = None

    def __init__(
        self,
        tools: Mapping[str, Tool],
        most: int | None,
        is_callers: Callable[[str], bool],
        *,
        is_open: bool,
        is_guess: bool,
    ) -> None:
        self._tools, self._most, self._is_callers, self._is_open = tools, most, is_callers, is_open
        self._is_guess = is_guess
        self._place = "start"
        self._closing = self._held = ""
        self._is_behind = False
        # What is a thought only if its closing tag comes.
        self._presumed: list[str] | None = None
        self._channels: ChannelParser | None = None

    @property
    def is_over(self) -> bool:
        """Whether all that follows is plain text."""
        return self._place == "text" and not self._tools and not self._held

    def is_told(self, delta: Delta) -> None:
        """Note what the server has separated itself."""
        if delta.reasoning:
            self._is_open, self.opened = False, False
        if delta.tool_calls:
            self._tools = {}

    def push(self, text: str, *, whole: bool = False) -> Said:
        """Return what the next piece says; what may be half a tag waits. `whole`: nothing more comes."""
        text, self._held = self._held + text, ""
        thought, steps = "", 0
        while True:
            steps += 1
            if steps > _MOST_STEPS and self._place in ("start", "thought"):
                text = "".join((*(self._presumed or ()), text)) if self._is_guess else text
                self._place, self._presumed = "text", None
            match self._place:
                case "thought":
                    said, end, text = text.partition(self._closing)
                    if end and self._presumed is not None:
                        if (said or "".join(self._presumed[-1:])).endswith(_QUOTES):
                            self._presumed.append(said + end)
                            thought += "" if self._is_guess else said + end
                            continue
                        if "<think>" in (so_far := "".join((*self._presumed, said))):
                            # A thought that begins later was not open before.
                            self._place, self._presumed, self.opened = "text", None, False
                            text = so_far + end + text
                            continue
                    if end:
                        self._place, self._is_behind = "start", True
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
                case "calls":
                    self._held = text
                    return Said("", thought, [])
                case _:
                    return Said(self._before_calls(text, whole=whole), thought, [])

    def finish(self, reason: str | None = None) -> Said:
        """Return what still waits. `reason`: why the answer ended."""
        held, self._held = self._held, ""
        if self._place == "channels" and self._channels is not None:
            said, last = self._in_channels(held), self._channels.finish()
            return Said(said.text + last.text, said.reasoning + last.reasoning, said.calls + last.calls)
        if self._place == "calls":
            return self._calls_in(held)
        if self._place != "thought":
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
        if tag is not None and self._is_callers(tag):
            self._place = "text"
            return "", text
        if tag is not None:
            if closing := _STARTS[tag]:
                self._place, self._closing, self.opened = "thought", closing, False
            self._is_open, self._is_behind = False, True
            return "", start[len(tag) :].lstrip()
        if start.startswith(_CHANNELS):
            self._place, self._channels = "channels", ChannelParser(self._tools, self._most)
            return "", start
        if not whole and any(tag.startswith(start) for tag in (*_STARTS, *_CHANNELS)):
            return None
        if self._tools and _BARE_CALL.match(start):
            self._place = "calls"
        elif self._tools and not whole and len(start) < _LONGEST_BARE and _BARE_LETTERS.issuperset(start):
            return None
        elif self._is_open and not whole:
            self._place, self._closing, self._presumed = "thought", _THINK, []
            return "", start
        else:
            self._place = "text"
            if whole and "<think>" not in text and len(parts := _CLOSING.split(text)) == 2:
                self.opened = True
                return parts[0].strip(), parts[1].lstrip()
        return "", start if self._is_behind else text

    def _before_calls(self, text: str, *, whole: bool) -> str:
        """Return the text before anything that may be a call, which waits."""
        if not self._tools:
            return text
        found = _OPENER.search(text)
        if found is not None and self._is_callers(found[0]):
            self._tools = {}
            return text
        if found is not None:
            self._place, cut = "calls", found.start()
        else:
            cut = len(text) if whole or not ("<" in text or "[" in text) else possible_start(text, _OPENERS)
        if not whole or found is not None:
            # White space before a call is no text.
            cut = len(text[:cut].rstrip())
        self._held = text[cut:]
        return text[:cut]

    def _calls_in(self, text: str) -> Said:
        """Return the calls in a text that has an opener of some dialect, or is JSON; or the text itself."""
        if _BARE_CALL.match(text):
            objects, rest = objects_in(text.strip().removeprefix("```json").strip("`").encode())
            read = [] if rest else [one for one in map(_bare_call, objects) if one.name in self._tools]
            if read and len(read) == len(objects):
                calls = [
                    ToolCallDelta(index=index, id=new_call_id(), name=one.name, arguments=one.text)
                    for index, one in enumerate(read[: self._most])
                ]
                return Said("", "", calls)
            return Said(text, "", [])
        for dialect in _DIALECTS:
            parser = parser_of(dialect, self._tools, self._most)
            pieces = (text[at : at + _PIECE] for at in range(0, len(text), _PIECE))
            parts = (*map(parser.feed, pieces), parser.finish())
            if calls := [call for part in parts for call in part.calls]:
                left = "".join(part.text for part in parts).strip()
                return Said("" if left == "</tool_call>" else left, "", calls)
        return Said(text, "", [])

    def _in_channels(self, text: str) -> Said:
        assert self._channels is not None
        for token, mark in MARKS.items():
            text = text.replace(token, mark)
        return self._channels.feed(text)


MOST_WAYS = 64


class InlineText:
    """Reads the texts of an answer to `request`. `is_open`: whether its thought is taken to be open; `is_guess`: by the
    model's name alone; `way`: what of the request decides that (`thinking_of`). Tags that the caller asked for are
    text."""

    def __init__(
        self, request: GenerationRequest, *, is_open: bool = False, is_guess: bool = False, way: int = 0
    ) -> None:
        self.way = way
        turns = [turn.content for turn in request.messages or () if turn.role not in ("assistant", "tool")]

        def is_callers(tag: str) -> bool:
            return any(tag in turn for turn in turns)

        tooling = request.tooling
        tools = {} if tooling is None else {tool.name: tool for _, tool in tooling.callable_tools}
        most = None if tooling is None or tooling.parallel else 1
        self._choices = {
            index: _Choice(tools, most, is_callers, is_open=is_open, is_guess=is_guess) for index in range(request.n)
        }

    @property
    def is_over(self) -> bool:
        """Whether all that follows is plain text."""
        return all(choice.is_over for choice in self._choices.values())

    def moved(self, deltas: list[Delta], *, whole: bool = False) -> list[Delta]:
        """Return `deltas` with what is in their texts; what may be half a tag waits. `whole`: nothing more comes."""
        passed: list[Delta] = []
        for delta in deltas:
            if (choice := self._choices.get(delta.index)) is not None and not delta.refusal:
                choice.is_told(delta)
                if delta.text and not choice.is_over:
                    said = choice.push(delta.text, whole=whole)
                    delta.text, delta.reasoning = said.text, delta.reasoning + said.reasoning
                    delta.tool_calls = [*delta.tool_calls, *said.calls]
                    if not (delta.text or delta.reasoning or delta.tool_calls or delta.annotations or delta.native):
                        continue
            passed.append(delta)
        return passed

    def rest(self, tally: Tally) -> list[Delta]:
        """Return what still waits, at the end of the answer."""
        ends = [(index, choice.finish(tally.reason(index))) for index, choice in self._choices.items()]
        return [
            Delta(index=index, text=said.text, reasoning=said.reasoning, tool_calls=said.calls)
            for index, said in ends
            if any(said)
        ]

    def opened(self, tally: Tally) -> bool | None:
        """Whether the thoughts of an answer that has ended were opened in the prompt; None where it does not show."""
        for index, choice in self._choices.items():
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
        is_same = request.native is not None and request.native.form == tally.form
        if not is_chat or is_same or tally.scored:
            return None
        way = thinking_of(adapted)
        is_guess = way not in self._opened
        return InlineText(adapted, is_open=self._opened.get(way, usual), is_guess=is_guess, way=way)

    def note(self, inline: InlineText, tally: Tally) -> None:
        """Note how an answer that has ended began."""
        opened = inline.opened(tally)
        if opened is not None and (inline.way in self._opened or len(self._opened) < MOST_WAYS):
            self._opened[inline.way] = opened
