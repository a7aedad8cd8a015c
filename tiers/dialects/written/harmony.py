"""OpenAI's harmony format: how a model that answers in its channels is prompted, bound and read.

A message is `<|start|>ROLE to=RECIPIENT<|channel|>CHANNEL <|constrain|>TYPE<|message|>BODY` and an end; the recipient
may also stand behind the channel. The prompt ends with `<|start|>assistant`, so an answer begins behind that. Thoughts,
calls of tools and the answer are parsed by channel as they stream. A grammar binds answers and calls, thoughts before
them being free; a stop string in what a model thinks, or passes to a function, does not end the answer.
"""

import json
import re
from collections.abc import AsyncGenerator, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal, NamedTuple

import msgspec

from inference_core.protocol import Grammar
from inference_core.tokenization.tokenizer import StopStrings, Tokenizer
from tiers.conversation import Tool, ToolCallDelta, Tooling, Turn, new_call_id
from tiers.dialects.written.call_grammar import json_rule
from tiers.dialects.written.tool_calling import ToolCalling
from tiers.errors import TierRequestError
from tiers.tier import Delta, GenerationRequest, ModelRequest, TextLogprob

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

State = Literal["opening", "header", "between", "body"]
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
        self._state: State = "opening"
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
        return self._state == "body" and self._route == "text"

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
        if self._state == "body":
            self._say(text)
            return
        self._header[self._section] += text
        if self._state == "opening":
            begun = self._header[START]
            if len(begun) > _LONGEST_OPENING or not _BEFORE_CHANNEL.fullmatch(begun):
                self._begin_body("text")
                self._say(begun)

    def _take_mark(self, mark: str) -> None:
        if mark in (MESSAGE, CONSTRAIN) and self._state == "body":
            return  # there it means nothing
        if mark == MESSAGE:
            self._begin_body(self._routed())
        elif mark in (CHANNEL, CONSTRAIN) and self._state != "body":
            self._state, self._section = "header", mark
            self._header.setdefault(mark, "")
        else:
            self._end_message()
            self._header, self._section = {START: ""}, START
            self._state = "header" if mark in (START, CHANNEL) else "between"
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
        match = _RECIPIENT.search(self._header.get(CHANNEL, "")) or _RECIPIENT.search(self._header[START])
        return None if match is None else match[1].removeprefix(_FUNCTIONS)

    def _begin_body(self, route: Route) -> None:
        self._state, self._route, self._is_empty = "body", route, True
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
        if self._state != "body":
            self._begin_unmarked_body()
        if self._state != "body":
            return
        if self._route == "call" and self._is_empty:
            self._say("{}")
        if self._route in self._separator and not self._is_empty:
            self._separator[self._route] = "\n\n"

    def _begin_unmarked_body(self) -> None:
        """Say what stands where a body should, in a message that ends without a mark before its body."""
        if self._state == "header":
            # Behind the channel's name; a role alone, or a call without arguments, is nothing.
            route = self._routed()
            body = _RECIPIENT.sub("", self._header.get(CHANNEL, "")).strip().partition(" ")[2].strip()
            if route == "call":
                return
        else:
            route, body = "text", self._header[START]
            if self._state == "between" and body.strip() == "assistant":
                return
        if body:
            self._begin_body(route)
            self._say(body)


_MARKS = frozenset(MARKS.values())
_LONGEST_HEADER = 1024


