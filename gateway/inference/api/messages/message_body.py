"""A Message as Anthropic shapes it: built from a finished Answer, or streamed as events. Each block is started, grows
by deltas, and is stopped before the next one starts (`BlockOrder`)."""

import time
from typing import Any, Literal

import msgspec
from msgspec import UNSET

from gateway.base.errors import as_api_error
from gateway.base.inference_request import SERVICE_TIERS
from gateway.inference.answer import Answer
from gateway.inference.api.answers import Routed, routed
from gateway.inference.api.chunks import BlockOrder, Piece, is_object
from gateway.inference.api.messages.conversation import UNSIGNED, shown_call_id
from gateway.inference.api.messages.schemas import envelope_of, error_event
from tiers.chat_state import image_blocks
from tiers.deltas import CollectedChoice
from tiers.tier import Delta, Usage

_SERVED = {"priority": "priority", "batch": "batch"}

Ended = tuple[str | None, str | None]
StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]
_REASONS: dict[str, StopReason] = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}


class TextBlock(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """A piece of the answer."""

    text: str


class ThinkingBlock(msgspec.Struct, frozen=True, tag_field="type", tag="thinking"):
    """What was thought before the answer."""

    thinking: str
    signature: str


class ToolUseBlock(msgspec.Struct, frozen=True, tag_field="type", tag="tool_use"):
    """A call of a tool; `input` is an object."""

    id: str
    name: str
    input: msgspec.Raw


class CacheCreation(msgspec.Struct, frozen=True):
    """Tokens written into a cache, by how long they stay."""

    ephemeral_5m_input_tokens: int
    ephemeral_1h_input_tokens: int


class MessageUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts; `input_tokens` are those that no cache had. `service_tier`: the class it was served in.
    `server_tool_use`: how often tools of the provider's own were used, as it said."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    cache_creation: CacheCreation | msgspec.UnsetType = UNSET
    output_tokens: int
    service_tier: str | msgspec.UnsetType = UNSET
    server_tool_use: msgspec.Raw | msgspec.UnsetType = UNSET


class MessageBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a whole answer, and of the first event of a stream. Of a server with this API `content` has its own
    blocks, of other types too. `x_aio`: as of chats; the last event of a stream has it."""

    id: str
    type: str = "message"
    role: str = "assistant"
    model: str
    content: list[TextBlock | ThinkingBlock | ToolUseBlock]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessageUsage
    stop_details: Any = UNSET
    container: Any = UNSET
    context_management: Any = UNSET
    x_aio: Routed | msgspec.UnsetType = UNSET


class MessageEnd(msgspec.Struct, frozen=True):
    """How an answer of a server with this API ended: the `delta` of the last event, and what `more` it says."""

    delta: dict[str, Any]
    more: dict[str, Any]

    @property
    def stop_reason(self) -> str | None:
        """As the server says it."""
        return self.delta.get("stop_reason")

    @property
    def stop_sequence(self) -> str | None:
        """The one that ended it."""
        return self.delta.get("stop_sequence")


def message_end(choice: CollectedChoice) -> MessageEnd | None:
    """How the answer ended, if a server with this API gave it."""
    end = choice.opaque_end
    if end is None or end.dialect != "anthropic" or not end.event:
        return None
    said = msgspec.json.decode(end.event, type=dict[str, Any])
    delta = said.get("delta") or {}
    given = delta.get("stop_reason")
    # Lenient servers say so after calls, too, which a client would then not make.
    usual = "tool_use" if choice.calls else "end_turn"
    delta["stop_reason"] = usual if given in (None, "stop", "end_turn") else _REASONS.get(given, given)
    return MessageEnd(delta, said)


class ThinkingShown(msgspec.Struct, frozen=True):
    """Which thoughts a client asked for: without `blocks` none, without `texts` only that there were some."""

    blocks: bool
    texts: bool


def whole_message(answer: Answer, thinking: ThinkingShown) -> MessageBody:
    """The body of a finished answer: its blocks as a server with this API gave them, else thoughts, text, calls."""
    choice = answer.choices[0]
    if (end := message_end(choice)) is not None:
        blocks: list[Any] = [msgspec.Raw(block.json) for block in choice.opaque.get("anthropic", ())]
        body = message_body(answer, blocks, usage_of(answer.usage, answer, end), (end.stop_reason, end.stop_sequence))
        own = {name: end.delta.get(name, UNSET) for name in ("stop_details", "container")}
        context = end.more.get("context_management", UNSET)
        return msgspec.structs.replace(body, **own, context_management=context, x_aio=routed(answer))
    content: list[Any] = []
    if choice.reasoning and thinking.blocks:
        content.append(ThinkingBlock(choice.reasoning if thinking.texts else "", UNSIGNED))
    if choice.text:
        content.append(TextBlock(choice.text))
    for place, call in enumerate(choice.tool_calls):
        content.append(ToolUseBlock(tool_use_id(answer, call.id, place), call.name, _input(call.arguments)))
    content += image_blocks(choice)
    body = message_body(answer, content, usage_of(answer.usage, answer), stop_of(answer))
    return msgspec.structs.replace(body, x_aio=routed(answer))


def message_body(answer: Answer, content: list[Any], usage: MessageUsage, ended: Ended = (None, None)) -> MessageBody:
    return MessageBody(
        id=answer.request.request_id, model=answer.tier.model, content=content, usage=usage,
        stop_reason=ended[0], stop_sequence=ended[1],
    )  # fmt: skip


def usage_of(usage: Usage | None, answer: Answer, end: MessageEnd | None = None) -> MessageUsage:
    """Token counts as Anthropic divides them. `end`: what the server itself said at the end."""
    usage = usage or Usage()
    used = None if end is None else (end.more.get("usage") or {}).get("server_tool_use")
    written, for_an_hour = usage.cache_write_tokens, usage.cache_write_1h_tokens
    served = SERVICE_TIERS[answer.request.generation.priority]
    return MessageUsage(
        input_tokens=max(0, usage.prompt_tokens - usage.cached_tokens - usage.cache_write_tokens),
        cache_creation_input_tokens=usage.cache_write_tokens,
        cache_read_input_tokens=usage.cached_tokens,
        cache_creation=CacheCreation(written - for_an_hour, for_an_hour) if written else UNSET,
        output_tokens=usage.completion_tokens,
        server_tool_use=msgspec.Raw(msgspec.json.encode(used)) if used else UNSET,
        service_tier=_SERVED.get(served, "standard"),
    )


def stop_of(answer: Answer) -> tuple[StopReason, str | None]:
    """Why the answer ended, and the stop sequence that ended it."""
    choice = answer.choices[0]
    reason = "refusal" if choice.refused else _REASONS.get(choice.finish_reason or "stop")
    if reason is None and choice.stop_sequence in answer.request.generation.stop:
        return "stop_sequence", choice.stop_sequence
    # Some servers report a call that was forced as a stop.
    return reason or ("tool_use" if choice.calls else "end_turn"), None


def tool_use_id(answer: Answer, call_id: str, place: int) -> str:
    """The id of a call: a server's own, else one in Anthropic's format."""
    if not call_id:
        return f"toolu_{answer.request.request_id.removeprefix('msg_')}{place}"
    if answer.tier.core_name is None:
        return shown_call_id(call_id, answer.request.request_id, place)
    return f"toolu_{call_id.removeprefix('call_')}"


def _input(arguments: str) -> msgspec.Raw:
    """The arguments as an object; an empty one where they were cut off or are none."""
    return msgspec.Raw(arguments.encode() if is_object(arguments) else b"{}")


PING = b'event: ping\ndata: {"type": "ping"}\n\n'
STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
# While a client is shown nothing of what is thought.
PING_SECONDS = 5.0

_encode = msgspec.json.Encoder().encode


class MessageEvents:
    """`Chunks` in the wording of the Messages API."""

    def __init__(self, answer: Answer, thinking: ThinkingShown) -> None:
        self._answer, self._thinking = answer, thinking
        self._order = BlockOrder()
        self._open: Piece | None = None
        self._index = -1
        self._growing = b""
        self._last_sent = time.monotonic()

    def opening(self) -> bytes:
        """The Message with nothing in it yet; the tokens of its input are as known so far."""
        usage = usage_of(self._answer.source.bill().usage, self._answer)
        usage = msgspec.structs.replace(usage, output_tokens=1)
        return _event("message_start", message=message_body(self._answer, [], usage))

    def piece(self, delta: Delta) -> bytes:
        """Events for one delta; empty if it says nothing new. What a server with this API said goes on as it is."""
        if delta.opaque is not None and delta.opaque.dialect == "anthropic" and (event := delta.opaque.event):
            return b"" if delta.finish_reason else _as_is(event)
        if delta.text and self._order.passes_text and not (delta.reasoning or delta.tool_calls):
            return self._growing + _encode(delta.text) + b"}}\n\n"
        events = b""
        if delta.reasoning and self._thinking.blocks:
            events += self._put(Piece("thinking", delta.reasoning))
        elif delta.reasoning:
            events += self._ping_if_due()
        if delta.text:
            events += self._put(Piece("text", delta.text))
        for call in delta.tool_calls:
            events += self._put(Piece(call.index, call.arguments, call))
        return events

    def closing(self, answer: Answer) -> bytes:
        """What still waits, the end of the last block, and of the Message."""
        events = b"".join(map(self._show, self._order.rest())) + self._stop()
        end = message_end(answer.choices[0])
        for block in image_blocks(answer.choices[0]):
            self._index += 1
            events += _event("content_block_start", index=self._index, content_block=block)
            events += _event("content_block_stop", index=self._index)
        usage = msgspec.structs.replace(usage_of(answer.usage, answer, end), service_tier=UNSET)
        if end is not None:
            said = end.more | {"delta": end.delta, "usage": usage, "x_aio": routed(answer)}
            return events + _event("message_delta", **said) + STOP
        reason, sequence = stop_of(answer)
        ended = {"stop_reason": reason, "stop_sequence": sequence}
        return events + _event("message_delta", delta=ended, usage=usage, x_aio=routed(answer)) + STOP

    def failed(self, error: Exception) -> bytes:
        """See `error_event`; of an answer that began also what is billed, and how the part that came was made."""
        if self._answer.record is None:
            return error_event(error, self._answer.request.request_id)
        envelope = envelope_of(as_api_error(error), self._answer.request.request_id)
        usage = usage_of(self._answer.billed, self._answer)
        said = {"error": envelope.error, "request_id": envelope.request_id, "usage": usage}
        return _event("error", **said, x_aio=routed(self._answer))

    def _put(self, piece: Piece) -> bytes:
        return b"".join(map(self._show, self._order.put(piece)))

    def _show(self, piece: Piece) -> bytes:
        """Events of a piece of the block that is written now."""
        if self._open is not None and self._open.key == piece.key:
            return self._grow(piece)
        return self._stop() + self._start(piece) + self._grow(piece)

    def _start(self, piece: Piece) -> bytes:
        self._open, self._index = piece, self._index + 1
        if piece.call is not None:
            call_id = tool_use_id(self._answer, piece.call.id, piece.call.index)
            block: dict[str, Any] = {"type": "tool_use", "id": call_id, "name": piece.call.name, "input": {}}
            kind = b'"input_json_delta","partial_json":'
        elif piece.key == "thinking":
            block = {"type": "thinking", "thinking": "", "signature": ""}
            kind = b'"thinking_delta","thinking":'
        else:
            block = {"type": "text", "text": ""}
            kind = b'"text_delta","text":'
        self._growing = self._head() + kind
        events = _event("content_block_start", index=self._index, content_block=block)
        if self._index == 0:
            events += PING
        # The first delta of a call's arguments is empty in Anthropic's streams.
        return events + self._growing + b'""}}\n\n' if piece.call is not None else events

    def _grow(self, piece: Piece) -> bytes:
        shown = piece.text if piece.key != "thinking" or self._thinking.texts else ""
        return self._growing + _encode(shown) + b"}}\n\n" if shown else self._ping_if_due()

    def _stop(self) -> bytes:
        """End the open block, if there is one."""
        if self._open is None:
            return b""
        events = b""
        if self._open.key == "thinking":
            events = self._head() + b'"signature_delta","signature":' + _encode(UNSIGNED) + b"}}\n\n"
        self._open = None
        return events + _event("content_block_stop", index=self._index)

    def _head(self) -> bytes:
        template = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":'
        return template % self._index

    def _ping_if_due(self) -> bytes:
        now = time.monotonic()
        if now - self._last_sent < PING_SECONDS:
            return b""
        self._last_sent = now
        return PING


def _as_is(event: bytes) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (_decode_kind(event).type.encode(), event.replace(b"\n", b" "))


class _Kind(msgspec.Struct):
    type: str


_decode_kind = msgspec.json.Decoder(_Kind).decode


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), _encode({"type": kind, **fields}))
