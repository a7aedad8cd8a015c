"""Requests in the form of OpenAI's Responses API. Items that a caller gave in it go on as they are; a chat is said in
items. The server stores nothing: the whole conversation is sent, with its sealed reasoning."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from tiers.catalog.tier_spec import RemoteSpec
from tiers.content_parts import ContentPart
from tiers.remote.optional_fields import NEUTRAL, sampling_of
from tiers.remote.provider_format import THINKING_TOKENS
from tiers.tier import ChatMessage, GenerationRequest

SEALED = "reasoning.encrypted_content"
# Fields of a caller of the same API that go on as they are.
_SAME_FIELDS = (
    "instructions",
    "max_tool_calls",
    "parallel_tool_calls",
    "reasoning",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
)
_PASSED = (
    "metadata",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "user",
)
# What of the sampling parameters the API has.
_SAMPLING = ("temperature", "top_p")
# Custom tools reach a server as they are in this form alone.
_NEEDING = ("reasoning",)


def is_expressible(request: GenerationRequest) -> bool:
    """Whether the API has all that a chat asks for."""
    sampling = request.sampling
    others = sampling_of(msgspec.structs.replace(sampling, temperature=1.0, top_p=1.0)) == NEUTRAL
    bound = sampling.logit_bias or sampling.logprobs is not None or request.stop or request.n > 1
    audio = any(part.type == "input_audio" for message in request.messages or () for part in message.parts)
    return request.messages is not None and others and not bound and not audio


def is_needed(request: GenerationRequest) -> bool:
    """Whether the request loses something as a chat: its reasoning next to tools, or what only this API has."""
    native = request.native
    if native is not None and native.form == "responses":
        if native.server_tools or any(name in native.fields for name in _NEEDING) or _has_custom_tools(native.fields):
            return True
    elif request.tooling is not None and effort_of(request) not in (None, "none"):
        return True
    said = (message.native or message.kept for message in request.messages or ())
    return any(content is not None and content.form == "responses" and content.is_sealed for content in said)


def effort_of(request: GenerationRequest) -> str | None:
    """The effort that was asked for, or else the least one that thinks as many tokens as it may."""
    if request.reasoning_effort is not None or request.reasoning_budget is None:
        return request.reasoning_effort
    if request.reasoning_budget == 0:
        return "none"
    # Not all models have `max`.
    enough = (name for name, tokens in THINKING_TOKENS.items() if tokens >= request.reasoning_budget and name != "max")
    return next(enough, "xhigh")


def _has_custom_tools(fields: dict[str, bytes]) -> bool:
    tools = fields.get("tools")
    return tools is not None and any(
        tool.get("type") != "function" for tool in msgspec.json.decode(tools, type=list[dict[str, Any]])
    )


def request_body(
    remote: RemoteSpec, request: GenerationRequest, max_tokens: int | None, *, streamed: bool
) -> dict[str, Any]:
    """Return the body of a request."""
    native = request.native
    body: dict[str, Any] = {
        "model": remote.model,
        "input": [item for message in request.messages or () for item in _items(message)],
        "stream": streamed,
        "store": False,
        "include": _include(request),
    }
    if max_tokens is not None:
        body["max_output_tokens"] = max_tokens
    for name in _SAMPLING:
        value = getattr(request.sampling, name)
        if value != 1.0 or name in request.given:
            body[name] = value
    body |= {name: request.passed[name] for name in _PASSED if name in request.passed}
    if native is None:
        return body | _asked(request)
    return body | {name: msgspec.Raw(native.fields[name]) for name in _SAME_FIELDS if name in native.fields}


def _include(request: GenerationRequest) -> list[str]:
    given = b"[]" if request.native is None else request.native.fields.get("include", b"[]")
    return list(dict.fromkeys([SEALED, *msgspec.json.decode(given, type=list[str])]))


def _asked(request: GenerationRequest) -> dict[str, Any]:
    """What a chat asks for of reasoning, tools and the form of the answer."""
    fields: dict[str, Any] = {}
    if (effort := effort_of(request)) is not None:
        fields["reasoning"] = {"effort": effort}
    text: dict[str, Any] = {}
    if (form := request.response_format) is not None:
        inner = form.get("json_schema") or {}
        text["format"] = {"type": form.get("type"), **inner}
    if "verbosity" in request.passed:
        text["verbosity"] = request.passed["verbosity"]
    if text:
        fields["text"] = text
    if (tooling := request.tooling) is None:
        return fields
    fields["tools"] = [
        {"type": "function", "name": tool.name, "parameters": tool.schema, "strict": tool.strict}
        | ({"description": tool.description} if tool.description is not None else {})
        for tool in tooling.tools
    ]
    if tooling.choice == "named":
        fields["tool_choice"] = {"type": "function", "name": tooling.name}
    elif tooling.choice != "auto" or "tool_choice" in request.given:
        fields["tool_choice"] = tooling.choice
    if "parallel_tool_calls" in request.given or not tooling.parallel:
        fields["parallel_tool_calls"] = tooling.parallel
    return fields


def _items(message: ChatMessage) -> Iterator[Any]:
    said = message.native or message.kept
    if said is not None:
        yield from (msgspec.Raw(block.json) for block in said.blocks)
        return
    if message.role == "tool":
        yield {"type": "function_call_output", "call_id": message.tool_call_id or "", "output": message.content}
        return
    if message.parts or message.content:
        content = list(_parts(message.parts)) if message.parts else message.content
        yield {"type": "message", "role": message.role, "content": content}
    for call in message.tool_calls:
        yield {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}


def _parts(parts: Sequence[ContentPart]) -> Iterator[dict[str, Any]]:
    for part in parts:
        data = part.data or {}
        if part.type == "text":
            yield {"type": "input_text", "text": part.text}
        elif part.type == "image_url":
            detail = {"detail": data["detail"]} if "detail" in data else {}
            yield {"type": "input_image", "image_url": data.get("url"), **detail}
        else:
            yield {"type": "input_file", **data}
