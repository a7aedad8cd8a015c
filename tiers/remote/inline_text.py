"""What a server without a parser leaves in the text of an answer: thoughts between tags, gpt-oss's channels, and calls
as the model writes them. Each is moved to where a client looks for it.

Templates of some models open the thought in the prompt, so that the answer has its closing tag alone. A stream says so
too late: that a server does it is known from its name or its earlier answers (`opens_thoughts`).
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

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
    Dialect,
    NamedDialect,
)
from tiers.tools.probe_dialect import AnyDialect, parser_of

_THINK = "</think>"
_TAGS = {
    "<think>": _THINK,
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
    "<thoughts>": "</thoughts>",
    "<reasoning>": "</reasoning>",
    "<seed:think>": "</seed:think>",
    "<mm:think>": "</mm:think>",
    "<think:opensource>": "</think:opensource>",
    "<longcat_think>": "</longcat_think>",
    "<|think_start|>": "<|think_end|>",
    "<|inner_prefix|>": "<|inner_suffix|>",
    "<|START_THINKING|>": "<|END_THINKING|>",
    "<|channel>thought": "<channel|>",
    "<|begin_of_thought|>": "<|end_of_thought|>",
    "[THINK]": "[/THINK]",
    "◁think▷": "◁/think▷",
}
# Around an answer: the first two behind a thought alone, where none asked for them.
_WRAPPERS = {
    "<answer>": "</answer>",
    "<response>": "</response>",
    "<|START_RESPONSE|>": "<|END_RESPONSE|>",
    "<|START_TEXT|>": "<|END_TEXT|>",
    "<|begin_of_box|>": "<|end_of_box|>",
}
# With the closing ones: of servers that take away all but these.
_STARTS = _TAGS | dict.fromkeys(_TAGS.values(), "")
_CHANNELS = ("<|channel|>", "<|start|>")
# Not where it is spoken of.
_QUOTES = ("`", "'", '"')
_QUOTED = re.compile(r"[\s(\[{:,=][`'\"]")
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


def _invoked(section: str) -> NamedDialect:
    """Calls as Anthropic's API once had them, between the tags of `section`."""
    around = (f"<{section}>\n", f"\n</{section}>") if section else ("", "")
    return NamedDialect(
        around, '<invoke name="', "\n</invoke>", "\n", '">\n', _marked('<parameter name="', '">', "</parameter>")
    )


def _assigned(opener: str, closer: str) -> NamedDialect:
    """Calls whose names and keys stand behind `=`, between marks of a model's own."""
    after = f"\n</function>{closer}"
    return NamedDialect(
        ("", ""), f"{opener}<function=", after, "\n", ">\n", _marked("<parameter=", ">\n", "\n</parameter>")
    )


def _pythonic(opening: str, closing: str, separator: str = ", ") -> NamedDialect:
    """Calls as Python writes them, between other marks."""
    return msgspec.structs.replace(PYTHON_CALLS, section=(opening, closing), separator=separator)


