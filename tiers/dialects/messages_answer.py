"""Answers in the form of Anthropic's Messages API, read event by event or whole: as deltas, and as the blocks that they
were."""

from typing import Any

import msgspec

from tiers.conversation import Opaque, OpaquePiece
from tiers.dialects.dialect import Blocks, blocks_of, finish_of
from tiers.dialects.event_stream import ServerSentEvent
from tiers.dialects.lenient_json import LenientDecoder, arguments_text
from tiers.dialects.messages import (
    DIALECT,
    ENDED,
    NAME,
    PROVIDERS_OWN,
    BlockDelta,
    Event,
    MessageBody,
    MessageUsage,
    SaidBlock,
)
from tiers.dialects.server_error import ServerSaidError, parse_error
from tiers.dialects.usage_counter import MOST_NAME, Tally
from tiers.errors import TierError
from tiers.tier import Delta, Usage


class _Answer(MessageBody, frozen=True, kw_only=True):
    """A whole answer, or what went wrong."""

    error: Any = None


_encode = msgspec.json.Encoder().encode
_decode = LenientDecoder(Event, f"an event of {NAME}'s")
_decode_message = LenientDecoder(_Answer, f"a message of {NAME}'s")
_decode_block = LenientDecoder(SaidBlock, f"a block of {NAME}'s")
# By their names in the usage.
_BILLED_TOOLS = ("web_search_requests", "web_fetch_requests", "tool_search_requests")


class _OpenBlock:
    """A block of a stream as it grows. `number`: its place among the blocks that the caller gets."""

    def __init__(self, number: int, start: msgspec.Raw, block: SaidBlock) -> None:
        self.number, self._start, self.type = number, start, block.type
        self._texts, self._thoughts, self._arguments = [block.text or ""], [block.thinking or ""], list[str]()
        self._signature, self._data = block.signature or "", block.data or ""
        self._citations: list[Any] = []

    def add(self, delta: BlockDelta) -> None:
        if delta.text is not None:
            self._texts.append(delta.text)
        elif delta.thinking is not None:
            self._thoughts.append(delta.thinking)
        elif delta.partial_json is not None:
            self._arguments.append(arguments_text(delta.partial_json))
        elif delta.signature is not None:
            self._signature += delta.signature
        elif delta.citation:
            self._citations.append(delta.citation)

    def finished(self) -> Opaque:
        block = msgspec.json.decode(self._start, type=dict[str, Any])
        if self.type == "text":
            block["text"] = "".join(self._texts)
        if self._citations:
            block["citations"] = [*(block.get("citations") or ()), *self._citations]
        if self.type == "thinking":
            block |= {"thinking": "".join(self._thoughts), "signature": self._signature}
        if arguments := "".join(self._arguments):
            block["input"] = msgspec.Raw(arguments.encode())
        return Opaque(DIALECT, _encode(block), self.type, self._signature or self._data)


def read_event(event: ServerSentEvent, tally: Tally) -> list[Delta] | None:
    if (said := _decode.event(event, tally)) is None:
        return None
    blocks = blocks_of(tally)
    ended: list[Delta] = []
    data = event.data
    if not said.type:
        said = msgspec.structs.replace(said, type=event.event)
        data = _changed(data, type=said.type, **({"index": said.index} if "block" in said.type else {}))
    match said.type:
        case "content_block_delta":
            deltas = _delta(said, blocks)
        case "content_block_start":
            ended = _left_open(blocks, tally, said.index)
            deltas = _start(said.index, said.content_block, blocks)
            if said.index in blocks.own:
                _note_use(said.content_block, tally)
        case "content_block_stop":
            deltas = blocks.close(said.index)
        case "message_start" if said.message is not None:
            _report(said.message.usage, tally)
            return []
        case "message_delta" if said.delta is not None:
            _report(said.usage, tally)
            ended = _left_open(blocks, tally)
            if not (deltas := _end(said.delta, blocks)):
                return ended
        case "message_stop":
            return None
        case "error":
            raise ServerSaidError(parse_error(event.data))
        case "ping":
            return []
        case _:
            blocks.not_known(event.data, f"events of the type {said.type!r}")
            return []
    return ended + (_with_event(said, data, deltas, tally) if tally.opaque else deltas)


def read_whole(body: bytes, tally: Tally) -> list[Delta]:
    message, blocks = _decode_message(body, tally), blocks_of(tally)
    if message.error:
        raise ServerSaidError(parse_error(body))
    if message.content is None and message.stop_reason is None:
        blocks.not_known(body, "no content")
    _report(message.usage, tally)
    deltas: list[Delta] = []
    if isinstance(message.content, str):
        # A caller of the same dialect gets blocks.
        tally.opaque = False
        return blocks.text(message.content) + _end(message, blocks)
    for index, raw in enumerate(message.content or ()):
        block = _decode_block(raw, tally)
        started = _start(index, raw, blocks)
        deltas += started + blocks.close(index)
        if tally.opaque:
            said = bytes(_whole_call(raw, block, started))
            whole = Opaque(DIALECT, said, block.type, block.signature or block.data or "")
            deltas.append(Delta(opaque=OpaquePiece(dialect=DIALECT, block=whole)))
    ending = _end(message, blocks)
    if tally.opaque and ending:
        ending[0].opaque = OpaquePiece(dialect=DIALECT, event=_ending(body))
    return deltas + ending