class AnswerStops(StopStrings):
    """`StopStrings` that count only in text for the caller: in messages of any channel but `analysis` that have no
    recipient, and in an answer without a header."""

    _counts = True
    _header: str | None = ""  # of the message that begins; None in a body. The first one may be missing.

    def passes(self, text: str) -> bool:
        return self._header is None and super().passes(text) and _MARKS.isdisjoint(text)

    def push(self, text: str) -> tuple[str, str | None]:
        self.skip(text)
        return super().push(text) if self._counts else (self.flush() + text, None)

    def skip(self, text: str) -> None:
        if self._header is None and _MARKS.isdisjoint(text):
            return
        for character in text:
            header = self._header
            if character == CHANNEL or (character == CONSTRAIN and header is not None):
                self._header, self._counts = f"{header or ''} ", False
            elif character == MESSAGE and header is not None:
                self._header, self._counts = None, "analysis" not in header.split() and "to=" not in header
            elif character in _MARKS and character not in (MESSAGE, CONSTRAIN):
                self._header, self._counts = "", False
            elif header is not None and len(header) < _LONGEST_HEADER:
                self._header = header + character


_TEXT = "TEXT: /(.|\\n)*/"
_ANY_OBJECT: dict[str, Any] = {"type": "object"}


def harmony_grammar(
    tooling: Tooling | None, controls: Mapping[str, int], answer: Grammar | None, *, thinks: bool
) -> Grammar | None:
    """Return the grammar of the whole answer; None if it is free. `answer`: the grammar of what is in the channel
    `final`; `thinks`: whether thoughts may come before it.

    Raises `TierRequestError` for a grammar that cannot stand in a channel.
    """
    tools = [] if tooling is None else tooling.callable_tools
    forced = tooling is not None and tooling.is_forced and bool(tools)
    if thinks and not forced and answer is None and not any(tool.strict for _, tool in tools):
        return None
    tokens = {name: f"<[{controls[text]}]>" for name, text in _TOKENS.items()}
    rules, schemas = [], []
    for number, (index, tool) in enumerate(tools):
        binding = forced or tool.strict
        rules += _call_rules(number, tool, tool.schema if binding else _ANY_OBJECT, tokens)
        if binding:
            schemas.append((f"tools[{index}].function.parameters", json.dumps(tool.schema)))
    kinds = ["call"] * bool(tools) + ["final"] * (not forced)
    lines = [f"start: {'thought*' if thinks else ''} ({' | '.join(kinds)})"]
    if thinks:
        # What is said before a call, too, where text is free.
        channel = '("analysis" | "commentary")' if tools and answer is None and not forced else '"analysis"'
        head = f"{tokens['channel']} {channel} {tokens['message']}"
        lines.append(f'thought: {head} TEXT {tokens["end"]} {tokens["start"]} "assistant"')
    if tools:
        lines.append(f"call: {' | '.join(f'call_{number}' for number in range(len(tools)))}")
    if not forced:
        kind = "" if answer is None or answer.kind in ("regex", "choice") else f'(" " {tokens["constrain"]} "json")?'
        lines.append(f'final: {tokens["channel"]} "final" {kind} {tokens["message"]} answer')
        lines.append(_answer_rule(answer))
        if answer is not None and answer.kind == "json_schema":
            schemas.append((answer.param, answer.text))
    param = answer.param if answer is not None and not tools else "tools" if tools else "messages"
    return Grammar(kind="lark", text="\n".join([*lines, *rules, _TEXT]), param=param, schemas=tuple(schemas))


_TOKENS = {name: f"<|{name}|>" for name in ("start", "end", "message", "channel", "constrain")}


def _call_rules(number: int, tool: Tool, schema: dict[str, Any], tokens: Mapping[str, str]) -> list[str]:
    """A call's header has its recipient in the channel or behind the role: the model was trained on both."""
    recipient = json.dumps(f" to=functions.{tool.name}")
    kind = f'(" " {tokens["constrain"]}? "json")?'
    in_channel = f'{tokens["channel"]} "commentary" {recipient}'
    behind_role = f'{recipient} {tokens["channel"]} "commentary"'
    return [
        f"call_{number}: ({in_channel} | {behind_role}) {kind} {tokens['message']} args_{number}",
        f"args_{number}: {json_rule(schema)}",
    ]


