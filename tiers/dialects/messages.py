"""Anthropic's Messages (version 2023-06-01): the form of requests, blocks and answers, which callers and servers write.

Types and ranges of a request are checked while decoding; `messages_request` checks what depends on several. What is
typed `Raw` is decoded there, and goes on as it is to a server with this dialect; so does what is typed `Any`.

An answer is written whole, or as events: each block is started, grows by deltas, and is stopped before the next one
starts.
"""

import base64
import binascii
import hashlib
import re
import time
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta

from inference_core.io.files import prepare_types
from tiers.conversation import Dialect
from tiers.deltas import BlockOrder, CollectedChoice, Piece, is_object
from tiers.dialects.caller_errors import MessagesErrorEnvelope
from tiers.dialects.chat_opaque import image_blocks
from tiers.dialects.chat_schemas import MAX_TOOLS, FunctionName, NaturalInt, StopString, TopP
from tiers.tier import Delta, Usage

NAME = "Anthropic"
DIALECT: Dialect = "messages"
BETAS = "anthropic-beta"
"""A header of requests: names of features that are not in the API yet."""
_NOTHING = msgspec.Raw(b"")
_encode = msgspec.json.Encoder().encode
UNSIGNED = "YWlvLXVuc2lnbmVk"
"""Signature of thoughts that no server has signed."""
_FITS = re.compile(r"[a-zA-Z0-9_-]{16,64}")
_OWN = re.compile(r"toolu_aio[0-9a-f]{10}_(?P<given>[a-zA-Z0-9_-]+)")
_MOST_BYTES = 64


PROVIDERS_OWN = ("_tool_use", "_tool_result", "container_upload", "compaction", "redacted_thinking")
"""Ends of types of Anthropic's blocks that are of tools that it ran, or its own bookkeeping: no other model can do
anything with them, and only callers of its API get them."""
TURN = "turn"
"""Type of a block of Anthropic's form that is none: a whole turn of the system, which no other API has."""
INTERLEAVED = "interleaved-thinking"
"""Anthropic's beta with which a budget is that of a whole turn of calls, and so may be above the limit of an answer."""


def shown_call_id(call_id: str, request_id: str, index: int) -> str:
    """Return the id of the call number `index` of an answer for a client. Servers may repeat short ids in each
    answer, so only long ones go on as they are."""
    if _FITS.fullmatch(call_id) and not _OWN.fullmatch(call_id):
        return call_id
    told = call_id.encode(errors="replace")
    unique = hashlib.blake2b(f"{request_id}\0{index}\0".encode() + told, digest_size=5).hexdigest()
    if len(told) > _MOST_BYTES:
        return f"toolu_aio{unique}"
    return f"toolu_aio{unique}_{base64.urlsafe_b64encode(told).decode().rstrip('=')}"


def given_call_id(shown: str) -> str:
    """Return the server's own id in one that `shown_call_id` made; any other id as it is."""
    if (match := _OWN.fullmatch(shown)) is None:
        return shown
    text = match["given"]
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except (binascii.Error, ValueError):
        return shown


