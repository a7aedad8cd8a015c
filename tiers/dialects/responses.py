"""Requests and answers in the form of OpenAI's Responses API.

Items that a caller gave in it go on as they are; a chat is said in items. The server stores nothing: the whole
conversation is sent, with its sealed reasoning. Answers come event by event or whole: as deltas, and as the items that
they were.
"""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

from tiers.catalog.tier_spec import RemoteSpec
from tiers.conversation import (
    Content,
    Media,
    Opaque,
    OpaquePiece,
    ReasoningEffort,
    Text,
    Turn,
    UrlCitation,
)
from tiers.dialects.chat_chunk import TICKS
from tiers.dialects.dialect import THINKING_TOKENS, Blocks, blocks_of, edited_tools, fields_of, overlaid
from tiers.dialects.event_stream import ServerSentEvent
from tiers.dialects.lenient_json import LenientDecoder, arguments_text
from tiers.dialects.responses_schemas import (
    FORM,
    SAME_FIELDS,
    SEALED_REASONING,
    ChosenTool,
    Part,
    Reasoning,
    ResponsesRequest,
    SaidItem,
    TextFormat,
    TextOptions,
    WrittenItem,
    WrittenTool,
)
from tiers.dialects.responses_tools import flat_name
from tiers.dialects.rules import NEUTRAL, sampling_of
from tiers.dialects.server_error import ErrorObject, ServerSaidError, parse_error
from tiers.dialects.usage_counter import MOST_NAME, Tally
from tiers.errors import TierError
from tiers.tier import Delta, FinishReason, ModelRequest, Usage

_PASSED = ("metadata", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "safety_identifier",
           "service_tier", "user")  # fmt: skip
# What of the sampling parameters the API has.
_SAMPLING = ("temperature", "top_p")
# Custom tools reach a server as they are in this form alone.
_NEEDING = ("reasoning", "context_management")
LEAST_LIMIT = 16
"""The API refuses smaller ones, with which clients ask whether a server is there."""
_NO_PARTS = ("audio", "video")
# Items that a chat can say.
_OF_CHATS = (
    "message",
    "reasoning",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
)


def is_expressible(request: ModelRequest) -> bool:
    """Whether the API has all that a chat asks for."""
    sampling = request.sampling
    others = sampling_of(msgspec.structs.replace(sampling, temperature=1.0, top_p=1.0)) == NEUTRAL
    bound = sampling.logit_bias or sampling.logprobs is not None or request.stop or request.n > 1
    audio = any(block.kind in _NO_PARTS for message in request.messages or () for block in message.media)
    return request.messages is not None and others and not bound and not audio


def is_needed(request: ModelRequest) -> bool:
    """Whether the request loses something as a chat: its reasoning next to tools, or what only this API has."""
    if request.is_in(FORM):
        caller_fields = request.fields_in(FORM)
        if request.server_tools or any(name in caller_fields for name in _NEEDING) or _has_custom_tools(caller_fields):
            return True
    elif request.tooling is not None and effort_of(request) not in (None, "none"):
        return True
    for message in request.messages or ():
        if any(item.json and (item.seal or item.type not in _OF_CHATS) for item in message.written(FORM)):
            return True
        if any(map(_is_file_address, message.media)):
            return True
    return False


def _is_file_address(block: Media) -> bool:
    """Whether the part is a file by its address, which only this API reads."""
    return block.kind == "file" and str((block.data or {}).get("file_data"))[:4].lower() == "http"


# Not all models have `max`.
_EFFORTS: tuple[ReasoningEffort, ...] = ("minimal", "low", "medium", "high")


def effort_of(request: ModelRequest) -> ReasoningEffort | None:
    """The effort that was asked for, or else the least one that thinks as many tokens as it may."""
    if request.reasoning_effort is not None or request.reasoning_budget is None:
        return request.reasoning_effort
    if request.reasoning_budget == 0:
        return "none"
    return next((effort for effort in _EFFORTS if THINKING_TOKENS[effort] >= request.reasoning_budget), "xhigh")


def _has_custom_tools(fields: dict[str, bytes]) -> bool:
    tools = fields.get("tools")
    return tools is not None and any(
        tool.get("type") != "function" for tool in msgspec.json.decode(tools, type=list[dict[str, Any]])
    )


