"""Compaction of a conversation as Codex asks for it, and the items that only Codex sends.

Codex (codex-rs/core/src/compact_remote*.rs, 2026-11) ends the input with a `compaction_trigger` and expects one item of
the type `compaction`; earlier versions post the conversation to `/v1/responses/compact`. The item comes back in later
requests in place of what it sums up. Tools come as an item, `additional_tools`. Here the tier that answers writes the
summary.
"""

import base64
import binascii
from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.inference.api.responses.native_items import CALLERS_TOOLS, OWN_SEAL, GivenItems
from gateway.inference.api.responses.schemas import Item, ResponsesRequest, ResponseTool

TRIGGER, TOOLS, COMPACTION = "compaction_trigger", "additional_tools", ("compaction", "compaction_summary")
_PROMPT = (
    "Summarise this conversation for the model that continues it and sees nothing else of it. State the task and the "
    "user's instructions, what was done and decided and why, the files, commands, names and figures that still matter, "
    "open problems, and the next steps. Call no tools. Answer with the summary alone."
)
_SUMMARY = "Summary of the conversation so far, which was compacted:\n\n"
# Items that a summary is made of; others are bookkeeping of the server that made them.
_READ = (
    "message", "reasoning", "function_call", "custom_tool_call", "function_call_output", "custom_tool_call_output",
    "item_reference",
)  # fmt: skip


def asks_for_compaction(body: ResponsesRequest) -> bool:
    """Whether the input ends with the item that asks for it."""
    return not isinstance(body.input, str) and bool(body.input) and body.input[-1].type == TRIGGER


def compacting(body: ResponsesRequest) -> ResponsesRequest:
    """The request whose answer is the summary of the conversation in `body`."""
    items = [Item(role="user", content=body.input)] if isinstance(body.input, str) else body.input
    said = [*(one for one in items if one.type in _READ), Item(role="user", content=_PROMPT)]
    tools = [tool for tool in body.tools or () if tool.type in CALLERS_TOOLS]
    choice = "none" if tools else None
    return msgspec.structs.replace(body, input=said, tools=tools or None, tool_choice=choice, text=None, include=None)


def without_codex_items(body: ResponsesRequest, *, keeps_own: bool) -> tuple[ResponsesRequest, list[str]]:
    """The request with its tools in `tools` and summaries of ours as texts, and the names of tools that are left out:
    of types that no model here can call. `keeps_own`: whether there is a tier that may have them."""
    if isinstance(body.input, str) or not any(item.type == TOOLS or _is_own(item) for item in body.input):
        return body, []
    tools, names = list(body.tools or ()), {(tool.type, tool.name) for tool in body.tools or ()}
    left_out: dict[str, None] = {}
    for tool in (tool for item in body.input if item.type == TOOLS for tool in item.tools or ()):
        if tool.type not in CALLERS_TOOLS and not keeps_own:
            left_out[f"input.tools.{tool.type}"] = None
        elif (tool.type, tool.name) not in names:
            names.add((tool.type, tool.name))
            tools.append(tool)
    items = [opened(item) for item in body.input if item.type != TOOLS]
    return msgspec.structs.replace(body, input=items, tools=tools or None), list(left_out)


def as_sent(given: GivenItems, tools: Sequence[ResponseTool] | None) -> GivenItems:
    """What a server with this API gets instead of such items, in the same places as those of the request."""
    if not any(item.get("type") == TOOLS or item.get("type") in COMPACTION for item in given.items):
        return given
    found = msgspec.json.decode(given.native.fields.get("tools", b"[]"), type=list[dict[str, Any]])
    names = {(tool.get("type"), tool.get("name")) for tool in found}
    for item in given.items:
        for tool in item.get("tools") or () if item.get("type") == TOOLS else ():
            if (tool.get("type"), tool.get("name")) not in names:
                names.add((tool.get("type"), tool.get("name")))
                found.append(tool)
    own = tuple(str(tool.get("type")) for tool in found if tool.get("type") not in CALLERS_TOOLS)
    fields = given.native.fields | ({"tools": msgspec.json.encode(found)} if tools else {})
    items = [opened_data(item) for item in given.items if item.get("type") != TOOLS]
    return GivenItems(items, msgspec.structs.replace(given.native, fields=fields, server_tools=own))


def _is_own(item: Item) -> bool:
    return item.type in COMPACTION and (item.encrypted_content or "").startswith(OWN_SEAL)


def opened(item: Item) -> Item:
    """A summary of ours as what a user says; any other item as it is."""
    if not _is_own(item):
        return item
    return Item(role="user", content=_SUMMARY + _read(item.encrypted_content or ""))


def opened_data(item: dict[str, Any]) -> dict[str, Any]:
    """The same of an item as data."""
    seal = str(item.get("encrypted_content") or "")
    if item.get("type") not in COMPACTION or not seal.startswith(OWN_SEAL):
        return item
    return {"type": "message", "role": "user", "content": _SUMMARY + _read(seal)}


def _read(seal: str) -> str:
    try:
        return base64.urlsafe_b64decode(seal.removeprefix(OWN_SEAL)).decode()
    except (binascii.Error, ValueError):
        return ""
