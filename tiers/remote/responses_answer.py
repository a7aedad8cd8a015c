"""Answers of OpenAI's Responses API, event by event or whole: as deltas, and as the items that they were."""

import json
from typing import Any

import msgspec

from inference_core.io.json_errors import JSON_ERRORS
from tiers.errors import TierError
from tiers.native_content import Form, NativeBlock, NativePiece
from tiers.remote.openai_format import WireError, parse_error
from tiers.remote.provider_format import Blocks
from tiers.remote.sse import ServerSentEvent
from tiers.remote.usage_counter import Tally
from tiers.tier import Delta, FinishReason, Usage
from tiers.tool_types import ToolCallDelta

_FORM: Form = "responses"
_NOTHING = msgspec.Raw(b"")
# Events that are not of an item: the gateway's own take their place.
_FRAMES = ("response.created", "response.in_progress", "response.queued")
_THOUGHTS = ("response.reasoning_summary_text.delta", "response.reasoning_text.delta")
_TEXTS = ("response.output_text.delta", "response.refusal.delta")


class _Part(msgspec.Struct):
    type: str = ""
    text: str | None = None
    refusal: str | None = None


class _Item(msgspec.Struct):
    type: str
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    input: str | None = None
    content: list[_Part] | None = None
    summary: list[_Part] | None = None
    encrypted_content: str | None = None


class _Cached(msgspec.Struct):
    cached_tokens: int = 0


class _Thought(msgspec.Struct):
    reasoning_tokens: int = 0


class _Usage(msgspec.Struct):
    input_tokens: int = 0
    output_tokens: int = 0
    input_tokens_details: _Cached | None = None
    output_tokens_details: _Thought | None = None


class _Why(msgspec.Struct):
    reason: str | None = None


class _Response(msgspec.Struct):
    status: str | None = None
    output: list[msgspec.Raw] = []
    usage: _Usage | None = None
    incomplete_details: _Why | None = None
    error: WireError | None = None


class _Event(msgspec.Struct):
    type: str
    output_index: int = 0
    summary_index: int = 0
    delta: Any = None
    item: msgspec.Raw = _NOTHING
    response: _Response | None = None
    message: str | None = None


def read_event(event: ServerSentEvent, tally: Tally) -> list[Delta] | None:
    """See `RemoteWire.read_event`."""
    try:
        said = _decode(event.data)
        deltas, block = _read(said, _blocks(tally), tally, event.data)
    except JSON_ERRORS as error:
        shown = event.data[:200].decode(errors="replace")
        raise TierError(f"the server sent what is not an event of a response ({error}): {shown!r}") from error
    if not tally.native or said.type in _FRAMES or said.response is not None:
        return deltas
    native = NativePiece(form=_FORM, event=event.data, block=block)
    if not deltas:
        return [Delta(native=native)]
    deltas[-1].native = native
    return deltas


def _read(said: _Event, blocks: Blocks, tally: Tally, data: bytes) -> tuple[list[Delta], NativeBlock | None]:
    kind, text = said.type, said.delta if isinstance(said.delta, str) else ""
    if kind in _TEXTS:
        return blocks.text(text), None
    if kind in _THOUGHTS:
        return blocks.reasoning(text), None
    if kind == "response.reasoning_summary_part.added" and said.summary_index:
        return blocks.reasoning("\n\n"), None
    if kind == "response.function_call_arguments.delta":
        return blocks.arguments(said.output_index, text), None
    if kind == "response.output_item.added" and said.item:
        item = _decode_item(said.item)
        return ([_open(said.output_index, item, blocks)] if item.type == "function_call" else []), None
    if kind == "response.output_item.done" and said.item:
        item = _decode_item(said.item)
        return _closed(said.output_index, item, blocks), _native(said.item, item)
    if kind in ("response.failed", "error"):
        error = said.response.error if said.response is not None else None
        raise TierError((error and error.message) or said.message or parse_error(data).message)
    if kind in ("response.completed", "response.incomplete") and said.response is not None:
        return _end(said.response, blocks, tally), None
    if not kind.startswith("response."):
        blocks.unknown = blocks.unknown or f"events of the type {kind!r}"
    return [], None


def read_whole(body: bytes, tally: Tally) -> list[Delta]:
    """See `RemoteWire.read_whole`."""
    try:
        response = _decode_whole(body)
        items = [_decode_item(raw) for raw in response.output]
    except JSON_ERRORS as error:
        shown = body[:200].decode(errors="replace")
        raise TierError(f"the server sent what is not a response ({error}): {shown!r}") from error
    if response.error is not None:
        raise TierError(response.error.message)
    blocks, deltas = _blocks(tally), list[Delta]()
    for index, (raw, item) in enumerate(zip(response.output, items, strict=True)):
        if item.type == "reasoning":
            deltas += blocks.reasoning("\n\n".join(part.text or "" for part in item.summary or item.content or ()))
        elif item.type == "message":
            deltas += blocks.text("".join(part.text or part.refusal or "" for part in item.content or ()))
        elif item.type == "function_call":
            deltas.append(_open(index, item, blocks))
            deltas += blocks.arguments(index, item.arguments or "")
        deltas += _closed(index, item, blocks)
        if tally.native:
            deltas.append(Delta(native=NativePiece(form=_FORM, block=_native(raw, item))))
    return deltas + _end(response, blocks, tally)


def _open(index: int, item: _Item, blocks: Blocks) -> Delta:
    return blocks.open_call(index, item.call_id or item.id or "", called_name(item.name or "", item.namespace))


def _closed(index: int, item: _Item, blocks: Blocks) -> list[Delta]:
    """What is missing at the end of an item: a custom tool's call is known by now."""
    if item.type != "custom_tool_call":
        return blocks.close(index)
    opened = blocks.open_call(index, item.call_id or "", called_name(item.name or "", item.namespace))
    call: ToolCallDelta = opened.tool_calls[0]
    arguments = json.dumps({"input": item.input or ""}, ensure_ascii=False)
    opened.tool_calls = [msgspec.structs.replace(call, arguments=arguments)]
    blocks.without_arguments.discard(index)
    return [opened]


def called_name(name: str, namespace: str | None) -> str:
    """The name of a call as chats know it: with its namespace before it."""
    if namespace is None:
        return name
    return namespace + name if namespace.endswith("__") else f"{namespace}__{name}"


def _native(raw: msgspec.Raw, item: _Item) -> NativeBlock:
    return NativeBlock(json=bytes(raw), type=item.type, seal=item.encrypted_content or "")


def _end(response: _Response, blocks: Blocks, tally: Tally) -> list[Delta]:
    blocks.check_form()
    if response.usage is not None:
        usage = response.usage
        tally.report(
            Usage(
                prompt_tokens=usage.input_tokens or tally.prompt_tokens,
                completion_tokens=usage.output_tokens,
                cached_tokens=usage.input_tokens_details.cached_tokens if usage.input_tokens_details else 0,
                reasoning_tokens=usage.output_tokens_details.reasoning_tokens if usage.output_tokens_details else 0,
            )
        )
    reason: FinishReason = "tool_calls" if blocks.calls else "stop"
    if response.status == "incomplete":
        why = response.incomplete_details and response.incomplete_details.reason
        reason = "content_filter" if why == "content_filter" else "length"
    return [Delta(finish_reason=reason)]


def _blocks(tally: Tally) -> Blocks:
    blocks: Blocks = tally.notes.setdefault("blocks", Blocks())
    return blocks


_decode = msgspec.json.Decoder(_Event).decode
_decode_item = msgspec.json.Decoder(_Item).decode
_decode_whole = msgspec.json.Decoder(_Response).decode