def _left_open(blocks: Blocks, tally: Tally, index: int | None = None) -> list[Delta]:
    """End the blocks that the server has left open, or only the one of this `index`."""
    open_blocks = tally.notes.get("open blocks", ()) if tally.opaque else blocks.without_arguments
    deltas: list[Delta] = []
    for block_index in [block_index for block_index in open_blocks if index in (None, block_index)]:
        end = Event(type="content_block_stop", index=block_index)
        closing = blocks.close(block_index)
        said = _encode({"type": end.type, "index": block_index})
        deltas += _with_event(end, said, closing, tally) if tally.opaque else closing
    return deltas


def _with_event(said: Event, data: bytes, deltas: list[Delta], tally: Tally) -> list[Delta]:
    """Return `deltas` with the event as it is, and with the block that it ends. A block that a
    lenient server does not start is started here, and all are numbered in their order."""
    open_blocks: dict[int, _OpenBlock] = tally.notes.setdefault("open blocks", {})
    before: list[Delta] = []
    finished, number = None, said.index
    if said.type == "content_block_start":
        number = tally.notes["last block"] = tally.notes.get("last block", -1) + 1
        start, block = said.content_block, _decode_block(said.content_block)
        if (mended := _whole_call(start, block, deltas)) is not start:
            data = _changed(data, content_block=mended)
        open_blocks[said.index] = _OpenBlock(number, mended, block)
    elif said.type == "content_block_delta" and said.delta is not None:
        before = _started_here(said.index, said.delta, tally)
        if (grown := _block_of(said.index, open_blocks)) is None:
            return deltas
        partial_json, is_own = said.delta.partial_json, said.index in blocks_of(tally).own
        if partial_json is not None and not is_own and (added := _added(deltas)) != partial_json:
            if not added:
                return deltas
            said.delta.partial_json = added
            data = _changed(data, delta={"type": "input_json_delta", "partial_json": added})
        elif (kind := _kind_of(said.delta)) and not _is_usual(said.delta, kind):
            data = _changed(data, delta={"type": f"{kind}_delta", kind: said.delta.text or said.delta.thinking})
        grown.add(said.delta)
        number = grown.number
    elif said.type == "content_block_stop":
        if (ended := open_blocks.pop(said.index, None)) is None:
            return deltas
        finished, number = ended.finished(), ended.number
    if number != said.index:
        data = _changed(data, index=number)
    opaque = OpaquePiece(dialect=DIALECT, event=data, block=finished)
    if not deltas:
        return [*before, Delta(opaque=opaque)]
    deltas[-1].opaque = opaque
    return before + deltas


def _changed(data: bytes, **fields: Any) -> bytes:
    """Return an event with these fields; as it is, if a field that nothing reads is no valid JSON."""
    try:
        event = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        return data
    return _encode(event | fields)


def _kind_of(delta: BlockDelta) -> str:
    """Return the type of the block that a text or a thought belongs to; empty for other deltas."""
    if delta.thinking is not None or delta.type == "thinking_delta":
        return "thinking"
    return "text" if delta.text is not None else ""


def _is_usual(delta: BlockDelta, kind: str) -> bool:
    return delta.type == f"{kind}_delta" and getattr(delta, kind) is not None


def _block_of(index: int, open_blocks: dict[int, _OpenBlock]) -> _OpenBlock | None:
    """Return the block that grows: that of the event's index, else the last one that is open."""
    return open_blocks.get(index) or next(reversed(open_blocks.values()), None)


def _started_here(index: int, delta: BlockDelta, tally: Tally) -> list[Delta]:
    """Start a block for a text or a thought whose server has started none, or one of the other type."""
    kind, open_blocks = _kind_of(delta), tally.notes["open blocks"]
    grown = open_blocks.get(index)
    if not kind or (grown is not None and (grown.type == kind or grown.type not in ("text", "thinking"))):
        return []
    ended = _left_open(blocks_of(tally), tally)
    block = {"type": kind, kind: ""} | ({"signature": ""} if kind == "thinking" else {})
    start = Event(type="content_block_start", index=index, content_block=msgspec.Raw(_encode(block)))
    data = _encode({"type": start.type, "index": index, "content_block": block})
    return ended + _with_event(start, data, [], tally)


def _added(deltas: list[Delta]) -> str:
    """The arguments in the deltas of one event."""
    return "".join(call.arguments for delta in deltas for call in delta.tool_calls)


