"""The events of a streamed Message: each block is started, grows by deltas, and is stopped before the next one starts
(`BlockOrder`)."""

import time
from typing import Any

import msgspec

from gateway.base.errors import as_api_error
from gateway.inference.answering.answer import Answer
from gateway.inference.api.messages.errors import envelope_of, error_event
from gateway.inference.api.messages.message_body import (
    ThinkingShown,
    message_body,
    native_end,
    stop_of,
    tool_use_id,
    usage_of,
)
from gateway.inference.api.messages.signatures import UNSIGNED
from gateway.inference.api.writing.answers import billed_usage, routed
from gateway.inference.api.writing.block_order import BlockOrder, Piece
from tiers.tier import Delta

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
        if delta.native is not None and delta.native.form == "anthropic" and (event := delta.native.event):
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
        end = native_end(answer.choices[0])
        usage = msgspec.structs.replace(usage_of(answer.usage, answer, end), service_tier=msgspec.UNSET)
        if end is not None:
            said = end.more | {"delta": end.delta, "usage": usage, "x_aio": routed(answer)}
            return events + _event("message_delta", **said) + STOP
        reason, sequence = stop_of(answer)
        ended = {"stop_reason": reason, "stop_sequence": sequence}
        return events + _event("message_delta", delta=ended, usage=usage, x_aio=routed(answer)) + STOP

    def failed(self, error: Exception) -> bytes:
        """See `error_event`; of an answer that began also what is billed, and how the part that came was made."""
        record = self._answer.record
        if record is None:
            return error_event(error, self._answer.request.request_id)
        envelope = envelope_of(as_api_error(error), self._answer.request.request_id)
        usage = usage_of(billed_usage(record), self._answer)
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