_ACTION = "<|START_ACTION|>"
# Around one object, or a list of them: Qwen2.5-Coder, Hunyuan, Jamba and the first MiniMax, Nemotron, Phi-4-mini,
# LongCat, Granite 20B, xLAM, InternLM.
_AROUND_JSON = {
    "<tools>": "</tools>",
    "<tool_calls>": "</tool_calls>",
    "<TOOLCALL>": "</TOOLCALL>",
    "functools[": "]",
    "<longcat_tool_call>": "</longcat_tool_call>",
    "<function_call>": "</function_call>",
    "<function_calls>": "</function_calls>",
    "<|action_start|><|plugin|>": "<|action_end|>",
}
# Llama 4: no mark at all, so that it must be all of the answer.
_BARE_PYTHON = _pythonic("[", "]")
# Gemma 3, likewise.
_TOOL_CODE = "```tool_code"
_DSML = '<｜DSML｜invoke name="'
_DSML_VALUES = ArgumentMarks(
    '<｜DSML｜parameter name="', '" string="true">', "</｜DSML｜parameter>", '" string="false">',
    "</｜DSML｜parameter>", "\n", "raw",
)  # fmt: skip
# DeepSeek, Qwen3-Coder, GLM, MiniMax, Kimi, Gemma and later models of Mistral; Seed, Step, MiniCPM, OLMo, Command.
_DIALECTS: tuple[AnyDialect, ...] = (
    HERMES,
    *(
        NamedDialect(
            (f"<｜DSML｜{name}>\n", f"\n</｜DSML｜{name}>"), _DSML, "\n</｜DSML｜invoke>", "\n", '">\n', _DSML_VALUES
        )
        for name in ("function_calls", "tool_calls")
    ),
    _assigned("<tool_call>\n", "\n</tool_call>"),
    _assigned("<seed:tool_call>\n", "\n</seed:tool_call>"),
    _assigned("", ""),
    NamedDialect(("", ""), "<function=", "</function>", "\n", ">"),
    NamedDialect(
        ("", ""), '<function name="', "\n</function>", "\n", '">\n', _marked('<param name="', '">', "</param>")
    ),
    NamedDialect(
        ("", ""), "<tool_call>", "\n</tool_call>", "\n", "\n",
        _marked("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>"),
    ),
    NamedDialect(
        ("<tool_calls>\n", "\n</tool_calls>"), "<tool_call>", "\n```\n</tool_call>", "\n", "\n```json\n"
    ),
    *map(_invoked, ("minimax:tool_call", "function_calls", "tool_calls", "")),
    NamedDialect(
        ("<｜tool_calls_begin｜>\n", "\n<｜tool_calls_end｜>"),
        '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="', "\n</steptml:invoke>\n<｜tool_call_end｜>",
        "\n", '">\n', _marked('<steptml:parameter name="', '">', "</steptml:parameter>"),
    ),
    NamedDialect(
        ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"), "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "",
        "<｜tool▁sep｜>",
    ),
    NamedDialect(
        ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"), "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        "\n```<｜tool▁call▁end｜>", "\n", "\n```json\n",
    ),
    *(
        NamedDialect(
            section, f"<|tool_call_begin|>{names}", "<|tool_call_end|>", "", ":{index}<|tool_call_argument_begin|>"
        )
        for section in (("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"), ("", ""))
        for names in ("functions.", "")
    ),
    NamedDialect(
        ("", ""), "<|tool_call>call:", "}<tool_call|>", "", "{",
        ArgumentMarks("", ':<|"|>', '<|"|>', ":", "", ",", "raw"),
    ),
    NamedDialect(("", ""), "[TOOL_CALLS]", "", "", "[ARGS]"),
    NamedDialect(("", ""), "[TOOL_CALLS]", "", "", "[CALL_ID]{id}[ARGS]"),
    MISTRAL,
    LISTED,
    *(Dialect("json", opener, closer, "\n", True, False, "", "arguments") for opener, closer in _AROUND_JSON.items()),
    Dialect("action", f"{_ACTION}[", "]<|END_ACTION|>", ",", False, False, "", "parameters", "tool_name"),
    PYTHON_CALLS,
    _pythonic("<function_calls>\n", "\n</function_calls>", "\n"),
    _pythonic("<|python_start|>[", "]<|python_end|>"),
    _pythonic(f"{_TOOL_CODE}\n", "\n```", "\n"),
    LLAMA3,
    _BARE_PYTHON,
)  # fmt: skip
_OPENERS = (
    "<tool_call>", "<function=", '<function name="', '<invoke name="', "<minimax:tool_call>", "<seed:tool_call>",
    "<function_calls>", "<｜DSML｜function_calls>", "<｜DSML｜tool_calls>", "<｜tool▁calls▁begin｜>",
    "<｜tool_calls_begin｜>", "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "[TOOL_CALLS]", "<|tool_call|>",
    "<|tool_call>", "<|tool_call_start|>", "<|python_tag|>", "<|python_start|>", _ACTION, *_AROUND_JSON,
)  # fmt: skip
_FENCE = "```"
_OPENER = re.compile("|".join((*map(re.escape, _OPENERS), rf"(?<=\s){_FENCE}")))
# What is left of a model's template at the end of an answer.
_ENDS = ("<|im_end|>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|eot|>", "<|end|>", "</s>",
         "<|return|>", "<end_of_turn>", "<turn|>", "<eos>", "<|eos|>", "<｜end▁of▁sentence｜>", "<|END_OF_TURN_TOKEN|>",
         "<|END_RESPONSE|>", "<|END_TEXT|>", "<|user|>", "<|observation|>", "</longcat_s>")  # fmt: skip
