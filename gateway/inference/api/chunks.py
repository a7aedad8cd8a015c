"""Answers as the APIs format them: a whole body, or server-sent events cut from a template per stream."""

from typing import Any, Protocol

import msgspec

from gateway.base.errors import ErrorBody, ErrorEnvelope, as_api_error
from gateway.inference.answer import Answer
from gateway.inference.api.answers import (
    FUNCTION_CALL,
    Routed,
    UsageBody,
    annotations_of,
    chat_logprobs,
    completion_logprobs,
    routed,
    usage_body,
    whole_answer,
)
from gateway.inference.service import Serving
from tiers.chat_state import EXTRA, FORM
from tiers.conversation import ToolCallDelta
from tiers.deltas import BlockOrder, Piece
from tiers.dialects.chat_schemas import StreamOptions
from tiers.dialects.constraints import CUSTOM, InputReader, custom_names
from tiers.tier import Delta

EVENT_STREAM = b"text/event-stream; charset=utf-8"
DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.Encoder().encode


class Chunks(Protocol):
    """The events of one API's stream."""

    def opening(self) -> bytes:
        """Events before the first delta."""

    def piece(self, delta: Delta) -> bytes:
        """Events for one delta; empty if it says nothing new."""

    def closing(self, answer: Answer) -> bytes:
        """Events after the last delta."""

    def failed(self, error: Exception) -> bytes:
        """The last events of a stream that broke."""


class BrokenStream(msgspec.Struct, frozen=True):
    """The last event of an answer that broke after its first token: what went wrong, the tokens that are billed, and
    how the part that came was made."""

    error: ErrorBody
    usage: UsageBody
    x_aio: Routed


class _Template:
    """The parts that all chunks of a stream share: id, creation time and model never change within it."""

    def __init__(self, answer: Answer, object_: str, fingerprint: str, include_usage: bool) -> None:
        shared: dict[str, Any] = {
            "id": answer.request.request_id,
            "object": object_,
            "created": int(answer.request.created_at),
            "model": answer.tier.model,
            "system_fingerprint": fingerprint,
        }
        if answer.request.service_tier is not None:
            shared["service_tier"] = answer.request.service_tier
        self.answer, self.include_usage = answer, include_usage
        self.head = b"data: " + _encode(shared)[:-1] + b',"choices":['
        # OpenAI puts "usage": null on every chunk but the last when usage is asked for.
        self.tail = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"

    def closing(self) -> bytes:
        if not self.include_usage:
            return DONE
        usage = _encode({"usage": usage_body(self.answer.usage), "x_aio": routed(self.answer)})
        return self.head + b"]," + usage[1:] + b"\n\n" + DONE

    def failed(self, error: Exception) -> bytes:
        if self.answer.record is None:
            return error_event(error)
        broken = BrokenStream(as_api_error(error).body, usage_body(self.answer.billed), routed(self.answer))
        return b"data: " + _encode(broken) + b"\n\n"


class ChatChunks:
    """`chat.completion.chunk`: the role first, then pieces, then one finish reason per choice."""

    def __init__(self, answer: Answer, fingerprint: str, include_usage: bool) -> None:
        self._template = _Template(answer, "chat.completion.chunk", fingerprint, include_usage)
        self._choices = len(answer.choices)
        # Nearly all chunks are a piece of text and nothing else.
        self._before = [
            b'%b{"index":%d,"delta":{"content":' % (self._template.head, index) for index in range(self._choices)
        ]
        self._after = b'},"logprobs":null,"finish_reason":null}' + self._template.tail
        self._calls: dict[int, BlockOrder] = {}  # by choice
        tooling = answer.request.generation.tooling
        self._custom = frozenset() if tooling is None else custom_names(tooling)
        self._as_functions = tooling is not None and tooling.as_functions
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
            ready = (piece for one in delta.tool_calls for piece in order.put(Piece(one.index, one.arguments, one)))
            events += b"".join(self._call(delta.index, piece.call) for piece in ready if piece.call is not None)
        if delta.finish_reason:
            if delta.index in self._calls:
                events += self._last_calls(delta.index)
            reason = str(delta.finish_reason)
            reason = FUNCTION_CALL if self._as_functions and reason == "tool_calls" else reason
            events += self._chunk(delta.index, b"{}", finish=_encode(reason))
        return events

    def closing(self, answer: Answer) -> bytes:
        """The usage, if asked for, and the end mark."""
        return self._template.closing()

    def failed(self, error: Exception) -> bytes:
        """See `BrokenStream`; no end mark follows."""
        return self._template.failed(error)

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
            self._template.head,
            index,
            delta,
            logprobs,
            finish,
            self._template.tail,
        )


