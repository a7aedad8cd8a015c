"""Marks of a provider's cache in requests of Anthropic's form, for servers that write them in another way: Bedrock's
Converse has `cachePoint` blocks."""

from typing import Any

import msgspec

from tiers.native_content import NativeRequest
from tiers.tier import ChatMessage
from tiers.tool_types import Tooling

MARK = b'"cache_control"'
CACHE_POINT = {"cachePoint": {"type": "default"}}
MOST_POINTS = 4
"""Of one request."""


def with_mark(message: ChatMessage) -> ChatMessage:
    """Return the message with its mark said apart from its native form."""
    native = message.native
    if native is None or not any(MARK in block.json for block in native.blocks):
        return message
    return msgspec.structs.replace(message, marked=True)


def marked_tools(tooling: Tooling, native: NativeRequest) -> Tooling:
    """Return the tools with a mark on the last one, where one of a native request's has it."""
    if MARK not in native.fields.get("tools", b"") or not tooling.tools:
        return tooling
    last = msgspec.structs.replace(tooling.tools[-1], cache_control={"type": "ephemeral"})
    return msgspec.structs.replace(tooling, tools=(*tooling.tools[:-1], last))


def is_marked(messages: list[ChatMessage], tooling: Tooling | None) -> bool:
    """Whether a caller has marked anything."""
    tools = () if tooling is None else tooling.tools
    return any(message.marked for message in messages) or any(tool.cache_control is not None for tool in tools)


def put_points(body: dict[str, Any], *, tools: bool, system: bool, last: bool) -> None:
    """Put cache points into a body of Converse: after its tools, its system prompt and its last turn, as asked. Those
    after marked messages are there already; of too many the earliest are taken out."""
    if tools and "toolConfig" in body:
        body["toolConfig"]["tools"].append(CACHE_POINT)
    if system and "system" in body:
        body["system"].append(CACHE_POINT)
    turn = body["messages"][-1]["content"]
    if last and turn and turn[-1] != CACHE_POINT:
        turn.append(CACHE_POINT)
    room = MOST_POINTS - (CACHE_POINT in body.get("system", ()))
    room -= CACHE_POINT in body.get("toolConfig", {}).get("tools", ())
    for one in reversed(body["messages"]):
        kept = []
        for block in reversed(one["content"]):
            if block == CACHE_POINT:
                room -= 1
                if room < 0:
                    continue
            kept.append(block)
        one["content"] = kept[::-1]