# GLM's, around what it means as the result.
_BOX = re.compile(r"(?<![`'\"])<\|(?:begin|end)_of_box\|>")
_BOXES = ("<|begin_of_box|>", "<|end_of_box|>")
_CLOSINGS = ("</answer>", "</response>", _THINK)
_END = re.compile("|".join(map(re.escape, (*_ENDS, *_CLOSINGS))))
_ENDING = re.compile(rf"(?:(?:{_END.pattern})\s*)+\Z")
_WORDS = (*_OPENERS, _FENCE, *_ENDS, *_CLOSINGS, *_BOXES)
_CUT = frozenset(word[:size] for word in _WORDS for size in range(1, len(word)))
_FIRST = frozenset(word[0] for word in _WORDS)
_LONGEST_CUT = max(map(len, _CUT))
# White space that waits for a call, or tokens for the end.
_MOST_WAITING = 256
# An answer that is a call in JSON, and what may become one.
_BARE_CALL = re.compile(r'(?:```(?:json)?\s*)?\[?\s*\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:|' + _TOOL_CODE)
# Short beginnings of these letters alone may become one.
_BARE_LETTERS = frozenset('`json[{ \n"type:function,aml_d')
_LONGEST_BARE = 48
# A parser copies what follows a call.
_PIECE = 2048
# Tags in one piece: each copies what follows it.
_MOST_STEPS = 200
# What some models call to call others.
_SEVERAL = re.compile(r"(?:multi_tool_use[._])?parallel(?::\d+)?|multi_tool_use")


class _BareCall(NamedTuple):
    name: str
    text: str


def _bare_call(data: bytes) -> _BareCall:
    """Return the name and the arguments of a call in JSON."""
    said = plain_json(data)
    arguments = arguments_text(said.get("arguments", said.get("parameters")))
    return _BareCall(str(said.get("name")), arguments or "{}")


def _numbered(calls: Iterable[_BareCall], most: int | None) -> list[ToolCallDelta]:
    return [
        ToolCallDelta(index=index, id=new_call_id(), name=one.name, arguments=one.text)
        for index, one in enumerate([*calls][:most])
    ]


