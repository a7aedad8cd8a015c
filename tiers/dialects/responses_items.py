"""Items and fields of a request of the Responses API as they were given, for servers with the same API; and the items
of such a server under ids of ours, by which later requests name them.

Compaction of a conversation as Codex asks for it, and the items that only Codex sends: Codex
(codex-rs/core/src/compact_remote*.rs, 2026-11) ends the input with a `compaction_trigger` and expects one item of the
type `compaction`; earlier versions post the conversation to `/v1/responses/compact`. The item comes back in later
requests in place of what it sums up. Tools come as an item, `additional_tools`. Here the tier that answers writes
the summary.

What a server needs back of a turn, carried by the client in a reasoning item of its own: where texts may not be
stored, as with `"store": false` of Codex, nothing else keeps it. Of texts and calls nothing is in it: those are the
client's other items, so that what is screened is what is sent.
"""

import base64
import binascii
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from inference_core.io.files import JSON_ERRORS
from tiers.conversation import Opaque, OpaqueFields, Turn
from tiers.deltas import CollectedChoice
from tiers.dialects.caller_urls import refuse_turn
from tiers.dialects.chat_opaque import FORM as CHAT
from tiers.dialects.chat_opaque import THOUGHTS, recallable_blocks, size_of, with_recalled
from tiers.dialects.responses_schemas import FORM, SAME_FIELDS, Item, ResponsesRequest, ResponseTool
from tiers.dialects.responses_tools import SEARCH

OWN_SEAL = "aio1."
"""What `encrypted_content` of ours begins with. It is readable: the same thoughts are in `content`."""
_CALLERS_TOOLS = ("function", "custom", "namespace")
# Items whose ids are ours, which no server knows; of others the id is what later ones refer to.
_OURS = (
    "message",
    "reasoning",
    "function_call",
    "custom_tool_call",
    "function_call_output",
    "custom_tool_call_output",
)
_FIELDS = (*SAME_FIELDS, "include")
# What no chat says.
_LOST_ELSEWHERE = ("context_management",)
_PREFIX = re.compile(r"[a-z]{2,4}\Z")


def is_callers(kind: object, execution: object) -> bool:
    """Whether the caller runs tools of this type, which every model can call then. Codex runs a search for tools."""
    return kind in _CALLERS_TOOLS or (kind == SEARCH and execution == "client")


def _others(tools: Sequence[Mapping[str, Any]], items: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The types of those tools, as data, that the caller does not run, and of items whose whole content is sealed."""
    others = [str(tool.get("type")) for tool in tools if not is_callers(tool.get("type"), tool.get("execution"))]
    sealed = {str(item["type"]): None for item in items if item.get("type") in COMPACTION and not _is_ours(item)}
    return (*others, *sealed)


def _is_ours(item: Mapping[str, Any]) -> bool:
    return str(item.get("encrypted_content") or "").startswith(OWN_SEAL)


class GivenItems(msgspec.Struct, frozen=True):
    """The items of a request, as data, in its order; and its other fields."""

    items: list[dict[str, Any]]
    opaque: OpaqueFields

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The tools as they were given."""
        return msgspec.json.decode(self.opaque.fields.get("tools", b"[]"), type=list[dict[str, Any]])


def given_items(body: bytes) -> GivenItems:
    """Return what a request, whose form has been checked, gave. Raises `BadRequestError`."""
    raw = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    said = msgspec.json.decode(raw["input"])
    items = [{"type": "message", "role": "user", "content": said}] if isinstance(said, str) else said
    refuse_turn(bytes(raw["input"]), "input")
    refuse_turn(bytes(raw.get("tools", b"null")), "tools")
    fields = {name: bytes(raw[name]) for name in _FIELDS if name in raw and bytes(raw[name]) != b"null"}
    tools = msgspec.json.decode(fields.get("tools", b"[]"), type=list[dict[str, Any]])
    own = _others(tools, items)
    lost = tuple(name for name in _LOST_ELSEWHERE if name in fields)
    return GivenItems(items, OpaqueFields(FORM, fields, own, lost_elsewhere=lost))


_ID_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
    "function_call_output": "fco",
    "custom_tool_call_output": "ctco",
}