def request_body(
    remote: RemoteSpec, request: ModelRequest, max_tokens: int | None, *, streamed: bool
) -> dict[str, Any]:
    """Return the body of a request."""
    sampling = {name: getattr(request.sampling, name) for name in _SAMPLING}
    asked = ResponsesRequest(
        model=remote.model,
        input=[item for message in request.messages or () for item in _items(message)],
        stream=streamed,
        store=False,
        include=_include(request),
        max_output_tokens=None if max_tokens is None else max(max_tokens, LEAST_LIMIT),
        **{name: value for name, value in sampling.items() if value != 1.0 or name in request.given},
        **{name: request.passed[name] for name in _PASSED if name in request.passed},
        **({} if request.is_in(FORM) else _asked(request)),
    )
    return fields_of(asked) | (_same_fields(request) if request.is_in(FORM) else {})


def _same_fields(request: ModelRequest) -> dict[str, Any]:
    """Return what a caller of this API asks for as it is, but for what its server takes in another form."""
    caller_fields = request.fields_in(FORM)
    fields: dict[str, Any] = {name: msgspec.Raw(caller_fields[name]) for name in SAME_FIELDS if name in caller_fields}
    fields |= edited_tools(caller_fields, request.tooling, "parameters")
    fields["reasoning"] = overlaid(caller_fields.get("reasoning", b"{}"), effort=request.reasoning_effort)
    if fields["reasoning"] in (None, b"{}"):
        del fields["reasoning"]
    if request.tooling is not None and "parallel_tool_calls" not in request.given:
        # Its server refuses the field.
        fields.pop("parallel_tool_calls", None)
    return fields


def _include(request: ModelRequest) -> list[str]:
    included = request.fields_in(FORM).get("include", b"[]")
    return list(dict.fromkeys([SEALED_REASONING, *msgspec.json.decode(included, type=list[str])]))


def _asked(request: ModelRequest) -> dict[str, Any]:
    """What a chat asks for of reasoning, tools and the form of the answer."""
    fields: dict[str, Any] = {}
    if (effort := effort_of(request)) is not None:
        fields["reasoning"] = Reasoning(effort=effort)
    form = request.response_format
    text = TextOptions(
        format=None if form is None else TextFormat(type=form["type"], **form.get("json_schema") or {}),
        verbosity=request.passed.get("verbosity"),
    )
    if text != TextOptions():
        fields["text"] = text
    if (tooling := request.tooling) is None:
        return fields
    fields["tools"] = [
        WrittenTool(
            type="function",
            name=tool.name,
            description=tool.description,
            parameters=tool.schema,
            strict=tool.strict,
        )
        for tool in tooling.tools
    ]
    if tooling.choice == "named":
        fields["tool_choice"] = ChosenTool(type="function", name=tooling.name or "")
    elif tooling.choice != "auto" or "tool_choice" in request.given:
        fields["tool_choice"] = tooling.choice
    if "parallel_tool_calls" in request.given or not tooling.parallel:
        fields["parallel_tool_calls"] = tooling.parallel
    return fields


def _items(message: Turn) -> Iterator[Any]:
    if said := message.written(FORM):
        yield from (msgspec.Raw(block.json) for block in said if block.json)
        return
    if message.role == "tool":
        output = list(map(_part, message.parts)) or message.text
        yield WrittenItem(type="function_call_output", call_id=message.call_id or "", output=output)
        return
    if content := list(map(_part, message.parts)) or message.text:
        yield WrittenItem(type="message", role=message.role, content=content)
    for call in message.calls:
        yield WrittenItem(type="function_call", call_id=call.id, name=call.name, arguments=call.arguments)


def _part(block: Content) -> Part:
    mark = block.breakpoint
    if isinstance(block, Text):
        return Part(type="input_text", text=block.text, prompt_cache_breakpoint=mark)
    data = block.data or {}
    if block.kind == "image":
        url, detail = data.get("url"), data.get("detail")
        return Part(type="input_image", image_url=url, detail=detail, prompt_cache_breakpoint=mark)
    if _is_file_address(block):
        return Part(type="input_file", file_url=data["file_data"], prompt_cache_breakpoint=mark)
    names = ("file_data", "file_id", "filename")
    return Part(type="input_file", prompt_cache_breakpoint=mark, **{name: data.get(name) for name in names})