class _Written:
    """A text that may have calls in it: from the first mark of one on, it waits for its end. What a block of code or a
    quotation has is spoken of. Tokens that ended the answer are none of its text."""

    def __init__(self, tools: Mapping[str, Tool], most: int | None, is_callers: Callable[[str], bool]) -> None:
        self.tools = tools
        # The mark of a wrapping whose opening one was taken away.
        self.closing = ""
        self._most, self.is_callers = most, is_callers
        # What has been passed ends so.
        self._before = "\n\n"
        self._held = ""
        self._waiting: list[str] = []
        self._is_bare = self._is_fenced = self._has_struck = False

    def push(self, text: str) -> str:
        """Return the text before anything that may be a call or the end, which waits."""
        if self._waiting:
            self._waiting.append(text)
            return ""
        seen = self._before + self._held + text
        begin = 2
        for found in _OPENER.finditer(seen, 2) if self.tools else ():
            begin = found.end()
            if found[0] == _FENCE:
                self._is_fenced = not self._is_fenced
            elif self._is_fenced or _QUOTED.search(seen, found.start() - 2, found.start()):
                continue
            elif self.is_callers(found[0]):
                self.tools = {}
                break
            else:
                cut = max(2, len(seen[: found.start()].rstrip()))
                self._waiting.append(seen[cut:])
                return self._pass_on(seen[2:cut], "")
        if not self.tools and "<" not in seen:
            return self._pass_on(seen[2:], "")
        last = range(max(begin, len(seen) - _LONGEST_CUT), len(seen))
        cut = next((place for place in last if seen[place] in _FIRST and seen[place:] in _CUT), len(seen))
        if (ending := _ENDING.search(seen, max(begin, len(seen) - _MOST_WAITING), cut)) is not None:
            cut = ending.start()
        if self.tools:
            # White space before a call is no text.
            cut = max(2, len(seen[:cut].rstrip()), cut - _MOST_WAITING)
        return self._pass_on(seen[2:cut], seen[cut:])

    def is_plain(self, text: str) -> bool:
        """Whether the next piece is nothing but text; then it has been passed."""
        if self.tools or self._held or self._waiting or "<" in text:
            return False
        self._before = (self._before + text)[-2:]
        return True

    def channels(self) -> ChannelParser:
        """Return what reads the same calls in gpt-oss's channels."""
        return ChannelParser(self.tools, self._most)

    def bare(self, start: str, *, whole: bool) -> bool | None:
        """Whether an answer that begins so may be nothing but calls; None if it is too early to say."""
        if not self.tools:
            return False
        if start[:1] == "[":
            rest = start[1:].lstrip()
            if any(rest.startswith(f"{name}(") for name in self.tools):
                return True
            if not whole and any(f"{name}(".startswith(rest) for name in self.tools):
                return None
        if _BARE_CALL.match(start):
            return True
        is_short = not whole and len(start) < _LONGEST_BARE and _BARE_LETTERS.issuperset(start)
        return None if is_short else False

    def wait(self, text: str) -> None:
        """Let an answer wait that may be nothing but calls."""
        self._waiting, self._is_bare = [text], True

    def release(self) -> str:
        """Return all that waits, as it is."""
        text, self._held, self._waiting = "".join((self._held, *self._waiting)), "", []
        return text

    def finish(self, *, alone: bool = False) -> Said:
        """Return what still waits. `alone`: calls with anything around them are text."""
        is_written, alone = bool(self._waiting), alone or self._is_bare
        held = self.release()
        text = self._without_end(held)
        said = self._calls_in(text) if is_written and self.tools else Said(text, "", [])
        return Said(held, "", []) if alone and said.text.strip() and is_written else said

    def _pass_on(self, text: str, held: str) -> str:
        self._held = held
        seen = self._before + text
        self._has_struck, self._before = self._has_struck or "<s>" in seen, seen[-2:]
        return _BOX.sub("", seen)[2:] if "_of_box|>" in text and not self.is_callers(_BOXES[0]) else text

    def _without_end(self, text: str) -> str:
        """Return the last of an answer without the tokens that ended it."""
        ending, cut = _ENDING.search(text, max(0, len(text) - _MOST_WAITING)), len(text)
        for found in reversed([] if ending is None else [*_END.finditer(text, ending.start())]):
            end = found[0]
            is_others = end in _CLOSINGS and end != self.closing
            if is_others or (end == "</s>" and (self._has_struck or "<s>" in text)) or self.is_callers(end):
                break
            cut = found.start()
        # Behind a blank, it is a word of the sentence; alone, it is all of the answer.
        is_word = (self._before + text[:cut])[-1] in (" ", *_QUOTES) or (self._before == "\n\n" and not cut)
        return text if cut == len(text) or (is_word and not self.closing) else text[:cut].rstrip()

    def _calls_in(self, text: str) -> Said:
        """Return the calls in a text that has an opener of some dialect, or is JSON; or the text itself."""
        if _BARE_CALL.match(text) and not text.startswith(_TOOL_CODE):
            objects, rest = objects_in(text.strip().removeprefix("```json").strip("`").encode())
            read = [] if rest else [one for one in map(_bare_call, objects) if one.name in self.tools]
            return (
                Said("", "", _numbered(read, self._most)) if read and len(read) == len(objects) else Said(text, "", [])
            )
        for dialect in _DIALECTS:
            opener = dialect.anchor if isinstance(dialect, NamedDialect) else dialect.opener.strip().removesuffix("[")
            if opener.split("\n")[0] not in text or (dialect is _BARE_PYTHON and not self._is_bare):
                continue
            parser = parser_of(dialect, self.tools, self._most)
            pieces = (text[at : at + _PIECE] for at in range(0, len(text), _PIECE))
            parts = (*map(parser.feed, pieces), parser.finish())
            calls = [call for part in parts for call in part.calls]
            # One that is cut off is no call.
            if calls and (calls[-1].arguments or "}").rstrip().endswith("}"):
                left = "".join(part.text for part in parts).strip()
                return Said("" if left in _LEFT else left, "", calls)
        return Said(text, "", [])


