"""Write answers as OpenAI's chats and text completions have them: a whole body, or the chunks of a stream."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from tiers.conversation import Call, ToolCallDelta, UrlCitation
from tiers.deltas import BlockOrder, CollectedChoice, Piece
from tiers.dialects.chat_form import (
    ChatBody,
    ChatChoice,
    ChatLogprobs,
    ChatMessageBody,
    CompletionBody,
    CompletionChoice,
    CompletionDetails,
    CompletionLogprobs,
    PromptDetails,
    TokenLogprobs,
    TopLogprob,
    UsageBody,
)
from tiers.dialects.chat_opaque import EXTRA, FORM, opaque_fields
from tiers.dialects.chat_schemas import CustomCall, MessageToolCall, function_call
from tiers.dialects.constraints import CUSTOM, InputReader, input_of
from tiers.tier import Delta, TextLogprob, Usage

_encode = msgspec.json.Encoder().encode


class AnswerHead(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an answer before it begins."""

    id: str
    created: int
    """Seconds since 1970, UTC."""
    model: str
    fingerprint: str
    service_tier: str | None = None
    shows_logprobs: bool = False
    custom_tools: frozenset[str] = frozenset()
    """Names of the tools that take text."""
    as_functions: bool = False
    """Whether the caller gave `functions`, so that a call is a `function_call`."""


def chat_logprobs(drawn: list[TextLogprob]) -> ChatLogprobs:
    """Drawn tokens in chat's shape."""
    return ChatLogprobs(
        [
            TokenLogprobs(
                draw.token,
                0.0 if draw.logprob is None else draw.logprob,
                list(draw.token_bytes),
                [TopLogprob(token, logprob, list(raw)) for token, raw, logprob in draw.top],
            )
            for draw in drawn
        ]
    )


def completion_logprobs(drawn: list[TextLogprob], offset: int = 0) -> CompletionLogprobs:
    """Tokens in the older shape; where the tier does not say where they begin, the first does at `offset`."""
    offsets: list[int] = []
    for draw in drawn:
        offsets.append(offset if draw.start is None else draw.start)
        offset = offsets[-1] + len(draw.token)
    return CompletionLogprobs(
        tokens=[_written(draw.token, draw.token_bytes) for draw in drawn],
        token_logprobs=[draw.logprob for draw in drawn],
        top_logprobs=[_tops(draw) for draw in drawn],
        text_offset=offsets,
    )


def _tops(draw: TextLogprob) -> dict[str, float] | None:
    if draw.logprob is None:
        return None
    tops = {_written(token, raw): logprob for token, raw, logprob in draw.top}
    return tops | {_written(draw.token, draw.token_bytes): draw.logprob}


def _written(token: str, raw: bytes) -> str:
    if token.encode("utf-8", errors="replace") == raw:
        return token
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


FUNCTION_CALL = "function_call"
"""What a call is for a caller that gave `functions`, and why its answer ends."""


def whole_chat(head: AnswerHead, choices: Sequence[CollectedChoice], usage: Usage | None, x_aio: Any) -> ChatBody:
    """Return the body of a finished answer. `x_aio`: how it came about."""
    shown = [_chat_choice(index, choice, head) for index, choice in enumerate(choices)]
    return ChatBody(choices=shown, service_tier=head.service_tier or UNSET, **_common_fields(head, usage, x_aio))


def whole_completion(
    head: AnswerHead, choices: Sequence[CollectedChoice], usage: Usage | None, x_aio: Any
) -> CompletionBody:
    """Return the body of a finished text completion; see `whole_chat`."""
    shown = [_completion_choice(index, choice, head) for index, choice in enumerate(choices)]
    return CompletionBody(choices=shown, **_common_fields(head, usage, x_aio))


def _common_fields(head: AnswerHead, usage: Usage | None, x_aio: Any) -> dict[str, Any]:
    return {
        "id": head.id,
        "created": head.created,
        "model": head.model,
        "usage": usage_body(usage),
        "system_fingerprint": head.fingerprint,
        "x_aio": x_aio,
    }


def _chat_choice(index: int, choice: CollectedChoice, head: AnswerHead) -> ChatChoice:
    calls = [_call(call, head.custom_tools) for call in choice.tool_calls]
    refusal, thoughts = choice.refusal or None, choice.reasoning or None
    content = choice.content or (None if calls or refusal else "")
    cited = annotations_of(choice.annotations) if choice.annotations else []
    message = ChatMessageBody(
        role="assistant",
        content=content,
        refusal=refusal,
        annotations=cited,
        reasoning_content=thoughts,
        reasoning=thoughts,
        tool_calls=calls or None,
    )
    finish_reason: str | None = choice.finish_reason
    if calls and head.as_functions:
        message = msgspec.structs.replace(message, tool_calls=None, function_call=calls[0].function)
        finish_reason = FUNCTION_CALL if finish_reason == "tool_calls" else finish_reason
    if choice.opaque and (fields := opaque_fields(choice)):
        message = msgspec.structs.replace(message, **{block.type: msgspec.Raw(block.json) for block in fields})
    drawn = chat_logprobs(choice.logprobs) if head.shows_logprobs else None
    return ChatChoice(index, message, logprobs=drawn, finish_reason=finish_reason)


