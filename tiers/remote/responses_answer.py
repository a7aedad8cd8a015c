"""Answers of OpenAI's Responses API, event by event or whole: as deltas, and as the items that they were."""

import json
from typing import Any

import msgspec

from tiers.citations import UrlCitation
from tiers.native_content import Form, NativeBlock, NativePiece
from tiers.remote.call_pieces import arguments_text
from tiers.remote.lenient_json import LenientDecoder
from tiers.remote.openai_format import WireError, parse_error
from tiers.remote.provider_format import Blocks, blocks_of
from tiers.remote.sse import ServerSentEvent
from tiers.remote.too_long import ServerSaidError
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
    annotations: list[UrlCitation] | None = None


class _Item(msgspec.Struct):
    type: str = ""
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: Any = None
    input: str | None = None
    content: list[_Part] | None = None
    summary: list[_Part] | None = None
    encrypted_content: str | None = None


class _Cached(msgspec.Struct):
    cached_tokens: int | None = None


class _Thought(msgspec.Struct):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost: float | None = None
    input_tokens_details: _Cached | None = None
    output_tokens_details: _Thought | None = None


class _Why(msgspec.Struct):
    reason: str | None = None


class _Response(msgspec.Struct):
    status: str | None = None
    output: list[msgspec.Raw] = []
    usage: _Usage | None = None
    incomplete_details: _Why | None = None
    error: WireError | str | None = None


class _Event(msgspec.Struct):
    type: str = ""
    output_index: int = 0
    summary_index: int = 0
    delta: Any = None
    item: msgspec.Raw = _NOTHING
    response: _Response | None = None
    message: str | None = None
    annotation: UrlCitation | None = None


def read_event(event: ServerSentEvent, tally: Tally) -> list[Delta] | None:
    """See `RemoteWire.read_event`."""
    if event.data.strip() == b"[DONE]":
        return None
    said = _decode(event.data, tally)
    said.type = said.type or event.event
    deltas, block = _read(said, blocks_of(tally), tally, event.data)
    if not tally.native or said.type in _FRAMES or said.response is not None:
        return deltas
    native = NativePiece(form=_FORM, event=_with_text(said, event.data), block=block)
    if not deltas:
        return [Delta(native=native)]
    deltas[-1].native = native
    return deltas


def _read(said: _Event, blocks: Blocks, tally: Tally, data: bytes) -> tuple[list[Delta], NativeBlock | None]:
    kind, text = said.type, said.delta if isinstance(said.delta, str) else ""
    if kind in _TEXTS:
        _answers(tally).add(said.output_index)
        return _refused(blocks.text(text)) if kind == _TEXTS[1] else blocks.text(text), None
    if kind == "response.output_text.annotation.added" and said.annotation is not None:
        return [Delta(annotations=[said.annotation])], None
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
        return _closed(said.output_index, item, blocks, tally), _native(said.item, item)
    if kind in ("response.failed", "error"):
        error = said.response.error if said.response is not None else None
        raise ServerSaidError(_said(error) or parse_error(data))
    if kind in ("response.completed", "response.incomplete") and said.response is not None:
        unsaid = [] if blocks.said else _items(said.response, blocks, tally)
        return unsaid + _end(said.response, blocks, tally), None
    if not kind.startswith("response."):
        blocks.unknown = blocks.unknown or f"events of the type {kind!r}"
    return [], None


def read_whole(body: bytes, tally: Tally) -> list[Delta]:
    """See `RemoteWire.read_whole`."""
    response, blocks = _decode_whole(body, tally), blocks_of(tally)
    if response.error or response.status == "failed":
        raise ServerSaidError(_said(response.error) or WireError("the response failed, and does not say why"))
    return _items(response, blocks, tally) + _end(response, blocks, tally)


def _items(response: _Response, blocks: Blocks, tally: Tally) -> list[Delta]:
    """The deltas of all items at once."""
    deltas = list[Delta]()
    for index, raw in enumerate(response.output):
        item = _decode_item(raw, tally)
        if item.type == "reasoning":
            deltas += blocks.reasoning("\n\n".join(part.text or "" for part in item.summary or item.content or ()))
        elif item.type == "function_call":
            deltas.append(_open(index, item, blocks))
        deltas += _closed(index, item, blocks, tally)
        if tally.native:
            deltas.append(Delta(native=NativePiece(form=_FORM, block=_native(raw, item))))
    return deltas


