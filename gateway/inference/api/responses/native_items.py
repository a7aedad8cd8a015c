"""Items and fields of a request to `/v1/responses` as they were given, for servers with the same API; and the items of
such a server under ids of ours, by which later requests name them."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tiers.native_content import NativeBlock, NativeRequest

OWN_SEAL = "aio1."
"""What `encrypted_content` of ours begins with. It is readable: the same thoughts are in `content`."""
CALLERS_TOOLS = ("function", "custom", "namespace")
"""Types of tools that the caller runs, and every model can call."""
# Items whose ids are ours, which no server knows; of others the id is what later ones refer to.
_OURS = (
    "message",
    "reasoning",
    "function_call",
    "custom_tool_call",
    "function_call_output",
    "custom_tool_call_output",
)
_FIELDS = (
    "include",
    "instructions",
    "max_tool_calls",
    "parallel_tool_calls",
    "reasoning",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
)
_PREFIX = re.compile(r"[a-z]{2,4}\Z")


class GivenItems(msgspec.Struct, frozen=True):
    """The items of a request, as data, in its order; and its other fields."""

    items: list[dict[str, Any]]
    native: NativeRequest


def given_items(body: bytes) -> GivenItems:
    """What a request, whose form has been checked, gave."""
    given = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    said = msgspec.json.decode(given["input"])
    items = [{"type": "message", "role": "user", "content": said}] if isinstance(said, str) else said
    fields = {name: bytes(given[name]) for name in _FIELDS if name in given and bytes(given[name]) != b"null"}
    tools = msgspec.json.decode(fields.get("tools", b"[]"), type=list[dict[str, Any]])
    own = tuple(str(tool.get("type")) for tool in tools if tool.get("type") not in CALLERS_TOOLS)
    return GivenItems(items, NativeRequest("responses", fields, own))


def native_item(item: Mapping[str, Any]) -> NativeBlock | None:
    """An item as a server gets it; None for reasoning that no server has sealed."""
    kind, seal = item.get("type", "message"), item.get("encrypted_content") or ""
    if kind == "reasoning" and (not seal or seal.startswith(OWN_SEAL)):
        return None
    left_out = ("id", "status") if kind in _OURS else ()
    kept = {name: value for name, value in item.items() if name not in left_out}
    return NativeBlock(json=_encode({"type": kind} | kept), type=kind, seal=seal)


class ItemIds:
    """Ids of ours for the items of one server's answer: named after the response, which later requests find by them."""

    def __init__(self, response_id: str) -> None:
        self._response_id = response_id
        self._ids: dict[str, str] = {}
        self._numbers: Counter[str] = Counter()

    def of(self, item_id: str) -> str:
        """Return our id of the item that the server calls `item_id`."""
        if (known := self._ids.get(item_id)) is None:
            prefix = item_id.partition("_")[0]
            prefix = prefix if _PREFIX.match(prefix) else "itm"
            number = self._numbers[prefix]
            self._numbers[prefix] += 1
            known = self._ids[item_id] = (
                f"{prefix}_{self._response_id}-{number}" if number else f"{prefix}_{self._response_id}"
            )
        return known

    def renamed(self, item: dict[str, Any]) -> dict[str, Any]:
        """Return the item with our id."""
        return item | {"id": self.of(str(item["id"]))} if item.get("id") else item


def without_seals(items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the items as a caller sees them who did not ask for sealed reasoning."""
    return [{name: value for name, value in item.items() if name != "encrypted_content"} for item in items]


_encode = msgspec.json.Encoder().encode