def _completion_choice(index: int, choice: CollectedChoice, head: AnswerHead) -> CompletionChoice:
    drawn = completion_logprobs(choice.logprobs) if head.shows_logprobs else None
    return CompletionChoice(index, choice.echo + choice.text, logprobs=drawn, finish_reason=choice.finish_reason)


def annotations_of(cited: list[UrlCitation]) -> list[Any]:
    """What a text cites, as chats show it."""
    return [{"type": "url_citation", "url_citation": msgspec.structs.asdict(citation)} for citation in cited]


def _call(call: Call, custom: frozenset[str]) -> MessageToolCall:
    if call.name in custom:
        written = CustomCall(name=call.name, input=input_of(call.arguments))
        return MessageToolCall(id=call.id, type=CUSTOM, custom=written)
    return function_call(call, UNSET if call.source is None else msgspec.Raw(call.source.json))


def usage_body(usage: Usage | None) -> UsageBody:
    """Token counts in OpenAI's shape."""
    usage = usage or Usage(prompt_tokens=0, completion_tokens=0)
    return UsageBody(
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.prompt_tokens + usage.completion_tokens,
        PromptDetails(usage.cached_tokens, usage.cache_write_tokens),
        CompletionDetails(usage.reasoning_tokens),
    )


class _Chunks:
    """What all chunks of a stream share: id, creation time and model never change within it."""

    object: str

    def __init__(self, head: AnswerHead, *, shows_usage: bool) -> None:
        shared: dict[str, Any] = {
            "id": head.id,
            "object": self.object,
            "created": head.created,
            "model": head.model,
            "system_fingerprint": head.fingerprint,
        }
        if head.service_tier is not None:
            shared["service_tier"] = head.service_tier
        self.shows_usage = shows_usage
        self._head = b"data: " + _encode(shared)[:-1] + b',"choices":['
        # OpenAI puts "usage": null on every chunk but the last when usage is asked for.
        self._tail = b'],"usage":null}\n\n' if shows_usage else b"]}\n\n"

    def last(self, usage: Usage | None, x_aio: Any) -> bytes:
        """Return the chunk with the counts; `x_aio`: how the answer came about."""
        return self._head + b"]," + _encode({"usage": usage_body(usage), "x_aio": x_aio})[1:] + b"\n\n"