_NOTHING = msgspec.Raw(b"")
# Events that are not of an item: the gateway's own take their place.
_FRAMES = ("response.created", "response.in_progress", "response.queued", "keepalive")
_THOUGHTS = ("response.reasoning_summary_text.delta", "response.reasoning_text.delta", "response.reasoning.delta")
_TEXTS = ("response.output_text.delta", "response.refusal.delta")
_ENDS = ("response.completed", "response.incomplete", "response.done")
_CALLS = ("function_call", "custom_tool_call")
# Notes of an answer: the items that were added, those that are done, and whether arguments of no known call came.
_ADDED, _DONE, _UNNAMED = "items added", "items done", "unnamed arguments"


class _Cached(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _Thought(msgspec.Struct):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost: float | None = None
    cost_in_usd_ticks: int | None = None
    input_tokens_details: _Cached | None = None
    output_tokens_details: _Thought | None = None


class _Why(msgspec.Struct):
    reason: str | None = None


class _Response(msgspec.Struct):
    status: str | None = None
    output: list[msgspec.Raw] = []
    output_text: str | None = None
    usage: _Usage | None = None
    service_tier: str | None = None
    incomplete_details: _Why | None = None
    error: ErrorObject | str | None = None


class _Event(msgspec.Struct):
    type: str = ""
    item_id: str | None = None
    output_index: int = 0
    summary_index: int = 0
    delta: Any = None
    text: str | None = None
    arguments: Any = None
    item: msgspec.Raw = _NOTHING
    response: _Response | None = None
    message: str | None = None
    annotation: UrlCitation | None = None


def read_event(event: ServerSentEvent, tally: Tally) -> list[Delta] | None:
    if (said := _decode.event(event, tally)) is None:
        return None
    said.type = said.type or event.event
    deltas, block = _read(said, blocks_of(tally), tally, event.data)
    if not tally.opaque or said.type in _FRAMES or said.response is not None:
        return deltas
    opaque = OpaquePiece(dialect=FORM, event=_with_text(said, event.data), block=block)
    if not deltas:
        return [Delta(opaque=opaque)]
    for delta in deltas[:-1]:
        # The event says it.
        delta.opaque = OpaquePiece(dialect=FORM)
    deltas[-1].opaque = opaque
    return deltas


def _read(said: _Event, blocks: Blocks, tally: Tally, data: bytes) -> tuple[list[Delta], Opaque | None]:
    kind, text = said.type, said.delta if isinstance(said.delta, str) else ""
    if kind in _TEXTS:
        _answers(tally).update((said.output_index, said.item_id or said.output_index))
        return _refused(blocks.text(text)) if kind == _TEXTS[1] else blocks.text(text), None
    item_key = said.item_id or said.output_index
    if kind == "response.output_text.done" and said.text and not {item_key, said.output_index} & _answers(tally):
        _answers(tally).update((said.output_index, item_key))
        return blocks.text(said.text), None
    if kind == "response.output_text.annotation.added" and said.annotation is not None:
        return [Delta(annotations=[said.annotation])], None
    if kind in _THOUGHTS:
        _answers(tally).update((said.output_index, item_key))
        return blocks.reasoning(text), None
    if kind == "response.reasoning_summary_part.added" and said.summary_index:
        return blocks.reasoning("\n\n"), None
    if kind == "response.function_call_arguments.delta":
        if said.output_index in blocks.calls:
            return blocks.arguments(said.output_index, text), None
        # Some servers name a call at its end alone, with all of its arguments.
        tally.notes[_UNNAMED] = True
    if kind == "response.function_call_arguments.done" and said.output_index in blocks.without_arguments:
        return blocks.arguments(said.output_index, arguments_text(said.arguments)), None
    if kind == "response.output_item.added" and said.item:
        tally.notes.setdefault(_ADDED, set()).add(said.output_index)
        item = _decode_item(said.item)
        named = item.type == "function_call" and item.name
        return ([_open(said.output_index, item, blocks)] if named else []), None
    if kind == "response.output_item.done" and said.item:
        tally.notes.setdefault(_DONE, []).append(said.output_index)
        item = _decode_item(said.item)
        _note_billed(said.output_index, item, tally)
        return _closed(said.output_index, item, blocks, tally), _block_of(said.item, item)
    if kind in ("response.failed", "error"):
        error = said.response.error if said.response is not None else None
        raise ServerSaidError(_said(error) or parse_error(data))
    if kind in _ENDS:
        response = said.response or _Response()
        unsaid = _left_out if blocks.said else _answered_items
        return unsaid(response, blocks, tally) + _end(response, blocks, tally), None
    if not kind.startswith("response.") and kind not in _FRAMES:
        blocks.not_known(data, f"events of the type {kind!r}")
    return [], None


def read_whole(body: bytes, tally: Tally) -> list[Delta]:
    response, blocks = _decode_whole(body, tally), blocks_of(tally)
    if response.status is None and not response.output:
        blocks.not_known(body, "no output")
    return _answered_items(response, blocks, tally) + _end(response, blocks, tally)


def _answered_items(response: _Response, blocks: Blocks, tally: Tally) -> list[Delta]:
    """The deltas of all items at once."""
    deltas = list[Delta]()
    for index, raw in enumerate(response.output):
        item = _decode_item(raw, tally)
        _note_billed(index, item, tally)
        if item.type == "function_call":
            deltas.append(_open(index, item, blocks))
        deltas += _closed(index, item, blocks, tally)
        if tally.opaque:
            deltas.append(Delta(opaque=OpaquePiece(dialect=FORM, block=_block_of(raw, item))))
    return deltas or blocks.text(response.output_text or "")


def _left_out(response: _Response, blocks: Blocks, tally: Tally) -> list[Delta]:
    """The calls, and where there was no text the texts, of which no event has come; for a caller of the same API the
    events of all items whose ends have not come."""
    deltas: list[Delta] = []
    items = [_decode_item(raw, tally) for raw in response.output]
    missing = sum(item.type in _CALLS for item in items) - blocks.num_opened
    for index, item in enumerate(items):
        _note_billed(index, item, tally)
        if item.type in _CALLS and missing > 0 and not blocks.has_opened(item.call_id, item.id):
            missing -= 1
            deltas += _closed(~index, item, blocks, tally)
        elif item.type in ("message", "") and not tally.texts:
            deltas += _closed(~index, item, blocks, tally)
        elif index in blocks.without_arguments:
            deltas += _closed(index, item, blocks, tally)
    done = tally.notes.get(_DONE, [])
    if not tally.opaque or len(done) >= len(items):
        return deltas
    for delta in deltas:
        # The events below say it.
        delta.opaque = OpaquePiece(dialect=FORM)
    for index, raw in enumerate(response.output):
        if index in done:
            continue
        block = _block_of(raw, _decode_item(raw, tally))
        for kind in ("added", "done")[index in tally.notes.get(_ADDED, ()) :]:
            event = {"type": f"response.output_item.{kind}", "output_index": index, "item": msgspec.Raw(block.json)}
            own = block if kind == "done" else None
            deltas.append(Delta(opaque=OpaquePiece(dialect=FORM, event=msgspec.json.encode(event), block=own)))
    return deltas


def _refused(deltas: list[Delta]) -> list[Delta]:
    for delta in deltas:
        delta.refusal = True
    return deltas


def _said(error: ErrorObject | str | None) -> ErrorObject | None:
    said = ErrorObject(error) if isinstance(error, str) else error
    return said if said is not None and said.message else None


def _answers(tally: Tally) -> set[Any]:
    """The places and ids of items of whose text pieces have come."""
    answered: set[Any] = tally.notes.setdefault("answers", set())
    return answered


def _open(index: int, item: SaidItem, blocks: Blocks) -> Delta:
    arguments = arguments_text(item.arguments) or "{}"
    return blocks.open_call(index, item.call_id or item.id or "", flat_name(item.name or "", item.namespace), arguments)


def _closed(index: int, item: SaidItem, blocks: Blocks, tally: Tally) -> list[Delta]:
    """What is missing at the end of an item: some servers give its text or its arguments at once, and of a custom
    tool's call nothing else is known before."""
    if item.type in ("message", "") and not {index, item.id} & _answers(tally):
        deltas = list[Delta]()
        for part in item.parts:
            deltas += blocks.text(part.text or "") + _refused(blocks.text(part.refusal or ""))
            if part.annotations:
                deltas.append(Delta(annotations=part.annotations))
        return deltas
    if item.type == "reasoning" and not {index, item.id} & _answers(tally):
        return blocks.reasoning("\n\n".join(part.text or "" for part in item.summary or item.parts))
    if item.type == "function_call" and index not in blocks.calls:
        return [_open(index, item, blocks), *blocks.close(index)]
    if item.type == "function_call" and index in blocks.without_arguments:
        return blocks.arguments(index, arguments_text(item.arguments)) or blocks.close(index)
    if item.type != "custom_tool_call":
        return []
    arguments = json.dumps({"input": item.input or ""}, ensure_ascii=False)
    return [blocks.whole_call(index, item.call_id or "", flat_name(item.name or "", item.namespace), arguments)]


def _with_text(said: _Event, data: bytes) -> bytes:
    """The event, with the arguments of its item as a text."""
    if not said.item:
        return data
    raw = bytes(said.item)
    text = _block_of(said.item, _decode_item(said.item)).json
    return data if text == raw else data.replace(raw, text, 1)


def _block_of(raw: msgspec.Raw, item: SaidItem) -> Opaque:
    encoded = bytes(raw)
    if item.type == "function_call" and isinstance(item.arguments, dict):
        # Clients read the arguments as a text, and some servers give an object.
        arguments = arguments_text(item.arguments)
        encoded = msgspec.json.encode(msgspec.json.decode(raw, type=dict[str, Any]) | {"arguments": arguments})
    return Opaque(FORM, encoded, item.type, item.encrypted_content or "")


def _note_billed(index: int, item: SaidItem, tally: Tally) -> None:
    """Note an item that the provider bills by its number. Of searches those are billed that search, not those that read
    a page; of code, each container that it ran in (https://platform.openai.com/docs/pricing, read 2026-11)."""
    key: Any = index
    match item.type:
        case "web_search_call":
            if isinstance(item.action, dict) and item.action.get("type", "search") != "search":
                return
        case "code_interpreter_call":
            key = item.container_id
        case "file_search_call":
            pass
        case _:
            return
    seen: dict[Any, str] = tally.notes.setdefault("billed items", {})
    seen[key] = "code_interpreter_container" if item.type == "code_interpreter_call" else item.type
    tally.note_extras(Counter(seen.values()))


def _end(response: _Response, blocks: Blocks, tally: Tally) -> list[Delta]:
    if response.error or response.status in ("failed", "cancelled"):
        raise ServerSaidError(_said(response.error) or ErrorObject(f"{response.status}, and it is not said why"))
    blocks.check_form()
    if _UNNAMED in tally.notes and not blocks.calls:
        raise TierError("the server sent arguments of a call that it has not named")
    if response.service_tier is not None:
        tally.note_extras({f"service_tier={response.service_tier[:MOST_NAME]}": 1})
    if response.usage is not None:
        _report(response.usage, tally)
    elif not blocks.said and response.status == "completed" and not (tally.opaque and _has_items(response, tally)):
        raise TierError("the response has neither output nor counts")
    reason: FinishReason = "tool_calls" if blocks.calls else "stop"
    if response.status == "incomplete":
        why = response.incomplete_details and response.incomplete_details.reason
        reason = "content_filter" if why == "content_filter" else "length"
    return [Delta(finish_reason=reason)]


def _has_items(response: _Response, tally: Tally) -> bool:
    """Whether there are items, which a caller of the same API gets whatever they say."""
    return bool(response.output or tally.notes.get(_DONE))


def _report(usage: _Usage, tally: Tally) -> None:
    read, thought = usage.input_tokens_details, usage.output_tokens_details
    if usage.output_tokens is None:
        return
    tally.report(
        Usage(
            prompt_tokens=usage.input_tokens or tally.prompt_tokens,
            completion_tokens=usage.output_tokens,
            cached_tokens=(read.cached_tokens or 0) if read is not None else 0,
            cache_write_tokens=(read.cache_write_tokens or 0) if read is not None else 0,
            reasoning_tokens=(thought.reasoning_tokens or 0) if thought is not None else 0,
            cost_usd=max(0.0, usage.cost or (usage.cost_in_usd_ticks or 0) / TICKS),
        )
    )


_decode = LenientDecoder(_Event, "an event of a response")
_decode_item = LenientDecoder(SaidItem, "an item of a response")
_decode_whole = LenientDecoder(_Response, "a response")
