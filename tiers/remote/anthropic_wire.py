"""Anthropic's Messages API as a remote wire (version 2023-06-01)."""

from typing import Any
from urllib.parse import quote

import msgspec

from tiers.catalog.tier_spec import RemoteSpec
from tiers.content_parts import ContentPart
from tiers.errors import TierError, TierRequestError
from tiers.remote.openai_format import WireError, parse_error
from tiers.remote.optional_fields import BUDGET, dropped_fields
from tiers.remote.provider_format import (
    CONTEXT_CODE,
    MIN_THINKING_TOKENS,
    THINKING_TOKENS,
    Blocks,
    Media,
    alternating,
    answer_schema,
    blocks_of,
    call_arguments,
    check_provider,
    media_of,
    media_parts,
    missing_model,
    published_by,
    read_json,
    system_text,
)
from tiers.remote.sse import ServerSentEvent
from tiers.remote.usage_counter import Tally
from tiers.remote.wire import RemoteWire, WireCall
from tiers.tier import ChatMessage, Delta, FinishReason, GenerationRequest, Usage

NAME = "Anthropic"
VERSION = b"2023-06-01"
# Older models take a budget of thinking tokens; newer ones think as much as `effort` lets them.
BUDGET_MODELS = (
    "claude-3",
    "claude-haiku-4-5",
    "claude-opus-4-0",
    "claude-opus-4-1",
    "claude-opus-4-2025",
    "claude-opus-4-5",
    "claude-sonnet-4-0",
    "claude-sonnet-4-2025",
    "claude-sonnet-4-5",
)
# By OpenAI's names: which classes of service Anthropic's API has.
SERVICE_TIERS = {"auto": "auto", "default": "standard_only"}
_KNOWN = frozenset({"temperature", "top_p", "top_k", "reasoning_effort", BUDGET, "parallel_tool_calls"})
EFFORTS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh"}
_CACHED = {"type": "ephemeral"}
_EVENT, _MESSAGE = f"an event of {NAME}'s", f"a message of {NAME}'s"