def _answer_rule(answer: Grammar | None) -> str:
    """The rules of `answer`."""
    if answer is None:
        return "answer: TEXT"
    if answer.kind == "json_object":
        return f"answer: {json_rule(_ANY_OBJECT)}"
    if answer.kind == "regex":
        return f"answer: ANSWER\nANSWER: /(?:{_delimited(answer.text)})/"
    if answer.kind == "lark":
        raise TierRequestError(
            f"{answer.param}: this model answers in channels, where a grammar of one's own cannot stand; use a JSON "
            "schema, a regular expression or a choice",
            answer.param,
        )
    try:
        parsed = json.loads(answer.text)
    except (ValueError, RecursionError) as error:
        raise TierRequestError(f"{answer.param} is no JSON: {error}", answer.param) from error
    if answer.kind == "choice":
        if not isinstance(parsed, list) or not parsed or not all(isinstance(text, str) and text for text in parsed):
            raise TierRequestError(f"{answer.param} must be a list of texts, none of them empty", answer.param)
        return f"answer: ANSWER\nANSWER: {' | '.join(json.dumps(text, ensure_ascii=False) for text in parsed)}"
    return f"answer: {json_rule(parsed if isinstance(parsed, dict) else {})}"


def _delimited(regex: str) -> str:
    """A regular expression that may stand between slashes, on one line."""
    escaped = re.sub(r"\\.|/", lambda match: "\\/" if match[0] == "/" else match[0], regex, flags=re.DOTALL)
    return escaped.replace("\n", "\\n")


# They end an answer even if the model's files do not say so.
_ENDS = ("<|return|>", "<|call|>")


def speaks_harmony(tokenizer: Tokenizer) -> bool:
    """Whether the vocabulary has harmony's control tokens and the chat template writes them."""
    template = tokenizer.chat_template
    return template is not None and "<|channel|>" in template.source and MARKS.keys() <= tokenizer.control_tokens.keys()


class HarmonyFormat(ToolCalling):
    """Thoughts become reasoning, calls tool calls, and the rest text; raw prompts are continued as they are."""

    thinks = True
    stop_kind = AnswerStops

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        controls = tokenizer.control_tokens
        self._marks = {controls[text]: mark for text, mark in MARKS.items()}
        self._ends = tuple(controls[text] for text in _ENDS)

    def turns(self, messages: Sequence[Turn], tooling: Tooling | None) -> tuple[list[dict[str, Any]], Any]:
        turns, tools = super().turns(_one_call_each(messages), tooling)
        return [_harmony_turn(turn) for turn in turns], tools

    def prepared(self, request: GenerationRequest) -> GenerationRequest:
        """See `ToolCalling.prepared`. Without effort for thoughts, or without a budget, there are none."""
        if not self.reads(request):
            return request
        sampling = request.sampling
        # What must go on for long follows no grammar, and so may think.
        endless = sampling.ignore_eos or sampling.min_tokens > 0
        thinks = endless or (request.reasoning_effort != "none" and request.reasoning_budget != 0)
        grammar = harmony_grammar(request.tooling, self._controls, sampling.grammar, thinks=thinks)
        ends = () if sampling.ignore_eos else self._ends
        stops = tuple(dict.fromkeys((*sampling.stop_token_ids, *ends)))
        return msgspec.structs.replace(
            request, sampling=msgspec.structs.replace(sampling, grammar=grammar, stop_token_ids=stops)
        )

    def visible_controls(self, request: ModelRequest) -> Mapping[int, str]:
        """See `ToolCalling.visible_controls`: as marks that no text can have."""
        return self._marks if self.reads(request) else {}

    def reads(self, request: ModelRequest) -> bool:
        """See `ToolCalling.reads`: every chat."""
        return request.messages is not None

    async def read(
        self, request: GenerationRequest, deltas: AsyncGenerator[Delta, None]
    ) -> AsyncGenerator[Delta, None]:
        """See `ToolCalling.read`; tokens that are neither text nor a call's are counted as reasoning."""
        tooling = request.tooling
        names = set() if tooling is None else {tool.name for _, tool in tooling.callable_tools}
        most = None if tooling is None or tooling.parallel else 1
        choices = [_Choice(ChannelParser(names, most)) for _ in range(request.n)]
        async with aclosing(deltas):
            async for delta in deltas:
                if delta.end is not None:
                    unseen = min(sum(choice.unseen for choice in choices), delta.end.usage.completion_tokens)
                    usage = msgspec.structs.replace(delta.end.usage, reasoning_tokens=unseen)
                    delta.end = msgspec.structs.replace(delta.end, usage=usage)
                    yield delta
                    continue
                for read in choices[delta.index].read(delta):
                    yield read


