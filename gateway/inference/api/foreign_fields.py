"""What clients send that this API does not have.

Parts of a chat in the forms of other APIs, which clients put into it: tools, choices and blocks of Anthropic's
Messages and OpenAI's Responses, as Cursor sends them, Mistral's contents of plain texts, and schemas at other places.
Only bodies that do not decode as they are come here. Each part becomes what it plainly means; all else stays.

Fields that this API does not know: removed from a copy of the body, and named to the caller.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator
from functools import cache
from typing import Any, Generic, Literal, TypeVar

import msgspec
from msgspec import inspect

from tiers.remote.request_fields import FORWARDABLE

_BOM = b"\xef\xbb\xbf"
# An escape of JSON: a pair of halves of a character, a half alone, or any other.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


def whole_text(body: bytes) -> bytes:
    """Return JSON without a byte order mark, and with U+FFFD for halves of characters: clients that cut texts by UTF-16
    units send them."""
    return _ESCAPE.sub(lambda one: rb"\ufffd" if one["half"] else one[0], body.removeprefix(_BOM))


# Names of efforts elsewhere; None for that of the model.
_EFFORTS = {"ultra": "max", "default": None, "auto": None, "": None} | dict.fromkeys(("disable", "disabled"), "none")


def mend_fields(data: dict[str, Any]) -> None:
    """Change the fields at the top of a request to any of the APIs, as plain objects, in place."""
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        if data.get(name) == -1 and "prompt" not in data:
            # No limit, as LM Studio and llama.cpp have it.
            del data[name]
    if data.get("top_p") == 0:
        # Allowed by OpenAI and Anthropic: the likeliest token alone.
        data["top_p"] = 1e-6
    tables: list[Any] = [data, data.get("reasoning"), data.get("output_config")]
    for table in tables:
        for name in ("reasoning_effort", "effort") if isinstance(table, dict) else ():
            if isinstance(effort := table.get(name), str):
                table[name] = _EFFORTS.get(effort.lower(), effort.lower())
    if isinstance(tags := data.get("metadata"), dict):
        # LiteLLM's clients have lists and numbers there.
        data["metadata"] = {
            key: tag if isinstance(tag, str) else _json(tag) for key, tag in tags.items() if tag is not None
        }


def _mend_thoughts(data: dict[str, Any]) -> None:
    """How other APIs ask for thoughts, as the fields here; servers that have them so get them, too."""
    thinking, reasoning = (one if isinstance(one := data.get(name), dict) else {} for name in ("thinking", "reasoning"))
    if isinstance(effort := reasoning.get("effort"), str):
        data.setdefault("reasoning_effort", effort)
    budgets: tuple[Any, ...] = (thinking.get("budget_tokens"), reasoning.get("max_tokens"), data.get("thinking_budget"))
    is_off = thinking.get("type") == "disabled" or reasoning.get("enabled") is False
    if is_off or data.get("enable_thinking") is False or data.get("think") is False:
        budgets = (0,)
    if (budget := next((one for one in budgets if type(one) is int and one >= 0), None)) is not None:
        data.setdefault("thinking_token_budget", budget)


def mend_chat(data: dict[str, Any]) -> None:
    """Change a chat's body, as plain objects, in place."""
    _mend_thoughts(data)
    mend_fields(data)
    if isinstance(tools := data.get("tools"), list):
        data["tools"] = [_tool(tool) for tool in tools]
    choice = data.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type", "function") in ("tool", "function"):
        named = choice if "function" in choice else {"function": {"name": choice.get("name")}}
        data["tool_choice"] = named | {"type": "function"}
    if isinstance(form := data.get("response_format"), str | dict):
        data["response_format"] = _form({"type": form} if isinstance(form, str) else form) or None
    if isinstance(turns := data.get("messages"), list):
        data["messages"] = [mended for turn in turns for mended in _turns(turn)]


def _form(form: dict[str, Any]) -> dict[str, Any]:
    """A JSON schema at the top, as Together, llama.cpp and the Responses API have it, in its place, and with a name."""
    schema = form.get("json_schema")
    if not isinstance(schema, dict):
        schema = {name: form[name] for name in ("name", "schema", "strict", "description") if form.get(name)}
    if not isinstance(schema.get("schema"), dict):
        return form
    name = re.sub("[^a-zA-Z0-9_-]", "_", str(schema.get("name") or "answer"))[:_LONGEST_NAME]
    return {"type": "json_schema", "json_schema": schema | {"name": name}}