# What a model writes around its calls once too often.
_LEFT = ("</tool_call>", "</function_calls>", "</tool_calls>", "</seed:tool_call>")


class _Choice:
    """The text of one choice. `opened`: whether its thought was opened in the prompt; None where it does not show.
    `is_open`: whether that is presumed; `is_guess`: by the model's name alone, so that what may be an answer waits."""

    opened: bool | None = None

    def __init__(self, written: _Written, *, is_open: bool, is_guess: bool) -> None:
        self._written = written
        self._is_open = is_open
        self._is_guess = is_guess
        self._place = "start"
        self._closing = self._held = ""
        self._is_behind = self._is_fresh = self._has_thought = False
        # What is a thought only if its closing tag comes.
        self._presumed: list[str] | None = None
        self._channels: ChannelParser | None = None

    def is_plain(self, text: str) -> bool:
        """Whether the next piece is nothing but text, as nearly every one is."""
        return self._place == "text" and self._written.is_plain(text)

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
            if steps > _MOST_STEPS and self._place in ("start", "thought"):
                text = "".join((*(self._presumed or ()), text)) if self._is_guess else text
                self._place, self._presumed = "text", None
            match self._place:
                case "thought":
                    text = text.lstrip() if self._is_fresh else text
                    said, end, text = text.partition(self._closing)
                    self._is_fresh = self._is_fresh and not said
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
                case _:
                    return Said(self._written.push(text), thought, [])

    def finish(self, reason: str | None = None) -> Said:
        """Return what still waits. `reason`: why the answer ended."""
        held, self._held = self._held, ""
        if self._place == "channels" and self._channels is not None:
            said, last = self._in_channels(held), self._channels.finish()
            return Said(said.text + last.text, said.reasoning + last.reasoning, said.calls + last.calls)
        if self._place == "text":
            return self._written.finish()
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
        if tag is not None and self._written.is_callers(tag):
            self._place = "text"
            return "", text
        if tag is not None:
            if closing := _STARTS[tag]:
                self._place, self._closing, self.opened, self._is_fresh = "thought", closing, False, True
            self._is_open, self._is_behind = False, True
            return "", start[len(tag) :].lstrip()
        if start.startswith(_CHANNELS):
            self._place, self._channels = "channels", self._written.channels()
            return "", start
        wrapper = next((tag for tag in _WRAPPERS if start.startswith(tag)), None)
        is_behind = self._is_behind or self._has_thought
        if wrapper is not None and (is_behind or "|" in wrapper) and not self._written.is_callers(wrapper):
            self._written.closing, self._is_behind = _WRAPPERS[wrapper], True
            return "", start[len(wrapper) :]
        is_short = len(text) < _MOST_WAITING and not whole
        if is_short and any(tag.startswith(start) for tag in (*_STARTS, *_CHANNELS, *_WRAPPERS)):
            return None
        bare = self._written.bare(start, whole=not is_short)
        if bare:
            self._place = "text"
            self._written.wait(start)
            return "", ""
        if bare is None:
            return None
        if self._is_open and not whole:
            self._place, self._closing, self._presumed = "thought", _THINK, []
            return "", start
        else:
            self._place = "text"
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
        self.answer = _Choice(_Written(tools, most, is_callers), is_open=is_open, is_guess=is_guess)
        self._thoughts = _Written(tools, most, is_callers)
        separated = _Written({}, None, is_callers)
        separated.closing = _THINK
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
            said = plain_json("".join(one.arguments for one in pieces).encode() or b"{}")
            uses = said.get("tool_uses") if isinstance(said, dict) else None
            read = [
                _BareCall(
                    str(one.get("recipient_name")).removeprefix("functions."), arguments_text(one.get("parameters"))
                )
                for one in uses or ()
                if isinstance(one, dict)
            ]
            if not read or any(one.name not in self._tools for one in read):
                made += pieces
                continue
            self._next = max(self._next, *(place + 1 for place in self._several))
            for call in _numbered(read, self._most):
                place = self._next if call.index else index
                made.append(msgspec.structs.replace(call, index=place))
                self._next = max(self._next, place + 1)
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
        turns = [turn.content for turn in request.messages or () if turn.role not in ("assistant", "tool")]

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
                    delta.text or delta.reasoning or delta.tool_calls or delta.annotations or delta.native
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