class AnthropicWire(RemoteWire):
    """Anthropic, or another server with its Messages API."""

    one_choice = True
    needs_limit = True

    def __init__(self, remote: RemoteSpec) -> None:
        self._remote = remote
        self.health_path = self.model_path = f"models/{quote(remote.model, safe='')}"

    def key_headers(self, key: str) -> list[tuple[bytes, bytes]]:
        """See `RemoteWire.key_headers`."""
        version = [(b"anthropic-version", VERSION)]
        return [*version, (b"x-api-key", key.encode())] if key else version

    def model_problem(self, status: int, body: bytes) -> str | None:
        """See `RemoteWire.model_problem`. Servers other than Anthropic's may not list models."""
        if status == 404 and b"not_found_error" in body:
            return missing_model(self._remote.model, body)
        return None

    def published_output(self, body: bytes) -> int | None:
        """See `RemoteWire.published_output`."""
        return published_by(body, ("max_tokens", "max_output_tokens"))

    def is_about_model(self, error: WireError) -> bool:
        """See `RemoteWire.is_about_model`: an account without credit is refused with 400."""
        return "credit balance" in error.message

    def read_error(self, body: bytes) -> WireError:
        """See `RemoteWire.read_error`."""
        error = parse_error(body)
        if "prompt is too long" in error.message or "exceed context limit" in error.message:
            error.param, error.code = "messages", CONTEXT_CODE
        return error

    def check(self, request: GenerationRequest) -> None:
        """See `RemoteWire.check`."""
        check_provider(request, NAME)
        if answer_schema(request, NAME) == {}:
            raise TierRequestError(
                f"response_format: {NAME} takes a json_schema, not any JSON object; give a schema, or name another "
                "tier",
                "response_format",
            )
        for part in media_parts(request):
            _source(part)

    def call(self, request: GenerationRequest, max_tokens: int | None) -> WireCall:
        """See `RemoteWire.call`."""
        assert max_tokens is not None, "the API needs a limit"
        messages = request.messages or []
        streamed = not request.whole or self._remote.stream_whole
        body: dict[str, Any] = {
            "model": self._remote.model,
            "max_tokens": max_tokens,
            "messages": message_turns(messages),
            "stream": streamed,
        }
        if system := system_text(messages):
            body["system"] = system
        if request.stop:
            body["stop_sequences"] = list(request.stop)
        body |= _tools(request)
        if (schema := answer_schema(request, NAME)) is not None:
            body["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
        thinking = thinking_fields(self._remote.model, request, max_tokens)
        output = body.get("output_config", {}) | thinking.pop("output_config", {})
        body |= thinking | ({"output_config": output} if output else {})
        sampling = sampling_fields(request, thinking)
        passed, known = _passed(request.passed)
        dropped = dropped_fields(request, _KNOWN | known)
        dropped += dropped_sampling(request, sampling) + dropped_thinking(request, thinking)
        return WireCall("messages", _encode(body | sampling | passed), streamed, dropped)

    def read_event(self, event: ServerSentEvent, tally: Tally) -> list[Delta] | None:
        """See `RemoteWire.read_event`."""
        said, blocks = read_json(_decode, event.data, _EVENT), blocks_of(tally)
        match said.type:
            case "content_block_delta":
                return _delta(said, blocks)
            case "content_block_start":
                return _start(said.index, said.content_block, blocks)
            case "content_block_stop":
                return blocks.close(said.index)
            case "message_start" if said.message is not None:
                _report(said.message.usage, tally)
            case "message_delta" if said.delta is not None:
                _report(said.usage, tally)
                return _end(said.delta, blocks)
            case "message_stop":
                return None
            case "error":
                raise TierError(parse_error(event.data).message)
            case "ping":
                pass
            case _:
                blocks.unknown = blocks.unknown or f"events of the type {said.type!r}"
        return []

    def read_whole(self, body: bytes, tally: Tally) -> list[Delta]:
        """See `RemoteWire.read_whole`."""
        message, blocks = read_json(_decode_message, body, _MESSAGE), blocks_of(tally)
        _report(message.usage, tally)
        deltas: list[Delta] = []
        for index, block in enumerate(message.content):
            deltas += _start(index, block, blocks)
            if block.type == "tool_use" and block.input:
                deltas += blocks.arguments(index, _encode(block.input).decode())
            deltas += blocks.close(index)
        return deltas + _end(message, blocks)


class _Block(msgspec.Struct):
    type: str
    text: str = ""
    thinking: str = ""
    id: str = ""
    name: str = ""
    input: dict[str, Any] = {}


class _Delta(msgspec.Struct):
    """Of a content block (`type` is set), or of the message (`stop_reason`, `stop_sequence`)."""

    type: str = ""
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None


class _Usage(msgspec.Struct):
    input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    output_tokens: int = 0


class _Message(msgspec.Struct):
    content: list[_Block] = []
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: _Usage | None = None


class _Event(msgspec.Struct):
    type: str
    index: int = 0
    message: _Message | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: _Usage | None = None


def message_turns(messages: list[ChatMessage]) -> list[dict[str, Any]]:
    """Return the conversation as Anthropic has it: results of tools are a user's blocks, and no text is empty.

    A conversation that goes on has its last block marked, so that the next turn reads the ones before from the cache.
    """
    turns = alternating(messages, _blocks_of)
    last = turns[-1]["content"][-1]
    if turns[-1]["role"] == "assistant":
        # The answer goes on from here; a space at its end is refused.
        if last["type"] == "text":
            last["text"] = last["text"].rstrip() or "."
    elif any(message.role == "assistant" for message in messages):
        last["cache_control"] = _CACHED
    return turns


def _blocks_of(message: ChatMessage) -> list[dict[str, Any]]:
    content = content_blocks(message)
    if message.role == "tool":
        result = {"type": "tool_result", "tool_use_id": message.tool_call_id or ""}
        return [result | ({"content": content} if content else {})]
    return content + [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": call_arguments(call)}
        for call in message.tool_calls
    ]


def content_blocks(message: ChatMessage) -> list[dict[str, Any]]:
    """Return the parts of a message as blocks, without blank texts. Raises TierRequestError for audio."""
    if not message.parts:
        return [{"type": "text", "text": message.content}] if message.content.strip() else []
    blocks: list[dict[str, Any]] = []
    for part in message.parts:
        if part.type == "text":
            blocks += [{"type": "text", "text": part.text}] if part.text.strip() else []
            continue
        media = _source(part)
        source = {"type": "base64", "media_type": media.type, "data": media.data}
        source = {"type": "url", "url": media.url} if media.url else source
        blocks.append({"type": "image" if media.kind == "image" else "document", "source": source})
    return blocks


def _source(part: ContentPart) -> Media:
    media = media_of(part, NAME)
    if media.kind == "audio":
        raise TierRequestError(f"messages: {NAME} reads no audio; name another tier", "messages")
    return media


def thinking_fields(model: str, request: GenerationRequest, max_tokens: int | None) -> dict[str, Any]:
    """Return the fields for the requested thinking; {} leaves it to the model. `max_tokens` None: as many as it can.

    A forced call excludes thinking. With a budget, so does a loop of calls: the thoughts before the calls would have to
    be repeated with their signature, which a conversation in OpenAI's form has lost.
    """
    effort, budget = request.reasoning_effort, request.reasoning_budget
    if effort == "none" or budget == 0:
        return {"thinking": {"type": "disabled"}}
    forced = request.tooling is not None and request.tooling.is_forced
    if (effort is None and budget is None) or forced:
        return {}
    if not model.startswith(BUDGET_MODELS):
        fields: dict[str, Any] = {"thinking": {"type": "adaptive", "display": "summarized"}}
        return fields | ({"output_config": {"effort": EFFORTS[effort]}} if effort is not None else {})
    wanted = budget if budget is not None else THINKING_TOKENS[effort or "medium"]
    room = wanted if max_tokens is None else max_tokens - MIN_THINKING_TOKENS
    answers = [message for message in request.messages or [] if message.role == "assistant"]
    if room < MIN_THINKING_TOKENS or (answers and answers[-1].tool_calls):
        return {}
    return {"thinking": {"type": "enabled", "budget_tokens": max(MIN_THINKING_TOKENS, min(wanted, room))}}


def sampling_fields(request: GenerationRequest, thinking: dict[str, Any]) -> dict[str, Any]:
    """Return the sampling parameters that are set. Models refuse all of them while they think, and `temperature` with
    `top_p`."""
    if thinking.get("thinking", {}).get("type") in ("enabled", "adaptive"):
        return {}
    sampling, given = request.sampling, request.given
    fields: dict[str, Any] = {"top_k": sampling.top_k} if sampling.top_k else {}
    if sampling.temperature != 1.0 or ("temperature" in given and sampling.top_p == 1.0):
        fields["temperature"] = min(sampling.temperature, 1.0)
    elif sampling.top_p != 1.0 or "top_p" in given:
        fields["top_p"] = sampling.top_p
    return fields


def dropped_sampling(request: GenerationRequest, sent: dict[str, Any]) -> tuple[str, ...]:
    """Return the sampling parameters of Anthropic's that are set and not `sent` as they are."""
    asked = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
    values = {name: getattr(request.sampling, name) for name in asked}
    return tuple([name for name, neutral in asked.items() if values[name] not in (neutral, sent.get(name))])


def dropped_thinking(request: GenerationRequest, sent: dict[str, Any]) -> tuple[str, ...]:
    """Return the fields that ask for thoughts, if none of them are `sent`."""
    if sent:
        return ()
    asked = (("reasoning_effort", request.reasoning_effort), (BUDGET, request.reasoning_budget))
    return tuple([name for name, value in asked if value is not None])


def _passed(passed: dict[str, Any]) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the fields for what the caller said of its user and its class of service, and which names these are."""
    fields: dict[str, Any] = {}
    known: set[str] = set()
    for name in ("user", "safety_identifier"):
        if name in passed and "metadata" not in fields:
            fields["metadata"] = {"user_id": passed[name]}
            known.add(name)
    if (wanted := SERVICE_TIERS.get(passed.get("service_tier", ""))) is not None:
        fields["service_tier"] = wanted
        known.add("service_tier")
    return fields, frozenset(known)


def _tools(request: GenerationRequest) -> dict[str, Any]:
    tooling = request.tooling
    if tooling is None:
        return {}
    tools = [
        {"name": tool.name, "input_schema": {"type": "object", **tool.schema}}
        | ({"description": tool.description} if tool.description else {})
        for tool in tooling.tools
    ]
    choice: dict[str, Any] = {"type": {"required": "any", "named": "tool"}.get(tooling.choice, tooling.choice)}
    if tooling.choice == "named":
        choice["name"] = tooling.name
    if not tooling.parallel and tooling.choice != "none":
        choice["disable_parallel_tool_use"] = True
    return {"tools": tools, "tool_choice": choice}


def _start(index: int, block: _Block | None, blocks: Blocks) -> list[Delta]:
    if block is None:
        raise TierError("the server started a block without saying which")
    match block.type:
        case "text":
            return blocks.text(block.text)
        case "thinking":
            return blocks.reasoning(block.thinking)
        case "tool_use":
            return [blocks.open_call(index, block.id, block.name)]
        case "redacted_thinking":
            return []
    blocks.unknown = blocks.unknown or f"blocks of the type {block.type!r}"
    return []


def _delta(said: _Event, blocks: Blocks) -> list[Delta]:
    delta = said.delta
    if delta is not None:
        if delta.text is not None:
            return blocks.text(delta.text)
        if delta.thinking is not None:
            return blocks.reasoning(delta.thinking)
        if delta.partial_json is not None:
            return blocks.arguments(said.index, delta.partial_json)
        if delta.type in ("signature_delta", "citations_delta"):
            return []
    blocks.unknown = blocks.unknown or f"deltas of the type {delta.type if delta else ''!r}"
    return []


def _end(said: _Delta | _Message, blocks: Blocks) -> list[Delta]:
    if said.stop_reason is None:
        return []
    blocks.check_form()
    reasons: dict[str, FinishReason] = {
        "max_tokens": "length",
        "model_context_window_exceeded": "length",
        "tool_use": "tool_calls",
        "refusal": "content_filter",
    }
    return [Delta(finish_reason=reasons.get(said.stop_reason, "stop"), stop_sequence=said.stop_sequence)]


def _report(usage: _Usage | None, tally: Tally) -> None:
    """Store the counts. Those of a stream's end are totals, and may repeat the prompt's."""
    if usage is None:
        return
    known = tally.reported or Usage()
    prompt, cached, written = known.prompt_tokens, known.cached_tokens, known.cache_write_tokens
    if usage.input_tokens is not None:
        cached, written = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
        prompt = usage.input_tokens + cached + written
    tally.report(
        Usage(
            prompt_tokens=prompt or tally.prompt_tokens,
            completion_tokens=usage.output_tokens,
            cached_tokens=cached,
            cache_write_tokens=written,
        )
    )


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Event).decode
_decode_message = msgspec.json.Decoder(_Message).decode
