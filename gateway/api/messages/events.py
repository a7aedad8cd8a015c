"""The events of a streamed Message: each block is started, grows by deltas, and is stopped before the next one starts.

Blocks cannot be interleaved. While a call's arguments are incomplete, pieces of anything else wait; servers send calls
one after another, so that nearly nothing ever does.
"""

import time
from typing import Any, Literal, NamedTuple

import msgspec

from gateway.answering.answer import Answer
from gateway.api.messages.errors import error_event
from gateway.api.messages.message_body import (
    SIGNATURE,
    ThinkingShown,
    is_object,
    message_body,
    stop_of,
    tool_use_id,
    usage_of,
)
from tiers.tier import Delta
from tiers.tool_types import ToolCallDelta

PING = b'event: ping\ndata: {"type": "ping"}\n\n'
STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
# While a client is shown nothing of what is thought.
PING_SECONDS = 5.0

_encode = msgspec.json.Encoder().encode


class _Piece(NamedTuple):
    """A piece of the block `key`: `thinking`, `text`, or the call of that number."""

    key: Literal["thinking", "text"] | int
    text: str
    call: ToolCallDelta | None = None


class MessageEvents:
    """`Chunks` in the wording of the Messages API."""

    def __init__(self, answer: Answer, thinking: ThinkingShown) -> None:
        self._answer, self._thinking = answer, thinking
        self._open: _Piece | None = None
        self._index = -1
        # Of the open call.
        self._arguments: list[str] = []
        self._stopped_calls: set[int] = set()
        self._waiting: list[_Piece] = []
        self._growing = b""
        self._last_sent = time.monotonic()

    def opening(self) -> bytes:
        """The Message with nothing in it yet; the tokens of its input are as known so far."""
        usage = usage_of(self._answer.source.bill().usage, self._answer)
        usage = msgspec.structs.replace(usage, output_tokens=1)
        return _event("message_start", message=message_body(self._answer, [], usage))

    def piece(self, delta: Delta) -> bytes:
        """Events for one delta; empty if it says nothing new."""
        if delta.text and self._is_text and not (delta.reasoning or delta.tool_calls):
            return self._growing + _encode(delta.text) + b"}}\n\n"
        events = b""
        if delta.reasoning and self._thinking.blocks:
            events += self._put(_Piece("thinking", delta.reasoning))
        elif delta.reasoning:
            events += self._ping_if_due()
        if delta.text:
            events += self._put(_Piece("text", delta.text))
        for call in delta.tool_calls:
            events += self._put(_Piece(call.index, call.arguments, call))
        return events

    def closing(self, answer: Answer) -> bytes:
        """What still waits, the end of the last block, and of the Message."""
        events = b""
        while self._waiting:
            events += self._stop() + self._retry()
        events += self._stop()
        reason, sequence = stop_of(answer)
        usage = msgspec.structs.replace(usage_of(answer.usage, answer), service_tier=msgspec.UNSET)
        ended = {"stop_reason": reason, "stop_sequence": sequence}
        return events + _event("message_delta", delta=ended, usage=usage) + STOP

    def failed(self, error: Exception) -> bytes:
        """See `error_event`."""
        return error_event(error, self._answer.request.request_id)

    @property
    def _is_text(self) -> bool:
        return self._open is not None and self._open.key == "text" and not self._waiting

    def _put(self, piece: _Piece) -> bytes:
        events = self._take(piece)
        while self._waiting and not self._is_incomplete:
            events += self._retry()
        return events

    def _retry(self) -> bytes:
        """Take what waits again, in its order; at least the first piece finds its block."""
        waiting, self._waiting = self._waiting, []
        return b"".join(map(self._take, waiting))

    def _take(self, piece: _Piece) -> bytes:
        if self._open is not None and piece.key == self._open.key:
            return self._grow(piece)
        if self._waiting or self._is_incomplete:
            self._waiting.append(piece)
            return b""
        if piece.key in self._stopped_calls:
            return b""
        return self._stop() + self._start(piece) + self._grow(piece)

    @property
    def _is_incomplete(self) -> bool:
        """Whether more of the open call's arguments must come."""
        return self._open is not None and self._open.call is not None and not is_object("".join(self._arguments))

    def _start(self, piece: _Piece) -> bytes:
        self._open, self._index, self._arguments = piece, self._index + 1, []
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

    def _grow(self, piece: _Piece) -> bytes:
        if piece.call is not None:
            self._arguments.append(piece.text)
        shown = piece.text if piece.key != "thinking" or self._thinking.texts else ""
        return self._growing + _encode(shown) + b"}}\n\n" if shown else self._ping_if_due()

    def _stop(self) -> bytes:
        """End the open block, if there is one."""
        if self._open is None:
            return b""
        events = b""
        if self._open.key == "thinking":
            events = self._head() + b'"signature_delta","signature":' + _encode(SIGNATURE) + b"}}\n\n"
        if self._open.call is not None:
            self._stopped_calls.add(self._open.call.index)
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


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), _encode({"type": kind, **fields}))
