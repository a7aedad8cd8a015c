"""What a client sent on the wire, as it is kept: with its headers and the structure of its body, without secrets and
without its prose."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec

from classifier.features.stray_text import CLIENTS_OPENINGS, CLIENTS_RULES, END_OF_EXAMPLES
from gateway.inference.clients import RULES
from tiers.dialects.chat_request import BILLING_HEADER

RECORDED = Path(__file__).parents[1] / "gateway" / "inference" / "recorded"
# Of the connection, or secret.
_LEFT_OUT = {"host", "connection", "content-length", "authorization", "x-api-key", "accept-encoding", "cookie"}
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_HASH = re.compile(r"\b[0-9a-f]{40,}\b")
_FOLDER = re.compile(r"(?:/[\w.-]+)*/(?:pytest-of|tmp)[\w./-]*")
_TAG = re.compile(r"</?[a-zA-Z][\w -]{0,40}>")
_KEPT_TEXTS = [mark.text for rule in RULES for mark in rule.marks] + [text for rule in RULES for text in rule.openings]
_KEPT_TEXTS += CLIENTS_OPENINGS[1:]
_KEPT_TEXTS += [*CLIENTS_RULES, END_OF_EXAMPLES, "cc_version=", "Change the greeting to be more casual"]
_KEPT_TEXTS += [BILLING_HEADER, "Say 3 and 7, then 10, in the shell.", "Make it 3."]
LONGEST = 96


class RecordedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`name`: what it was for. `version`: the client's."""

    client: str
    version: str
    name: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


def read_recorded() -> list[RecordedRequest]:
    """All that are kept."""
    files = sorted(RECORDED.glob("*.json"))
    return [request for file in files for request in msgspec.json.decode(file.read_bytes(), type=list[RecordedRequest])]


def kept_form(client: str, version: str, name: str, path: str, headers: dict[str, str], raw: bytes) -> dict[str, Any]:
    """The request as it is kept: ids are numbered, long texts are their tags and the signs of the rules."""
    ids: dict[str, str] = {}

    def numbered(text: str) -> str:
        def other(match: re.Match[str]) -> str:
            return ids.setdefault(match[0], f"00000000-0000-4000-8000-{len(ids) + 1:012d}")

        return _FOLDER.sub("/home/user/project", _HASH.sub(lambda match: "0" * len(match[0]), _UUID.sub(other, text)))

    shown = {name: numbered(value) for name, value in sorted(headers.items()) if name not in _LEFT_OUT}
    body = _shortened(json.loads(raw), numbered) if raw else {}
    return {"client": client, "version": version, "name": name, "path": path, "headers": shown, "body": body}


def _shortened(value: Any, numbered: Any, at: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _shortened(member, numbered, name) for name, member in value.items()}
    if isinstance(value, list):
        if at == "tools":
            return [_tool(tool) for tool in value]
        return [_shortened(element, numbered) for element in value]
    if not isinstance(value, str):
        return value
    text = numbered(value)
    if len(text) <= LONGEST or at == "user_id":
        return text
    return _structure(text)


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    kept = {name: tool[name] for name in ("type", "name") if name in tool}
    if "function" in tool:
        kept["function"] = {"name": tool["function"]["name"]}
    return kept


def _structure(text: str) -> str:
    """The tags and the kept texts of `text` in their order, with the lengths of what is between them."""
    marks = [(match.start(), match[0]) for match in _TAG.finditer(text)]
    marks += [(start, kept) for kept in _KEPT_TEXTS if (start := text.find(kept)) >= 0]
    parts, at = [], 0
    for start, kept in sorted(marks, key=lambda mark: (mark[0], -len(mark[1]))):
        if start < at:
            continue
        if start > at:
            parts.append(f"({start - at} characters)")
        parts.append(kept)
        at = start + len(kept)
    if at < len(text):
        parts.append(f"({len(text) - at} characters)")
    return "\n".join(parts)