class ChatWriter(_Chunks):
    """`chat.completion.chunk`: the role first, then pieces, then one finish reason per choice."""

    object = "chat.completion.chunk"

    def __init__(self, head: AnswerHead, choices: int, *, shows_usage: bool) -> None:
        super().__init__(head, shows_usage=shows_usage)
        self._choices = choices
        # Nearly all chunks are a piece of text and nothing else.
        self._before = [b'%b{"index":%d,"delta":{"content":' % (self._head, index) for index in range(choices)]
        self._after = b'},"logprobs":null,"finish_reason":null}' + self._tail
        self._calls: dict[int, BlockOrder] = {}  # by choice
        self._custom, self._as_functions = head.custom_tools, head.as_functions
        self._inputs: dict[tuple[int, int], InputReader] = {}  # of calls of custom tools, by choice and number

    def opening(self) -> bytes:
        """One role-only chunk per choice."""
        return b"".join(self._chunk(index, b'{"role":"assistant","content":""}') for index in range(self._choices))

    def piece(self, delta: Delta) -> bytes:
        """A chunk with the new text, and one with the finish reason if the choice has ended."""
        if delta.text and not (
            delta.reasoning or delta.logprobs or delta.finish_reason or delta.tool_calls or delta.refusal
        ):
            return self._before[delta.index] + _encode(delta.text) + self._after
        events = b""
        if delta.reasoning:
            thought = _encode(delta.reasoning)
            events = self._chunk(delta.index, b'{"reasoning_content":%b,"reasoning":%b}' % (thought, thought))
        drawn = b"null"
        if delta.logprobs and not delta.reasoning:
            drawn = _encode(chat_logprobs(delta.logprobs))
        if delta.text or drawn != b"null":
            name = b'{"refusal":' if delta.refusal else b'{"content":'
            events += self._chunk(delta.index, name + _encode(delta.text) + b"}", drawn)
        if delta.annotations:
            events += self._chunk(delta.index, _encode({"annotations": annotations_of(delta.annotations)}))
        if delta.opaque is not None and delta.opaque.dialect == FORM and (block := delta.opaque.block) is not None:
            events += self._chunk(delta.index, b'{"%b":%b}' % (block.type.encode(), block.json))
        if delta.tool_calls:
            order = self._calls.setdefault(delta.index, BlockOrder())
            ready = (piece for call in delta.tool_calls for piece in order.put(Piece(call.index, call.arguments, call)))
            events += b"".join(self._call(delta.index, piece.call) for piece in ready if piece.call is not None)
        if delta.finish_reason:
            if delta.index in self._calls:
                events += self._last_calls(delta.index)
            reason = str(delta.finish_reason)
            reason = FUNCTION_CALL if self._as_functions and reason == "tool_calls" else reason
            events += self._chunk(delta.index, b"{}", finish=_encode(reason))
        return events

    def _call(self, index: int, call: ToolCallDelta) -> bytes:
        """A chunk with a piece of the call that is written now: many clients take a piece for one of the last call."""
        if call.name in self._custom or (index, call.index) in self._inputs:
            return self._custom_piece(index, call)
        if self._as_functions:
            said = {"arguments": call.arguments} | ({"name": call.name} if call.name else {})
            return b"" if call.index else self._chunk(index, _encode({FUNCTION_CALL: said}))
        return self._chunk(index, _encode({"tool_calls": [_call_piece(call)]}))

    def _custom_piece(self, index: int, call: ToolCallDelta) -> bytes:
        """A chunk with more of the text that a custom tool is given, and first with its name."""
        reader = self._inputs.get((index, call.index))
        first = reader is None
        if reader is None:
            reader = self._inputs[index, call.index] = InputReader()
        text = reader.take(call.arguments)
        if not first:
            return self._input(index, call.index, text)
        named = {"index": call.index, "id": call.id, "type": CUSTOM, "custom": {"name": call.name, "input": text}}
        return self._chunk(index, _encode({"tool_calls": [named]}))

    def _last_calls(self, index: int) -> bytes:
        """Chunks with what is left of one choice's calls."""
        waited = [piece.call for piece in self._calls[index].rest() if piece.call is not None]
        events = b"".join(self._call(index, call) for call in waited)
        rest = [(number, reader.rest()) for (choice, number), reader in self._inputs.items() if choice == index]
        return events + b"".join(self._input(index, number, text) for number, text in rest)

    def _input(self, index: int, number: int, text: str) -> bytes:
        more = {"tool_calls": [{"index": number, "custom": {"input": text}}]}
        return self._chunk(index, _encode(more)) if text else b""

    def _chunk(self, index: int, delta: bytes, logprobs: bytes = b"null", finish: bytes = b"null") -> bytes:
        return b'%b{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":%b}%b' % (
            self._head,
            index,
            delta,
            logprobs,
            finish,
            self._tail,
        )


class CompletionWriter(_Chunks):
    """`text_completion` chunks: pieces, then one finish reason per choice."""

    object = "text_completion"

    def __init__(self, head: AnswerHead, choices: int, *, shows_usage: bool) -> None:
        super().__init__(head, shows_usage=shows_usage)
        self._offsets = [0] * choices

    def opening(self) -> bytes:
        """Nothing: this API has no roles."""
        return b""

    def piece(self, delta: Delta) -> bytes:
        """A chunk with the new text, and one with the finish reason if the choice has ended."""
        events, drawn = b"", b"null"
        if delta.logprobs:
            logprobs = completion_logprobs(delta.logprobs, self._offsets[delta.index])
            self._offsets[delta.index] = (logprobs.text_offset or [0])[-1] + len(delta.logprobs[-1].token)
            drawn = _encode(logprobs)
        if delta.text or drawn != b"null":
            events = self._chunk(delta.index, _encode(delta.text), drawn)
        if delta.finish_reason:
            events += self._chunk(delta.index, b'""', finish=_encode(delta.finish_reason))
        return events

    def _chunk(self, index: int, text: bytes, logprobs: bytes = b"null", finish: bytes = b"null") -> bytes:
        return b'%b{"index":%d,"text":%b,"logprobs":%b,"finish_reason":%b}%b' % (
            self._head,
            index,
            text,
            logprobs,
            finish,
            self._tail,
        )


def _call_piece(call: ToolCallDelta) -> dict[str, Any]:
    """A call's first piece has its id, type and name; later ones only more of its arguments."""
    if not call.id and not call.name:
        more = {"index": call.index, "function": {"arguments": call.arguments}}
        return more | ({EXTRA: msgspec.Raw(call.extra_content)} if call.extra_content else {})
    function = {"name": call.name, "arguments": call.arguments}
    piece = {"index": call.index, "id": call.id, "type": "function", "function": function}
    return piece | ({EXTRA: msgspec.Raw(call.extra_content)} if call.extra_content else {})