def _whole_call(start: msgspec.Raw, block: SaidBlock, deltas: list[Delta]) -> msgspec.Raw:
    """Return a block as it is; a call with the id that it has here, and with an input that is an object."""
    if block.type != "tool_use":
        return start
    said = msgspec.json.decode(start, type=dict[str, Any])
    call_id = next((piece.id for delta in deltas for piece in delta.tool_calls if piece.id), said.get("id"))
    if said.get("id") == call_id and isinstance(said.get("input"), dict):
        return start
    return msgspec.Raw(_encode(said | {"id": call_id, "input": block.input}))


def _ending(body: bytes) -> bytes:
    """What the event at the end of a stream would have said."""
    whole = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    delta = {name: whole[name] for name in ENDED if name in whole}
    more = {name: whole[name] for name in ("usage", "context_management") if name in whole}
    return _encode({"type": "message_delta", "delta": delta, **more})


def _start(index: int, raw: msgspec.Raw, blocks: Blocks) -> list[Delta]:
    if not raw:
        raise TierError("the server started a block without saying which")
    block = _decode_block(raw)
    match block.type:
        case "text":
            return blocks.text(block.text or "") + blocks.cited(_pages(block.citations))
        case "thinking":
            return blocks.reasoning(block.thinking or "")
        case "tool_use":
            return [blocks.open_call(index, block.id or "", block.name or "", arguments_text(block.input))]
    if not block.type.endswith(PROVIDERS_OWN):
        blocks.unknown = blocks.unknown or f"blocks of the type {block.type!r}"
    blocks.own.add(index)
    return []


def _note_use(raw: msgspec.Raw, tally: Tally) -> None:
    """Count a use of a tool that the provider runs; the usage at the end counts them, but for callers that left."""
    block = _decode_block(raw)
    if block.type == "server_tool_use" and (name := f"{block.name}_requests") in _BILLED_TOOLS:
        tally.note_extras({name: tally.extras.get(name, 0) + 1})


def _delta(said: Event, blocks: Blocks) -> list[Delta]:
    delta = said.delta
    if delta is not None:
        if delta.text is not None:
            return blocks.reasoning(delta.text) if delta.type == "thinking_delta" else blocks.text(delta.text)
        if delta.thinking is not None:
            return blocks.reasoning(delta.thinking)
        if delta.partial_json is not None:
            return [] if said.index in blocks.own else blocks.arguments(said.index, arguments_text(delta.partial_json))
        if delta.citation:
            return blocks.cited(_pages([msgspec.json.decode(delta.citation)]))
        if delta.type == "signature_delta":
            return []
    blocks.unknown = blocks.unknown or f"deltas of the type {delta.type if delta else ''!r}"
    return []


def _pages(citations: Any) -> list[tuple[str, str]]:
    """Return address and title of each page among what is cited."""
    listed = [citation for citation in citations if isinstance(citation, dict)] if isinstance(citations, list) else []
    return [(str(citation.get("url") or ""), str(citation.get("title") or "")) for citation in listed]


def _end(said: BlockDelta | MessageBody, blocks: Blocks) -> list[Delta]:
    if said.stop_reason is None:
        return []
    blocks.check_form()
    return [Delta(finish_reason=finish_of(said.stop_reason), stop_sequence=said.stop_sequence)]


def _report(usage: MessageUsage | None, tally: Tally) -> None:
    """Store the counts. Those of a stream's end are totals, and may repeat the prompt's, in part or as 0."""
    if usage is None:
        return
    if usage.server_tool_use:
        tally.note_extras({name: usage.server_tool_use.get(name) for name in _BILLED_TOOLS})
    for name, value in (("speed", usage.speed), ("inference_geo", usage.inference_geo)):
        if value is not None:
            tally.note_extras({f"{name}={value[:MOST_NAME]}": 1})
    reported = tally.reported or Usage()
    prompt, cached, written = reported.prompt_tokens, reported.cached_tokens, reported.cache_write_tokens
    for_an_hour = reported.cache_write_1h_tokens
    told = (usage.input_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens)
    if any(told):
        counted = (prompt - cached - written, cached, written)
        fresh, cached, written = (old if new is None else new for old, new in zip(counted, told, strict=True))
        prompt = fresh + cached + written
    if usage.cache_creation is not None:
        for_an_hour = usage.cache_creation.ephemeral_1h_input_tokens or 0
    answered = reported.completion_tokens if usage.output_tokens is None else usage.output_tokens
    compacted = [iteration for iteration in usage.iterations or () if iteration.type == "compaction"]
    tally.report(
        Usage(
            prompt_tokens=(prompt or tally.prompt_tokens) + sum(iteration.input_tokens or 0 for iteration in compacted),
            completion_tokens=answered + sum(iteration.output_tokens or 0 for iteration in compacted),
            cached_tokens=cached,
            cache_write_tokens=written,
            cache_write_1h_tokens=for_an_hour,
        )
    )
