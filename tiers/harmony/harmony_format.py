"""How a model that answers in harmony's channels is prompted, bound and read."""

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from inference_core.tokenization.tokenizer import Tokenizer
from tiers.harmony.answer_stops import AnswerStops
from tiers.harmony.channel_parser import MARKS, ChannelParser, Said
from tiers.harmony.harmony_grammar import harmony_grammar
from tiers.tier import ChatMessage, Delta, GenerationRequest, TextLogprob
from tiers.tool_types import Tooling
from tiers.tools.tool_calling import ToolCalling

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

    def turns(self, messages: Sequence[ChatMessage], tooling: Tooling | None) -> tuple[list[dict[str, Any]], Any]:
        """See `ToolCalling.turns`."""
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

    def visible_controls(self, request: GenerationRequest) -> Mapping[int, str]:
        """See `ToolCalling.visible_controls`: as marks that no text can have."""
        return self._marks if self.reads(request) else {}

    def reads(self, request: GenerationRequest) -> bool:
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
        starts = [min(max(one.start or 0, begin), end) for one in delta.logprobs]
        for one, first, last in zip(delta.logprobs, [begin, *starts[1:]], [*starts[1:], end], strict=True):
            said = self._parser.feed(delta.text[first - begin : last - begin])
            parts.append(said)
            if said.text or (first == last and self._parser.is_answering):
                kept.append(one)
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


def _one_call_each(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """The conversation with a turn for every call, and its result behind it: harmony has one call in a message, and
    says whose a result is by its place."""
    results = {m.tool_call_id: m for m in messages if m.role == "tool" and m.tool_call_id is not None}
    placed: set[str | None] = set()
    turns: list[ChatMessage] = []
    for message in messages:
        calls = message.tool_calls
        if message.role == "tool" and message.tool_call_id in placed:
            continue
        if len(calls) < 2:
            turns.append(message)
            continue
        for number, call in enumerate(calls):
            first = {} if number == 0 else {"content": "", "reasoning": ""}
            turns.append(msgspec.structs.replace(message, tool_calls=(call,), **first))
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