def _refused(deltas: list[Delta]) -> list[Delta]:
    for delta in deltas:
        delta.refusal = True
    return deltas


def _said(error: WireError | str | None) -> WireError | None:
    said = WireError(error) if isinstance(error, str) else error
    return said if said is not None and said.message else None


def _answers(tally: Tally) -> set[int]:
    """The items of whose text pieces have come."""
    found: set[int] = tally.notes.setdefault("answers", set())
    return found


def _open(index: int, item: _Item, blocks: Blocks) -> Delta:
    given = arguments_text(item.arguments) or "{}"
    return blocks.open_call(index, item.call_id or item.id or "", called_name(item.name or "", item.namespace), given)


def _closed(index: int, item: _Item, blocks: Blocks, tally: Tally) -> list[Delta]:
    """What is missing at the end of an item: some servers give its text or its arguments at once, and of a custom
    tool's call nothing else is known before."""
    if item.type == "message" and index not in _answers(tally):
        deltas = list[Delta]()
        for part in item.content or ():
            deltas += blocks.text(part.text or "") + _refused(blocks.text(part.refusal or ""))
            if part.annotations:
                deltas.append(Delta(annotations=part.annotations))
        return deltas
    if item.type == "function_call" and index not in blocks.calls:
        return [_open(index, item, blocks), *blocks.close(index)]
    if item.type == "function_call" and index in blocks.without_arguments:
        return blocks.arguments(index, arguments_text(item.arguments) or "{}")
    if item.type != "custom_tool_call":
        return []
    opened = blocks.open_call(index, item.call_id or "", called_name(item.name or "", item.namespace))
    call: ToolCallDelta = opened.tool_calls[0]
    arguments = json.dumps({"input": item.input or ""}, ensure_ascii=False)
    opened.tool_calls = [msgspec.structs.replace(call, arguments=arguments)]
    blocks.without_arguments.pop(index, None)
    return [opened]


def called_name(name: str, namespace: str | None) -> str:
    """The name of a call as chats know it: with its namespace before it."""
    if namespace is None:
        return name
    return namespace + name if namespace.endswith("__") else f"{namespace}__{name}"


def _with_text(said: _Event, data: bytes) -> bytes:
    """The event, with the arguments of its item as a text."""
    if not said.item:
        return data
    given = bytes(said.item)
    text = _native(said.item, _decode_item(said.item)).json
    return data if text == given else data.replace(given, text, 1)


def _native(raw: msgspec.Raw, item: _Item) -> NativeBlock:
    given = bytes(raw)
    if item.type == "function_call" and isinstance(item.arguments, dict):
        # Clients read the arguments as a text, and some servers give an object.
        arguments = arguments_text(item.arguments)
        given = msgspec.json.encode(msgspec.json.decode(raw, type=dict[str, Any]) | {"arguments": arguments})
    return NativeBlock(json=given, type=item.type, seal=item.encrypted_content or "")


def _end(response: _Response, blocks: Blocks, tally: Tally) -> list[Delta]:
    blocks.check_form()
    if response.usage is not None:
        _report(response.usage, tally)
    reason: FinishReason = "tool_calls" if blocks.calls else "stop"
    if response.status == "incomplete":
        why = response.incomplete_details and response.incomplete_details.reason
        reason = "content_filter" if why == "content_filter" else "length"
    return [Delta(finish_reason=reason)]


def _report(usage: _Usage, tally: Tally) -> None:
    read, thought = usage.input_tokens_details, usage.output_tokens_details
    if usage.output_tokens is None:
        return
    tally.report(
        Usage(
            prompt_tokens=usage.input_tokens or tally.prompt_tokens,
            completion_tokens=usage.output_tokens,
            cached_tokens=(read.cached_tokens or 0) if read is not None else 0,
            reasoning_tokens=(thought.reasoning_tokens or 0) if thought is not None else 0,
            cost_usd=max(0.0, usage.cost or 0.0),
        )
    )


_decode = LenientDecoder(_Event, "an event of a response")
_decode_item = LenientDecoder(_Item, "an item of a response")
_decode_whole = LenientDecoder(_Response, "a response")