class _Choice:
    """The deltas of one choice; `unseen`: its tokens so far that are neither text nor a call's."""

    def __init__(self, parser: ChannelParser) -> None:
        self.unseen = 0
        self._parser = parser
        self._position = 0

    def read(self, delta: Delta) -> Iterator[Delta]:
        """Yield what `delta` says."""
        if delta.finish_reason is not None:
            yield from _told(Delta(index=delta.index), self._parser.finish())
            if self._parser.count and delta.finish_reason == "stop":
                delta.finish_reason = "tool_calls"
            yield delta
            return
        said, logprobs = self._parsed(delta)
        if not said.text and not said.calls and not logprobs:
            self.unseen += len(delta.token_ids)
            delta.token_ids = []
        delta.text, delta.logprobs = "", logprobs or None
        yield from _told(delta, said)

    def _parsed(self, delta: Delta) -> tuple[Said, list[TextLogprob]]:
        """What the text says, and the log-probabilities of the tokens that are part of the answer."""
        if not delta.logprobs:
            self._position += len(delta.text)
            return self._parser.feed(delta.text), []
        parts: list[Said] = []
        kept: list[TextLogprob] = []
        begin, end = self._position, self._position + len(delta.text)
        starts = [min(max(token.start or 0, begin), end) for token in delta.logprobs]
        for token, first, last in zip(delta.logprobs, [begin, *starts[1:]], [*starts[1:], end], strict=True):
            said = self._parser.feed(delta.text[first - begin : last - begin])
            parts.append(said)
            if said.text or (first == last and self._parser.is_answering):
                kept.append(token)
        self._position = end
        calls = [call for part in parts for call in part.calls]
        return Said("".join(p.text for p in parts), "".join(p.reasoning for p in parts), calls), kept


def _told(delta: Delta, said: Said) -> Iterator[Delta]:
    """`delta` with what is said; thoughts come in one of their own."""
    if said.reasoning:
        yield Delta(index=delta.index, reasoning=said.reasoning)
    delta.text, delta.tool_calls = said.text, said.calls
    if delta != Delta(index=delta.index):
        yield delta


def _one_call_each(messages: Sequence[Turn]) -> list[Turn]:
    """The conversation with a turn for every call, and its result behind it: harmony has one call in a message, and
    says whose a result is by its place."""
    results = {m.call_id: m for m in messages if m.role == "tool" and m.call_id is not None}
    placed: set[str | None] = set()
    turns: list[Turn] = []
    for message in messages:
        calls = message.calls
        if message.role == "tool" and message.call_id in placed:
            continue
        if len(calls) < 2:
            turns.append(message)
            continue
        for call, turn in zip(calls, message.split_calls(), strict=True):
            turns.append(turn)
            if call.id in results and call.id not in placed:
                turns.append(results[call.id])
                placed.add(call.id)
    return turns


def _harmony_turn(turn: dict[str, Any]) -> dict[str, Any]:
    """The turn with its thoughts under the name that harmony's templates read. What was said before a call becomes part
    of them: a message with a call has no other place for it."""
    thoughts = turn.pop("reasoning_content", None)
    if "tool_calls" in turn:
        thoughts, turn["content"] = "\n\n".join(filter(None, [thoughts, turn["content"]])), ""
    if thoughts:
        turn["thinking"] = thoughts
    return turn