def input_items(
    request_input: str | list[Item], request_id: str, said: list[dict[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """The items of a request as they are stored and listed, each with an id. `said`: the same items as they were."""
    items = [Item(role="user", content=request_input)] if isinstance(request_input, str) else request_input
    ids = [item.id or f"{_ID_PREFIXES.get(item.type, 'itm')}_{request_id}_{n}" for n, item in enumerate(items)]
    shown = [_listed_item(item, item_id) for item, item_id in zip(items, ids, strict=True)]
    if said is None:
        return shown
    # What a server with this API is to get again is stored whole.
    return [old | new if isinstance(request_input, list) else new for old, new in zip(said, shown, strict=True)]


def _listed_item(item: Item, item_id: str) -> dict[str, Any]:
    shown: dict[str, Any] = {name: value for name, value in msgspec.to_builtins(item).items() if value is not None}
    shown |= {"id": item_id, "status": "completed"}
    if item.type == "reasoning":
        return shown | {"summary": shown.get("summary", [])}
    if item.type == "message":
        kind = "output_text" if item.role == "assistant" else "input_text"
        content = item.content
        parts = [{"type": kind, "text": content}] if isinstance(content, str) else shown["content"]
        shown["content"] = [_listed_part(part) for part in parts]
    return shown


def _listed_part(part: dict[str, Any]) -> dict[str, Any]:
    part = {name: value for name, value in part.items() if value is not None}
    return part | {"annotations": []} if part["type"] == "output_text" else part


def opaque_item(item: Mapping[str, Any]) -> Opaque | None:
    """An item as a server gets it; None for reasoning that no server has sealed."""
    kind, seal = item.get("type", "message"), item.get("encrypted_content") or ""
    if kind == "reasoning" and (not seal or seal.startswith(OWN_SEAL)):
        return None
    left_out = ("id", "status") if kind in _OURS else ()
    kept = {name: value for name, value in item.items() if name not in left_out}
    return Opaque(FORM, _encode({"type": kind} | kept), kind, seal)


class ItemIds:
    """Ids of ours for the items of one server's answer: named after the response, which later requests find by them."""

    def __init__(self, response_id: str) -> None:
        self._response_id = response_id
        self._ids: dict[str, str] = {}
        self._numbers: Counter[str] = Counter()

    def of(self, item_id: str) -> str:
        """Return our id of the item that the server calls `item_id`."""
        if (own_id := self._ids.get(item_id)) is None:
            prefix = item_id.partition("_")[0]
            prefix = prefix if _PREFIX.match(prefix) else "itm"
            number = self._numbers[prefix]
            self._numbers[prefix] += 1
            own_id = self._ids[item_id] = (
                f"{prefix}_{self._response_id}-{number}" if number else f"{prefix}_{self._response_id}"
            )
        return own_id

    def with_own_id(self, item: dict[str, Any]) -> dict[str, Any]:
        return item | {"id": self.of(str(item["id"]))} if item.get("id") else item


def without_seals(items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the items as a caller sees them who did not ask for sealed reasoning."""
    return [{name: value for name, value in item.items() if name != "encrypted_content"} for item in items]


_encode = msgspec.json.Encoder().encode


TRIGGER, TOOLS = "compaction_trigger", "additional_tools"
COMPACTION = ("compaction", "compaction_summary", "context_compaction")
_WITH_TOOLS = (TOOLS, "tool_search_output")
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


_PROVIDERS = (
    "_call", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "agent_reasoning", "ghost_snapshot",
)  # fmt: skip


def asks_for_compaction(body: ResponsesRequest) -> bool:
    """Whether the input ends with the item that asks for it."""
    return not isinstance(body.input, str) and bool(body.input) and body.input[-1].type == TRIGGER


def compacting(body: ResponsesRequest) -> ResponsesRequest:
    """The request whose answer is the summary of the conversation in `body`."""
    items = [Item(role="user", content=body.input)] if isinstance(body.input, str) else body.input
    said = [*(item for item in items if item.type in _READ), Item(role="user", content=_PROMPT)]
    tools = [tool for tool in body.tools or () if is_callers(tool.type, tool.execution)]
    choice = "none" if tools else None
    return msgspec.structs.replace(body, input=said, tools=tools or None, tool_choice=choice, text=None, include=None)


def without_codex_items(body: ResponsesRequest, *, keeps_own: bool) -> tuple[ResponsesRequest, list[str]]:
    """The request with its tools in `tools` and summaries of ours as texts, and the names of what is left out: what no
    model here can call or do. `keeps_own`: whether there is a tier that may have them."""
    left_out: dict[str, None] = {}
    tools = list(body.tools or ())
    callers = [tool for tool in tools if is_callers(tool.type, tool.execution)]
    if not keeps_own and callers:
        # Codex gives a search of the web next to its own tools.
        left_out, tools = {f"tools.{tool.type}": None for tool in tools if tool not in callers}, callers
    if not keeps_own and body.context_management is not None:
        # Nothing is compacted before the context is full.
        left_out["context_management"], body = None, msgspec.structs.replace(body, context_management=None)
    if isinstance(body.input, str) or not any(
        item.type in _WITH_TOOLS or _is_own(item) or _is_providers(item) for item in body.input
    ):
        return msgspec.structs.replace(body, tools=tools or None) if left_out else body, list(left_out)
    names = {(tool.type, tool.name) for tool in tools}
    for tool in (tool for item in body.input if item.type in _WITH_TOOLS for tool in item.tools or ()):
        if not (keeps_own or is_callers(tool.type, tool.execution)):
            left_out[f"input.tools.{tool.type}"] = None
        elif (tool.type, tool.name) not in names:
            names.add((tool.type, tool.name))
            tools.append(tool)
    remaining = [item for item in body.input if item.type != TOOLS]
    if not keeps_own and (others := [item for item in remaining if not _is_providers(item)]):
        # Whatever a tool of OpenAI's found is in the text after it.
        left_out |= dict.fromkeys(f"input.{item.type}" for item in remaining if _is_providers(item))
        remaining = others
    items = list(map(opened, remaining))
    return msgspec.structs.replace(body, input=items, tools=tools or None), list(left_out)


def as_sent(original: GivenItems, tools: Sequence[ResponseTool] | None) -> GivenItems:
    """What a server with this API gets instead of such items, in the same places as those of the request."""
    if not any(item.get("type") == TOOLS or item.get("type") in COMPACTION for item in original.items):
        return original
    sent_tools = original.tools
    names = {(tool.get("type"), tool.get("name")) for tool in sent_tools}
    for item in original.items:
        for tool in item.get("tools") or () if item.get("type") == TOOLS else ():
            if (tool.get("type"), tool.get("name")) not in names:
                names.add((tool.get("type"), tool.get("name")))
                sent_tools.append(tool)
    own = _others(sent_tools, original.items)
    fields = original.opaque.fields | ({"tools": msgspec.json.encode(sent_tools)} if tools else {})
    items = [opened_data(item) for item in original.items if item.get("type") != TOOLS]
    return GivenItems(items, msgspec.structs.replace(original.opaque, fields=fields, server_tools=own))


def _is_providers(item: Item) -> bool:
    """Whether it is of a tool that OpenAI runs, such as a search, or an agent's bookkeeping."""
    return item.call_id is None and item.type not in _READ and item.type.endswith(_PROVIDERS)


def _is_own(item: Item) -> bool:
    return item.type in COMPACTION and (item.encrypted_content or "").startswith(OWN_SEAL)


def opened(item: Item) -> Item:
    """A summary of ours as what a user says; any other item as it is."""
    if not _is_own(item):
        return item
    return Item(role="user", content=_SUMMARY + opened_seal(item.encrypted_content or ""))


def opened_data(item: dict[str, Any]) -> dict[str, Any]:
    """The same of an item as data."""
    if item.get("type") not in COMPACTION or not _is_ours(item):
        return item
    return {"type": "message", "role": "user", "content": _SUMMARY + opened_seal(str(item["encrypted_content"]))}


CARRIED = f"{OWN_SEAL}turn."
"""What `encrypted_content` of such an item begins with."""
_TEXT, _CALL = "text", "call"
_SLOTS = {"text": _TEXT, "tool_use": _CALL}


class _Turn(msgspec.Struct, frozen=True, array_like=True):
    """The server and model of a turn, and its blocks; a `text` or `call` stands for what the client itself sends."""

    answered_by: str
    blocks: tuple[Opaque, ...]


def sealed(thoughts: str) -> str:
    """Return the `encrypted_content` of a reasoning item: what agents send back to go on without stored responses."""
    return OWN_SEAL + base64.urlsafe_b64encode(thoughts.encode(errors="replace")).decode()


def opened_seal(seal: str) -> str:
    """Return the text in a seal of ours; "" for one that cannot be read."""
    try:
        return base64.urlsafe_b64decode(seal.removeprefix(OWN_SEAL)).decode()
    except (binascii.Error, ValueError):
        return ""


def carried(choice: CollectedChoice, answered_by: str) -> str | None:
    """Return the `encrypted_content` of what `answered_by` needs back of its answer; None for none."""
    blocks = [block for block in recallable_blocks(choice) if (block.dialect, block.type) != (CHAT, THOUGHTS)]
    if not size_of(blocks) or blocks[0].dialect == FORM:
        return None
    turn = _Turn(answered_by, tuple(_bare(blocks)))
    return CARRIED + base64.urlsafe_b64encode(_encode_turn(turn)).decode()


def with_carried(message: Turn, seal: str) -> Turn:
    """Return a turn with what its client carried of it; as it is, if that is none of ours or of another turn."""
    try:
        turn = _decode(base64.urlsafe_b64decode(seal.removeprefix(CARRIED)))
        for block in turn.blocks:
            # It goes to the server as it is, and a client may have written what would break out of its place.
            msgspec.json.decode(block.json or b"null")
        whole = turn.blocks and turn.blocks[0].dialect in ("messages", "gemini")
        recalled = tuple(_filled(turn, message)) if whole else turn.blocks
        return with_recalled(msgspec.structs.replace(message, answered_by=turn.answered_by, recalled=recalled))
    except (binascii.Error, ValueError, LookupError, TypeError, AttributeError, *JSON_ERRORS):
        return message


def _bare(blocks: Sequence[Opaque]) -> Iterator[Opaque]:
    """The blocks without texts and calls: of Anthropic's, what has a seal; of Gemini's, parts with the seal alone."""
    for block in blocks:
        if block.dialect == "messages":
            if block.seal:
                yield block
            elif (slot := _SLOTS.get(block.type)) is not None:
                yield Opaque("messages", b"", slot)
        elif block.dialect == "gemini":
            part = msgspec.json.decode(block.json, type=dict[str, Any])
            is_text = part.pop("text", None) is not None
            if (call := part.get("functionCall")) is not None:
                # An id is the server's own, or ours, which it does not know.
                part["functionCall"] = {"id": call["id"]} if call.get("id") else {}
                yield Opaque("gemini", _json(part), _CALL, block.seal)
            elif is_text and not part.get("thought"):
                yield Opaque("gemini", _json(part), _TEXT, block.seal)
        else:
            yield block


def _filled(turn: _Turn, message: Turn) -> Iterator[Opaque]:
    """The blocks with the texts and calls of `message` in their places. Raises ValueError where they are others."""
    calls, text = list(message.calls), message.text
    for block in turn.blocks:
        kept = msgspec.json.decode(block.json, type=dict[str, Any]) if block.json else {}
        if block.type == _TEXT:
            said = kept | ({"text": text} if block.dialect == "gemini" else {"type": "text", "text": text})
            if text:
                yield Opaque(block.dialect, _json(said), "text", block.seal)
            text = ""
        elif block.type == _CALL:
            if not calls:
                raise ValueError("fewer calls than were made")
            call = calls.pop(0)
            arguments = msgspec.json.decode(call.arguments or "{}", type=dict[str, Any])
            if block.dialect == "gemini":
                said = kept | {"functionCall": kept["functionCall"] | {"name": call.name, "args": arguments}}
                yield Opaque("gemini", _json(said), "part", block.seal)
            else:
                said = {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}
                yield Opaque("messages", _json(said), "tool_use")
        else:
            yield block
    if calls or text:
        raise ValueError("more was said than this turn had")


_json = msgspec.json.Encoder().encode
_encode_turn = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Turn).decode