def _tool(tool: Any) -> Any:
    if isinstance(tool, dict) and isinstance(function := tool.get("function"), dict):
        # PHP writes an empty object so.
        bare: dict[str, Any] = {"parameters": {}} if function.get("parameters") in ([], "") else {}
        return {"type": "function"} | tool | {"function": function | bare}
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
        return tool
    schema = tool.get("input_schema", tool.get("parameters"))
    if tool.get("type") not in (None, "function") or ("type" not in tool and "input_schema" not in tool):
        return tool
    function = {name: tool[name] for name in ("name", "description", "strict") if tool.get(name) is not None}
    mark = {"cache_control": tool["cache_control"]} if tool.get("cache_control") is not None else {}
    return {"type": "function", "function": function | ({} if schema is None else {"parameters": schema})} | mark


def _turns(turn: Any) -> Iterator[Any]:
    """The turn as chats have it: a user's results of tools are turns of their own, before what else it says."""
    if not isinstance(turn, dict):
        yield turn
        return
    content = turn.get("content")
    if turn.get("role") == "tool":
        parts = [_part(part) for part in content] if isinstance(content, list) else []
        are_parts = bool(parts) and all(isinstance(part, dict) and "type" in part for part in parts)
        if not isinstance(content, str | None):
            turn = turn | {"content": parts if are_parts or content == [] else _json(content)}
        yield turn
        return
    if isinstance(content, dict):
        content = [content]
    given = turn.get("tool_calls") or []
    if not isinstance(content, list) or not isinstance(given, list):
        yield turn
        return
    calls = list(given)
    rest: list[Any] = []
    for part in map(_part, content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "tool_use":
            function = {"name": part.get("name"), "arguments": _json(part.get("input") or {})}
            calls.append({"id": part.get("id"), "type": "function", "function": function})
        elif kind == "tool_result":
            yield {"role": "tool", "tool_call_id": part.get("tool_use_id"), "content": _result(part.get("content"))}
        else:
            rest.append(part)
    if rest or calls or not content:
        mended = turn | {"content": rest or None}
        yield mended | {"tool_calls": calls} if calls else mended


def _part(part: Any) -> Any:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if isinstance(part, dict) and "type" not in part and isinstance(part.get("text"), str):
        return {"type": "text"} | part
    return _medium(part, part["source"]) if isinstance(part, dict) and isinstance(part.get("source"), dict) else part


def _medium(part: dict[str, Any], source: dict[str, Any]) -> dict[str, Any]:
    """An image or a document of Anthropic's form."""
    body = source.get("url") or f"data:{source.get('media_type')};base64,{source.get('data')}"
    if part.get("type") == "image":
        return {"type": "image_url", "image_url": {"url": body}}
    if part.get("type") != "document":
        return part
    if source.get("type") == "text":
        return {"type": "text", "text": source.get("data")}
    return {"type": "file", "file": {"filename": part.get("title") or "document.pdf", "file_data": body}}


def _result(content: Any) -> Any:
    if content is None or isinstance(content, str):
        return content or ""
    parts = [_part(part) for part in content] if isinstance(content, list) else [content]
    texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    if len(texts) == len(parts):
        return "\n".join(map(str, texts))
    kinds = [part.get("type") if isinstance(part, dict) else None for part in parts]
    return parts if {*kinds} <= {"text", "image_url", "file"} else _json(content)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


Body = TypeVar("Body", bound=msgspec.Struct)

MOST_NAMES = 32
MOST_CHARS = 512
_LONGEST_NAME = 64
_UNSAFE = re.compile(r"[^A-Za-z0-9_.\[\]-]")


class FieldReader(Generic[Body]):
    """Reads the JSON of a request of the type `body`, of `endpoint`.

    `harmless`: fields that are known but without effect here, although they are accepted: leaving them out changes
    nothing that the caller could miss. `forwards`: whether fields at the top that some server knows are kept for it:
    those of OpenAI's form, or `any` of Anthropic's. `mend`: changes a body that does not decode, as plain objects,
    to what it plainly means.
    """

    def __init__(
        self,
        endpoint: str,
        body: type[Body],
        harmless: tuple[str, ...] = (),
        forwards: Literal["none", "known", "any"] = "none",
        mend: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.endpoint, self.forwards = endpoint, forwards
        self.decode: Callable[[bytes], Body] = msgspec.json.Decoder(body).decode
        self.harmless, self._mend = harmless, mend
        self._body = body

    def known_part(self, body: bytes, forward: Collection[str] = ()) -> tuple[Body, list[str], dict[str, Any]]:
        """Return the request in `body` without fields that its types do not know, the names of these, and those at the
        top that are kept for a server. `forward`: further names of such fields. Numbers and truth values may be texts.

        Raises what `decode` does, but for unknown fields. Takes about three times as long.
        """
        data = msgspec.json.decode(body)
        extra: dict[str, Any] = {}
        if isinstance(data, dict):
            if self.forwards != "none" and isinstance(data.get("extra_body"), dict):
                # Clients that do not send the fields of an `extra_body` at the top mean the same.
                data = data.pop("extra_body") | data
            if self._mend is not None:
                self._mend(data)
        if self.forwards != "none" and isinstance(data, dict):
            extra = self._taken(data, forward)
        pruner = _pruner_of_body(self._body)
        ignored = [] if pruner is None else list(dict.fromkeys(pruner(data, "")))
        # Not `convert`, which makes no `Raw`.
        return msgspec.json.decode(msgspec.json.encode(data), type=self._body, strict=False), ignored, extra

    def _taken(self, data: dict[str, Any], forward: Collection[str]) -> dict[str, Any]:
        """Take out of `data` the fields that are kept for a server."""
        known = {field.encode_name for field in msgspec.structs.fields(self._body)}
        names = [name for name in data if name not in known]
        if self.forwards == "known":
            names = [name for name in names if name in FORWARDABLE or name in forward]
        return {name: data.pop(name) for name in names[:MOST_NAMES]}


def shown_names(names: list[str]) -> str:
    """Return the names for a header: safe characters, and a bounded length."""
    safe = [_UNSAFE.sub("?", name[:_LONGEST_NAME]) for name in names[:MOST_NAMES]]
    text = ", ".join(safe)
    if len(text) > MOST_CHARS:
        text = text[:MOST_CHARS].rpartition(", ")[0]
    return text if len(text) == len(", ".join(safe)) and len(names) <= MOST_NAMES else f"{text}, ..."


# Removes unknown fields from data of one type, at a path, and yields their names.
_Pruner = Callable[[Any, str], Iterator[str]]


@cache
def _pruner_of_body(body: type[msgspec.Struct]) -> _Pruner | None:
    return _pruner_of(inspect.type_info(body))


def _pruner_of(kind: inspect.Type) -> _Pruner | None:
    """Return what removes unknown fields of `kind`; None if it can have none."""
    if isinstance(kind, inspect.StructType):
        return _struct_pruner(kind)
    if isinstance(kind, inspect.ListType):
        inner = _pruner_of(kind.item_type)
        return None if inner is None else _list_pruner(inner)
    if isinstance(kind, inspect.UnionType):
        # JSON types tell the members of a union apart: at most one is an object, and one an array.
        return _union_pruner([found for one in kind.types if (found := _pruner_of(one)) is not None])
    return None


def _struct_pruner(kind: inspect.StructType) -> _Pruner:
    inner = {field.encode_name: _pruner_of(field.type) for field in kind.fields}

    def prune(data: Any, path: str) -> Iterator[str]:
        if not isinstance(data, dict):
            return
        if kind.cls.__struct_config__.forbid_unknown_fields:
            for name in [name for name in data if name not in inner]:
                del data[name]
                yield f"{path}{name}"
        for name, value in data.items():
            pruner = inner.get(name)
            if pruner is not None:
                yield from pruner(value, f"{path}{name}.")

    return prune


def _list_pruner(inner: _Pruner) -> _Pruner:
    def prune(data: Any, path: str) -> Iterator[str]:
        if isinstance(data, list):
            for value in data:
                yield from inner(value, f"{path[:-1]}[].")

    return prune


def _union_pruner(members: list[_Pruner]) -> _Pruner | None:
    if len(members) < 2:
        return members[0] if members else None

    def prune(data: Any, path: str) -> Iterator[str]:
        for member in members:
            yield from member(data, path)

    return prune
