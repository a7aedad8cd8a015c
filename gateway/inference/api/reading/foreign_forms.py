"""Parts of a chat in the forms of other APIs, which clients put into it: tools, choices and blocks of Anthropic's
Messages and OpenAI's Responses, as Cursor sends them, and Mistral's contents of plain texts.

Only bodies that do not decode as they are come here. Each part becomes what it plainly means; all else stays.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

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


def mend_chat(data: dict[str, Any]) -> None:
    """Change a chat's body, as plain objects, in place."""
    if isinstance(tools := data.get("tools"), list):
        data["tools"] = [_tool(tool) for tool in tools]
    choice = data.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") in ("tool", "function") and isinstance(choice.get("name"), str):
        data["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}}
    if isinstance(turns := data.get("messages"), list):
        data["messages"] = [mended for turn in turns for mended in _turns(turn)]


def mend_response(data: dict[str, Any]) -> None:
    """The same for a body of `/v1/responses`: an output that is an object is its JSON."""
    for item in data["input"] if isinstance(data.get("input"), list) else ():
        if isinstance(item, dict) and isinstance(item.get("output"), dict):
            item["output"] = _json(item["output"])


def _tool(tool: Any) -> Any:
    if not isinstance(tool, dict) or "function" in tool or not isinstance(tool.get("name"), str):
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
        if isinstance(content, dict | list):
            turn = turn | {"content": parts if are_parts or content == [] else _json(content)}
        yield turn
        return
    if isinstance(content, dict):
        content = [content]
    if not isinstance(content, list):
        yield turn
        return
    calls = list(turn.get("tool_calls") or ())
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
    return part


def _result(content: Any) -> Any:
    if content is None or isinstance(content, str):
        return content or ""
    parts = [_part(part) for part in content] if isinstance(content, list) else [content]
    texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    return "\n".join(map(str, texts)) if len(texts) == len(parts) else _json(content)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