class CompletionChunks:
    """`text_completion` chunks: pieces, then one finish reason per choice."""

    def __init__(self, answer: Answer, fingerprint: str, include_usage: bool) -> None:
        self._template = _Template(answer, "text_completion", fingerprint, include_usage)
        self._offsets = [0] * len(answer.choices)

    def opening(self) -> bytes:
        """Nothing: this API has no roles."""
        return b""

    def piece(self, delta: Delta) -> bytes:
        """A chunk with the new text, and one with the finish reason if the choice has ended."""
        events, drawn = b"", b"null"
        if delta.logprobs:
            logprobs = completion_logprobs(delta.logprobs, self._offsets[delta.index])
            self._offsets[delta.index] = logprobs.text_offset[-1] + len(delta.logprobs[-1].token)
            drawn = _encode(logprobs)
        if delta.text or drawn != b"null":
            events = self._chunk(delta.index, _encode(delta.text), drawn)
        if delta.finish_reason:
            events += self._chunk(delta.index, b'""', finish=_encode(delta.finish_reason))
        return events

    def closing(self, answer: Answer) -> bytes:
        """The usage, if asked for, and the end mark."""
        return self._template.closing()

    def failed(self, error: Exception) -> bytes:
        """See `BrokenStream`; no end mark follows."""
        return self._template.failed(error)

    def _chunk(self, index: int, text: bytes, logprobs: bytes = b"null", finish: bytes = b"null") -> bytes:
        return b'%b{"index":%d,"text":%b,"logprobs":%b,"finish_reason":%b}%b' % (
            self._template.head,
            index,
            text,
            logprobs,
            finish,
            self._template.tail,
        )


class AnswerFormat(Protocol):
    """How an API formats its answers. `keep_alive`: what a stream sends while a token is awaited.
    `id_headers`: the names of the response headers with the request's id. `stream_type`: the content type of a
    stream."""

    keep_alive: bytes
    stream_type: bytes
    id_headers: tuple[bytes, ...]

    def whole(self, answer: Answer) -> bytes:
        """The body of a finished answer."""

    def chunks(self, answer: Answer) -> Chunks:
        """The events of an opened one."""

    def is_told_in_stream(self, error: Exception) -> bool:
        """Whether a stream that fails with `error` before its first token is answered with 200 and `failed`, instead of
        with the status."""

    def failed(self, error: Exception) -> bytes:
        """The last events of a stream that broke before its first token."""


class OpenAIStream:
    """What the streams of all of OpenAI's APIs have in common."""

    keep_alive = b": keep-alive\n\n"
    stream_type = EVENT_STREAM
    id_headers: tuple[bytes, ...] = (b"x-request-id",)

    def is_told_in_stream(self, error: Exception) -> bool:
        return False

    def failed(self, error: Exception) -> bytes:
        return error_event(error)


class CompletionsFormat(OpenAIStream):
    """The format of chats and of text completions."""

    def __init__(self, serving: Serving, stream_options: StreamOptions | None) -> None:
        self._fingerprint = serving.fingerprint
        self._include_usage = bool(stream_options and stream_options.include_usage)

    def whole(self, answer: Answer) -> bytes:
        return _encode(whole_answer(answer, self._fingerprint))

    def chunks(self, answer: Answer) -> Chunks:
        chunks = ChatChunks if answer.request.api == "chat" else CompletionChunks
        return chunks(answer, self._fingerprint, self._include_usage)


def _call_piece(call: ToolCallDelta) -> dict[str, Any]:
    """A call's first piece has its id, type and name; later ones only more of its arguments."""
    if not call.id and not call.name:
        more = {"index": call.index, "function": {"arguments": call.arguments}}
        return more | ({EXTRA: msgspec.Raw(call.extra_content)} if call.extra_content else {})
    function = {"name": call.name, "arguments": call.arguments}
    piece = {"index": call.index, "id": call.id, "type": "function", "function": function}
    return piece | ({EXTRA: msgspec.Raw(call.extra_content)} if call.extra_content else {})


def error_event(error: Exception) -> bytes:
    """The last event of a stream that failed; no end mark follows, so that the answer does not look complete."""
    return b"data: " + _encode(ErrorEnvelope(as_api_error(error).body)) + b"\n\n"
