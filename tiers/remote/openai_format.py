"""OpenAI's chat and completion wire format on the client side: request bodies out, errors in."""

import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from inference_core.io.files import JSON_ERRORS
from tiers.catalog.tier_spec import RemoteSpec
from tiers.remote.optional_fields import ALL_SAMPLING, NEUTRAL, SERVICE_FIELDS, sampling_of
from tiers.tier import ChatMessage, GenerationRequest
from tiers.tool_types import Tool

MAX_RETRY_AFTER_SECONDS = 300.0
# Kinds of servers that render the model's own chat template, and take its variables.
TEMPLATED = ("vllm", "sglang", "llama-server")
# All that text completions have of the fields that mean something to a provider alone.
_OF_COMPLETIONS = ("user",)


class WireError(msgspec.Struct):
    """The error object of OpenAI and of most compatible servers. `retry_after_seconds`: as other servers say it in
    their body instead of a header."""

    message: str = ""
    type: str | None = None
    param: str | None = None
    code: str | int | None = None
    retry_after_seconds: float | None = None


def request_body(
    remote: RemoteSpec, request: GenerationRequest, max_tokens: int | None, *, streamed: bool = True
) -> dict[str, Any]:
    """Return the JSON body of a call: what caller or catalogue set, the model, and what reading the answer needs."""
    sampling, given = request.sampling, request.given
    is_chat = request.messages is not None
    body: dict[str, Any] = {"model": remote.model, "stream": streamed}
    if max_tokens is not None:
        body[remote.max_tokens_field if is_chat else "max_tokens"] = max_tokens
    if request.messages is not None:
        templated = remote.kind in TEMPLATED
        body["messages"] = [_wire_message(message) for message in request.messages]
        if templated and request.template_variables:
            body["chat_template_kwargs"] = request.template_variables
    else:
        body["prompt"] = request.prompt
    if streamed and remote.stream_usage:
        body["stream_options"] = {"include_usage": True}
    if given or sampling_of(sampling) != NEUTRAL:
        triples = zip(ALL_SAMPLING, sampling_of(sampling), NEUTRAL, strict=True)
        body |= {name: value for name, value, neutral in triples if value != neutral or name in given}
    if sampling.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    if request.stop:
        body["stop"] = list(request.stop)
    if request.include_stop:
        body["include_stop_str_in_output"] = True
    if request.n != 1 or "n" in given:
        body["n"] = request.n
    if is_chat and request.reasoning_effort is not None:
        body["reasoning_effort"] = request.reasoning_effort
    if is_chat and request.reasoning_budget is not None:
        body["thinking_token_budget"] = request.reasoning_budget
    body |= _constraints(request)
    if sampling.logprobs is not None:
        body["logprobs"] = is_chat or sampling.logprobs
        if is_chat and (sampling.logprobs or "top_logprobs" in given):
            body["top_logprobs"] = sampling.logprobs
    if request.passed:
        for name in SERVICE_FIELDS if is_chat else _OF_COMPLETIONS:
            if name in request.passed:
                body[name] = request.passed[name]
    return body


def _wire_message(message: ChatMessage) -> dict[str, Any]:
    wire: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.parts:
        wire["content"] = [part.wire for part in message.parts]
    if message.name is not None:
        wire["name"] = message.name
    if message.tool_call_id is not None:
        wire["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        wire["content"] = wire["content"] or None
        wire["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    return wire


def _constraints(request: GenerationRequest) -> dict[str, Any]:
    """Return the fields for tools and grammars; vLLM's fields where OpenAI's API has none."""
    body: dict[str, Any] = {}
    grammar, tooling = request.sampling.grammar, request.tooling
    if request.response_format is not None:
        body["response_format"] = request.response_format
    elif grammar is not None:
        text = grammar.text
        value = {"json_object": True, "json_schema": text, "regex": text, "lark": text}.get(grammar.kind)
        name = {"json_schema": "json", "lark": "grammar"}.get(grammar.kind, grammar.kind)
        body["structured_outputs"] = {name: msgspec.json.decode(text) if grammar.kind == "choice" else value}
    if tooling is not None:
        body["tools"] = [_wire_tool(tool) for tool in tooling.tools]
        if tooling.choice == "named":
            body["tool_choice"] = {"type": "function", "function": {"name": tooling.name}}
        elif tooling.choice != "auto" or "tool_choice" in request.given:
            body["tool_choice"] = tooling.choice
        if "parallel_tool_calls" in request.given or not (tooling.parallel or tooling.choice == "named"):
            body["parallel_tool_calls"] = tooling.parallel
    return body


def _wire_tool(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.parameters is not None:
        function["parameters"] = tool.parameters
    if tool.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def parse_error(body: bytes) -> WireError:
    """Return the error of a reply: OpenAI's envelope, a bare error object, `detail`, or else the text itself."""
    try:
        table = msgspec.json.decode(body)
        inner = table.get("error", table) if isinstance(table, dict) else table
        if isinstance(inner, dict):
            message = str(inner.get("message") or inner.get("detail") or inner)
            param, code, kind = inner.get("param"), inner.get("code"), inner.get("type")
            more = inner.get("metadata")
            if isinstance(more, dict) and isinstance(more.get("raw"), str):
                # OpenRouter's: the words of the provider behind it.
                message += f" ({more['raw']})"
            return WireError(
                message=message,
                type=kind if isinstance(kind, str) else None,
                param=param if isinstance(param, str) else None,
                code=code if isinstance(code, str | int) else None,
            )
        return WireError(message=str(inner))
    except JSON_ERRORS:
        return WireError(message=body.decode("utf-8", errors="replace")[:500].strip())


def parse_retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of a `Retry-After` header, at most `MAX_RETRY_AFTER_SECONDS`; None without one.

    Seconds or a date (RFC 9110, 10.2.3). An invalid value is ignored.
    """
    stated = headers.get("retry-after", "").strip()
    try:
        seconds = float(stated) if stated[:1].isdigit() else parsedate_to_datetime(stated).timestamp() - time.time()
        return min(max(seconds, 0.0), MAX_RETRY_AFTER_SECONDS)
    except (ValueError, OverflowError):
        return None