class _Annotated(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a block says besides its content."""

    cache_control: Any = None
    citations: Any = None


class Text(_Annotated, frozen=True, kw_only=True, omit_defaults=False):
    """A text block where nothing else is allowed: of `system`, and of a document's or a search result's content.
    Further fields reach servers with this API."""

    type: Literal["text"] = "text"
    text: str


class Source(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where an image or a document is: `base64` or `text` (`media_type`, `data`), `url`, `content`, `file`."""

    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None
    file_id: str | None = None
    content: str | list[Text] | None = None


class _Readable(_Annotated, frozen=True, kw_only=True):
    """The fields of blocks that tell the model something: `text`, `image`, `document`, `search_result` and
    `tool_reference`. Further ones reach servers with this API, since they are given each block as it is."""

    type: str
    text: str | None = None
    source: str | Source | None = None
    title: str | None = None
    context: str | None = None
    tool_name: str | None = None


class ResultBlock(_Readable, frozen=True, kw_only=True):
    """A block of a tool's result."""

    content: str | list[Text] | None = None


class Block(_Readable, frozen=True, kw_only=True):
    """A block of a message or of an answer; `type` says which fields count.

    `tool_use`: `id`, `name` and `input`. `tool_result`: `tool_use_id`, `content` and `is_error`. `tool_addition`,
    `tool_removal`: `tool`.
    """

    content: Any = None
    thinking: str | None = None
    """The thoughts of an earlier answer and their `signature`, or else `data` that hides them: the model that made them
    gets them back.
    """
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None
    tool_use_id: str | None = None
    is_error: bool | None = None
    tool: Any = None


MAX_STOP_SEQUENCES = 64
# Anthropic's own bound.
LEAST_THINKING_TOKENS = 1024


Role = Literal["user", "assistant", "system"]


class MessageTurn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One message: a text, or blocks (`Block`). Of a system's alone: `output_config`, how a tier of Anthropic goes on,
    and `clear_at`, with which it may hold until the user speaks."""

    role: Role
    content: str | list[msgspec.Raw] | None = None
    output_config: Any = None
    clear_at: str | None = None

    @property
    def has_controls(self) -> bool:
        """Whether it says more than its content."""
        return self.output_config is not None or self.clear_at is not None


class WrittenTurn(MessageTurn, frozen=True, kw_only=True):
    """One message for a server."""

    content: str | list[Any] | None = None


class ToolEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool. Those with a `type` but `custom` are Anthropic's own: only tiers of Anthropic have them. Other fields,
    too, reach these alone."""

    type: str | None = None
    name: FunctionName = ""
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    cache_control: Any = None


# Threads decode parts of long conversations.
prepare_types(Block, ResultBlock, Text, ToolEntry)


class ToolChoice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Whether tools may be, must be or are not called; `tool`: the one called `name`."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Whether the answer shows its thoughts, and how many tokens they may have. With the type `adaptive` the tier
    thinks as usual.
    """

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Meta(ge=LEAST_THINKING_TOKENS, le=2**31 - 1)] | None = None
    display: str | None = None
    """`omitted` leaves out the text of thoughts. `block_binding` and other displays are for Anthropic."""
    block_binding: Any = None


class OutputFormat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The JSON schema that the answer obeys."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


Effort = Literal["low", "medium", "high", "xhigh", "max"]


class OutputConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How much to think, and the format of the answer."""

    effort: Effort | None = None
    format: OutputFormat | None = None
    task_budget: Any = None
    """For Anthropic."""


class RequestMetadata(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a client says of its user."""

    user_id: Annotated[str, Meta(max_length=512)] | None = None
    """An opaque name of the user, recorded as a tag. Experiments are split by it."""


class CountTokensRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/messages/count_tokens`. `cache_control`, `context_management`, `mcp_servers`, `container` and what is
    like them reach tiers of Anthropic as they are.
    """

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    messages: list[MessageTurn]
    system: str | list[msgspec.Raw] | None = None
    tools: Annotated[list[msgspec.Raw], Meta(max_length=MAX_TOOLS)] | None = None
    """They are `ToolEntry`s, and blocks of `system` are `Text`s."""
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    """An earlier name of `output_config.format`."""
    cache_control: Any = None
    context_management: Any = None
    mcp_servers: Any = None
    thread: Any = None
    """Refused."""


class MessagesRequest(CountTokensRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/messages`."""

    max_tokens: NaturalInt
    """With 0 Anthropic fills its cache and answers nothing; other servers answer one token."""
    stream: bool | None = None
    stop_sequences: Annotated[list[StopString], Meta(max_length=MAX_STOP_SEQUENCES)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: TopP | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    metadata: RequestMetadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    container: Any = None
    inference_geo: Any = None
    speed: Any = None


class SaidBlock(Block, frozen=True, kw_only=True):
    """A block of a server, some of which leave fields out."""

    type: str = ""
    input: dict[str, Any] = {}


class BlockDelta(msgspec.Struct):
    """More of a block (`type` is set), or of the message (`stop_reason`, `stop_sequence`)."""

    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: Any = None
    citation: msgspec.Raw = _NOTHING
    stop_reason: str | None = None
    stop_sequence: str | None = None


class CacheCreation(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens written into a cache, by how long they stay."""

    ephemeral_5m_input_tokens: int | None = None
    ephemeral_1h_input_tokens: int | None = None


class Iteration(msgspec.Struct, frozen=True, omit_defaults=True):
    """One reading of the prompt. A `compaction` is billed, and is not in the sums of the usage (https://platform.claude.
    com/docs/en/build-with-claude/compaction, read 2026-11)."""

    type: str = ""
    input_tokens: int | None = None
    output_tokens: int | None = None


class MessageUsage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Token counts; None for one that is not known."""

    input_tokens: int | None = None
    """Those that no cache had."""
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation: CacheCreation | None = None
    output_tokens: int | None = None
    service_tier: str | None = None
    """The class that it was served in."""
    server_tool_use: dict[str, int | None] | None = None
    """How often tools of the provider's own were used."""
    speed: str | None = None
    inference_geo: str | None = None
    iterations: list[Iteration] | None = None


class MessageBody(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer, and the first event of a stream."""

    id: str = ""
    type: str = "message"
    role: str = "assistant"
    model: str = ""
    content: list[msgspec.Raw] | str | None = None
    """`Block`s, and blocks of other types that only this dialect has."""
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: MessageUsage | None = None
    stop_details: Any = UNSET
    container: Any = UNSET
    context_management: Any = UNSET
    x_aio: Any = UNSET
    """How the answer came about; the last event of a stream has it."""


class Event(msgspec.Struct, frozen=True):
    """An event of a stream."""

    type: str = ""
    index: int = 0
    message: MessageBody | None = None
    content_block: msgspec.Raw = _NOTHING
    delta: BlockDelta | None = None
    usage: MessageUsage | None = None


ENDED = ("stop_reason", "stop_sequence", "stop_details", "container")
"""Fields of the event that ends an answer, and of a whole one."""


StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]
_REASONS: dict[str, StopReason] = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}


def message_end(choice: CollectedChoice) -> dict[str, Any] | None:
    """Return the event that ended the answer, if a server with this dialect gave it."""
    end = choice.opaque_end
    if end is None or end.dialect != DIALECT or not end.event:
        return None
    said = msgspec.json.decode(end.event, type=dict[str, Any])
    delta = said["delta"] = said.get("delta") or {}
    reason = delta.get("stop_reason")
    # Lenient servers say so after calls, too, which a client would then not make.
    usual = "tool_use" if choice.calls else "end_turn"
    delta["stop_reason"] = usual if reason in (None, "stop", "end_turn") else _REASONS.get(reason, reason)
    return said


class ThinkingShown(msgspec.Struct, frozen=True):
    """Which thoughts a client asked for: without `blocks` none, without `texts` only that there were some."""

    blocks: bool
    texts: bool


class MessageHead(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of an answer besides what its choice has."""

    id: str
    model: str
    service_tier: str
    stop: tuple[str, ...]
    """The stop sequences that its caller asked for."""
    is_remote: bool
    """Whether the ids of calls are a server's."""


def whole_message(head: MessageHead, choice: CollectedChoice, usage: Usage, thinking: ThinkingShown) -> MessageBody:
    """Return the body of a finished answer: its blocks as a server with this dialect gave them, else thoughts, text,
    calls and images."""
    if (end := message_end(choice)) is not None:
        blocks = [msgspec.Raw(block.json) for block in choice.opaque.get(DIALECT, ())]
        delta = {name: end["delta"][name] for name in ENDED if name in end["delta"]}
        context = end.get("context_management", UNSET)
        counted = usage_of(usage, head, end)
        return MessageBody(
            id=head.id, model=head.model, content=blocks, usage=counted, context_management=context, **delta
        )
    content: list[Any] = []
    if choice.reasoning and thinking.blocks:
        thoughts = choice.reasoning if thinking.texts else ""
        content.append(Block(type="thinking", thinking=thoughts, signature=UNSIGNED))
    if choice.text:
        content.append(Block(type="text", text=choice.text))
    for index, call in enumerate(choice.tool_calls):
        call_id, call_input = tool_use_id(head, call.id, index), _input(call.arguments)
        content.append(Block(type="tool_use", id=call_id, name=call.name, input=call_input))
    said = [msgspec.Raw(_encode(block)) for block in (*content, *image_blocks(choice))]
    reason, sequence = stop_of(head, choice)
    counted = usage_of(usage, head)
    return MessageBody(
        id=head.id, model=head.model, content=said, usage=counted, stop_reason=reason, stop_sequence=sequence
    )


def usage_of(usage: Usage, head: MessageHead, end: dict[str, Any] | None = None) -> MessageUsage:
    """Return the counts as Anthropic divides them. `end`: what the server itself said at the end."""
    used = None if end is None else (end.get("usage") or {}).get("server_tool_use")
    written, for_an_hour = usage.cache_write_tokens, usage.cache_write_1h_tokens
    return MessageUsage(
        input_tokens=max(0, usage.prompt_tokens - usage.cached_tokens - written),
        cache_creation_input_tokens=written,
        cache_read_input_tokens=usage.cached_tokens,
        cache_creation=CacheCreation(written - for_an_hour, for_an_hour) if written else None,
        output_tokens=usage.completion_tokens,
        server_tool_use=used or None,
        service_tier=head.service_tier,
    )


def stop_of(head: MessageHead, choice: CollectedChoice) -> tuple[StopReason, str | None]:
    """Return why the answer ended, and the stop sequence that ended it."""
    reason = "refusal" if choice.refused else _REASONS.get(choice.finish_reason or "stop")
    if reason is None and choice.stop_sequence in head.stop:
        return "stop_sequence", choice.stop_sequence
    # Some servers report a call that was forced as a stop.
    return reason or ("tool_use" if choice.calls else "end_turn"), None


def tool_use_id(head: MessageHead, call_id: str, index: int) -> str:
    """Return the id of a call: a server's own, else one in Anthropic's format."""
    if not call_id:
        return f"toolu_{head.id.removeprefix('msg_')}{index}"
    if head.is_remote:
        return shown_call_id(call_id, head.id, index)
    return f"toolu_{call_id.removeprefix('call_')}"


def _input(arguments: str) -> msgspec.Raw:
    """The arguments as an object; an empty one where they were cut off or are none."""
    return msgspec.Raw(arguments.encode() if is_object(arguments) else b"{}")


PING = b'event: ping\ndata: {"type": "ping"}\n\n'
STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
# While a client is shown nothing of what is thought.
PING_SECONDS = 5.0


class MessageWriter:
    """Writes an answer as a stream of events."""

    def __init__(self, head: MessageHead, thinking: ThinkingShown) -> None:
        self.head, self._thinking = head, thinking
        self._order = BlockOrder()
        self._open: Piece | None = None
        self._index = -1
        self._growing = b""
        self._last_sent = time.monotonic()

    def begin(self, usage: Usage) -> bytes:
        """Return the Message with nothing in it yet; the tokens of its input are as known so far."""
        counted = msgspec.structs.replace(usage_of(usage, self.head), output_tokens=1)
        body = MessageBody(id=self.head.id, model=self.head.model, content=[], usage=counted)
        return event_of("message_start", message=body)

    def broken(self, failure: MessagesErrorEnvelope, billed: Usage, x_aio: Any) -> bytes:
        """Return the last event of an answer that failed. `x_aio`: how what came of it was made."""
        usage = usage_of(billed, self.head)
        return event_of("error", error=failure.error, request_id=failure.request_id, usage=usage, x_aio=x_aio)

    def piece(self, delta: Delta) -> bytes:
        """Events for one delta; empty if it says nothing new. What a server with this dialect said goes on as it is."""
        if delta.opaque is not None and delta.opaque.dialect == DIALECT and (event := delta.opaque.event):
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

    def end(self, choice: CollectedChoice, usage: Usage, x_aio: Any) -> bytes:
        """Return what still waits, the end of the last block, and of the Message."""
        events = b"".join(map(self._show, self._order.rest())) + self._stop()
        end = message_end(choice)
        for block in image_blocks(choice):
            self._index += 1
            events += event_of("content_block_start", index=self._index, content_block=block)
            events += event_of("content_block_stop", index=self._index)
        counted = msgspec.structs.replace(usage_of(usage, self.head, end), service_tier=None)
        if end is not None:
            said = end | {"usage": counted, "x_aio": x_aio}
            return events + event_of("message_delta", **said) + STOP
        reason, sequence = stop_of(self.head, choice)
        ended = {"stop_reason": reason, "stop_sequence": sequence}
        return events + event_of("message_delta", delta=ended, usage=counted, x_aio=x_aio) + STOP

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
            call_id = tool_use_id(self.head, piece.call.id, piece.call.index)
            block: dict[str, Any] = {"type": "tool_use", "id": call_id, "name": piece.call.name, "input": {}}
            kind = b'"input_json_delta","partial_json":'
        elif piece.key == "thinking":
            block = {"type": "thinking", "thinking": "", "signature": ""}
            kind = b'"thinking_delta","thinking":'
        else:
            block = {"type": "text", "text": ""}
            kind = b'"text_delta","text":'
        self._growing = self._head() + kind
        events = event_of("content_block_start", index=self._index, content_block=block)
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
        return events + event_of("content_block_stop", index=self._index)

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


def event_of(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), _encode({"type": kind, **fields}))
