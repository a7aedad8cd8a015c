"""What clients send in the forms of other APIs, changed to what it plainly means: fields, roles, contents and
turns of OpenAI's chats and Responses, Anthropic's Messages, MCP and the servers that people run.

Only bodies that do not decode as they are, or are refused, come here, as plain objects. All else stays as it is. Each
function returns the names of what it leaves out.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gateway.inference.api.chat_turns import THOUGHTS
from gateway.inference.api.foreign_tools import (
    LONGEST_NAME,
    anthropics_tool,
    bare_form,
    chat_tool,
    flat_form,
    listed,
    of_known_kinds,
    responses_tool,
    schema_form,
    schema_of,
    tool_choice,
)
from tiers.message_content import PROVIDERS_OWN

# OpenAI's own bounds.
_MOST_TAGS, _LONGEST_TAG = 16, 512
_ROLES = {
    "human": "user", "ai": "assistant", "model": "assistant", "bot": "assistant", "ipython": "tool",
    "tool-call": "assistant", "tool-response": "user",
}  # fmt: skip
# The beginnings of images in base64.
_IMAGES = {"iVBORw0": "png", "/9j/": "jpeg", "R0lGOD": "gif", "UklGR": "webp"}
_SOUNDS = {"mpeg": "mp3", "x-wav": "wav", "wave": "wav", "vnd.wave": "wav"}
# Names of efforts elsewhere; None for that of the model.
_EFFORTS = {"ultra": "max", "default": None, "auto": None, "": None} | dict.fromkeys(
    ("disable", "disabled", "off"), "none"
)
_SERVICE_TIERS = {"": None} | dict.fromkeys(("standard", "standard_only", "on_demand"), "default")
_TEXTS = ("text", "input_text", "output_text")


def mend_fields(data: dict[str, Any]) -> list[str]:
    """The fields at the top of a request to any of the APIs."""
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        if data.get(name) == -1 and "prompt" not in data:
            # No limit, as LM Studio and llama.cpp have it.
            del data[name]
        elif type(limit := data.get(name)) is int and limit >= 2**31:
            data[name] = 2**31 - 1
    if data.get("top_p") == 0:
        # Allowed by OpenAI and Anthropic: the likeliest token alone.
        data["top_p"] = 1e-6
    if type(seed := data.get("seed")) is int and 2**63 <= seed < 2**64:
        data["seed"] = seed - 2**64
    tables: list[Any] = [data, data.get("reasoning"), data.get("output_config")]
    for table in tables:
        for name in ("reasoning_effort", "effort") if isinstance(table, dict) else ():
            if isinstance(effort := table.get(name), str):
                table[name] = _EFFORTS.get(effort.lower(), effort.lower())
    for name in ("stop", "stop_sequences"):
        if isinstance(stops := data.get(name), str | list):
            data[name] = [stop for stop in ([stops] if isinstance(stops, str) else stops) if stop not in ("", None)]
    return _mend_tags(data)


def _mend_tags(data: dict[str, Any]) -> list[str]:
    """LiteLLM's clients have lists, numbers and whole texts in `metadata`, and more than OpenAI takes."""
    if not isinstance(given := data.get("metadata"), dict):
        return []
    tags = {key: tag if isinstance(tag, str) else _json(tag) for key, tag in given.items() if tag is not None}
    kept = [key for key, tag in tags.items() if 0 < len(key) <= LONGEST_NAME and len(tag) <= _LONGEST_TAG][:_MOST_TAGS]
    data["metadata"] = {key: tags[key] for key in kept}
    return [f"metadata.{key}" for key in tags if key not in kept]


def mend_chat(data: dict[str, Any]) -> list[str]:
    """A chat's body."""
    _mend_thoughts(data)
    ignored = mend_fields(data)
    _named_as(data, "stop", "stop_sequences")
    _mend_service_tier(data)
    if (tools := listed(data.get("tools"))) is not None:
        data["tools"] = of_known_kinds([chat_tool(tool) for tool in tools], ("function", "custom"), ignored)
    data["tool_choice"] = tool_choice(data, lambda name, kind: {"type": kind, kind: {"name": name}})
    if isinstance(form := data.get("response_format"), str | dict):
        data["response_format"] = schema_form({"type": form} if isinstance(form, str) else form)
    if isinstance(turns := data.get("messages"), list):
        said = [{"role": "system", "content": data.pop("system")}] if data.get("system") else []
        data["messages"] = [mended for turn in [*said, *turns] for mended in _turns(turn)]
    return ignored


def mend_messages(data: dict[str, Any]) -> list[str]:
    """A body of Anthropic's Messages API."""
    ignored = mend_fields(data)
    _named_as(data, "max_tokens", "max_completion_tokens", "max_output_tokens")
    _named_as(data, "stop_sequences", "stop")
    if isinstance(form := data.pop("response_format", None), dict):
        data.setdefault("output_format", bare_form(schema_form(form)))
    if isinstance(effort := data.pop("reasoning_effort", None), str):
        data["output_config"] = {"effort": effort} | _table(data.get("output_config"))
    if isinstance(config := data.get("output_config"), dict):
        if config.get("effort") == "none":
            data.setdefault("thinking", {"type": "disabled"})
        config["effort"] = {"minimal": "low", "none": None}.get(str(config.get("effort")), config.get("effort"))
        config["format"] = bare_form(config.get("format"))
    if isinstance(thinking := data.get("thinking"), dict):
        if thinking.get("type") == "auto":
            thinking["type"] = "adaptive"
        if thinking.get("type") == "disabled" or thinking.get("budget_tokens") == 0:
            data["thinking"] = {"type": "disabled"}
    if data.get("service_tier") == "default":
        data["service_tier"] = "standard_only"
    if data.get("top_k") == -1:
        del data["top_k"]
    if (tools := listed(data.get("tools"))) is not None:
        data["tools"] = list(map(anthropics_tool, tools))
    choice = tool_choice(data, lambda name, _: {"type": "tool", "name": name})
    if isinstance(choice, str):
        choice = {"type": "any" if choice == "required" else choice}
        if data.pop("parallel_tool_calls", None) is False and choice["type"] != "none":
            choice["disable_parallel_tool_use"] = True
    data["tool_choice"] = choice
    if isinstance(system := data.get("system"), list | dict):
        data["system"] = list(_blocks(system))
    if isinstance(turns := data.get("messages"), list):
        data["messages"] = list(map(_anthropics_turn, turns))
    return ignored


def mend_responses(data: dict[str, Any]) -> list[str]:
    """A body of the Responses API."""
    ignored = mend_fields(data)
    _named_as(data, "max_output_tokens", "max_completion_tokens", "max_tokens")
    _mend_service_tier(data)
    if isinstance(effort := data.pop("reasoning_effort", None), str):
        data["reasoning"] = {"effort": effort} | _table(data.get("reasoning"))
    form, text = data.pop("response_format", None), data.get("text")
    if isinstance(form, dict) or (isinstance(text, dict) and isinstance(form := text.get("format"), dict)):
        form = schema_form(form)
        data["text"] = _table(text) | {"format": flat_form(form)}
    if not data.get("previous_response_id", "-"):
        del data["previous_response_id"]
    if (tools := listed(data.get("tools"))) is not None:
        data["tools"] = list(map(responses_tool, tools))
    data["tool_choice"] = tool_choice(data, lambda name, kind: {"type": kind, "name": name})
    if data.get("input") is None and "messages" in data:
        data["input"] = data.pop("messages")
    if isinstance(given := data.get("input"), list | dict):
        data["input"] = list(_with_call_ids(_items([given] if isinstance(given, dict) else given)))
    return ignored


MENDS: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    "fields": mend_fields,
    "chat": mend_chat,
    "messages": mend_messages,
    "responses": mend_responses,
}


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _named_as(data: dict[str, Any], name: str, *others: str) -> None:
    """What another API calls `others`, under its name here."""
    for other in others:
        given = data.pop(other, None)
        if given is not None and data.get(name) is None:
            data[name] = given


def _mend_service_tier(data: dict[str, Any]) -> None:
    if isinstance(asked := data.get("service_tier"), str):
        data["service_tier"] = _SERVICE_TIERS.get(asked, asked)


def _mend_thoughts(data: dict[str, Any]) -> None:
    """How other APIs ask for thoughts, as the fields here; servers that have them so get them, too."""
    thinking, reasoning = (one if isinstance(one := data.get(name), dict) else {} for name in ("thinking", "reasoning"))
    if isinstance(given := data.get("reasoning_effort"), dict):
        data["reasoning_effort"] = given.get("effort")
    if isinstance(effort := reasoning.get("effort"), str):
        data.setdefault("reasoning_effort", effort)
    budgets: tuple[Any, ...] = (thinking.get("budget_tokens"), reasoning.get("max_tokens"), data.get("thinking_budget"))
    is_off = thinking.get("type") == "disabled" or reasoning.get("enabled") is False
    if is_off or data.get("enable_thinking") is False or data.get("think") is False:
        budgets = (0,)
    if (budget := next((one for one in budgets if type(one) is int and one >= 0), None)) is not None:
        data.setdefault("thinking_token_budget", budget)


def _role(turn: dict[str, Any]) -> dict[str, Any]:
    role = turn.get("role")
    return turn | {"role": _ROLES.get(role.lower(), role.lower())} if isinstance(role, str) else turn


def _turns(turn: Any) -> Iterator[Any]:
    """The turn as chats have it: a user's results of tools are turns of their own, before what else it says."""
    if not isinstance(turn, dict):
        yield turn
        return
    turn = _role(turn)
    content, mark = turn.get("content"), turn.get("cache_control")
    if isinstance(content, str) and mark is not None:
        # As OpenRouter and LiteLLM take it, of the whole turn.
        turn = {name: value for name, value in turn.items() if name != "cache_control"}
        content = turn["content"] = [{"type": "text", "text": content, "cache_control": mark}]
    is_result, parts = turn.get("role") in ("tool", "function"), listed(content)
    if is_result and not (parts and any(_kind(part) == "tool_result" for part in parts)):
        yield turn if isinstance(content, str | None) else turn | {"content": _result(content)}
        return
    given = turn.get("tool_calls") or []
    given = [given] if isinstance(given, dict) else given
    if parts is None or not isinstance(given, list):
        yield turn | ({"tool_calls": given} if isinstance(given, list) and given else {})
        return
    calls = [call for call in given if call is not None]
    rest: list[Any] = []
    for part in map(_part, parts):
        kind = _kind(part)
        if kind == "tool_use":
            function = {"name": part.get("name"), "arguments": _json(part.get("input") or {})}
            calls.append({"id": part.get("id"), "type": "function", "function": function})
        elif kind == "tool_result":
            yield {"role": "tool", "tool_call_id": part.get("tool_use_id"), "content": _result(part.get("content"))}
        elif turn.get("role") != "assistant" or kind in THOUGHTS or not kind.endswith(PROVIDERS_OWN):
            rest.append(part)
    if not is_result and (rest or calls or not parts):
        mended = turn | {"content": rest or None}
        yield mended | {"tool_calls": calls} if calls else mended


def _kind(part: Any) -> str:
    return str(part.get("type")) if isinstance(part, dict) else ""


def _part(part: Any) -> Any:
    """A part of a content in the form of any API as one of a chat."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, dict):
        return part
    if isinstance(source := part.get("source"), dict):
        return _medium(part, source)
    kind, url = part.get("type"), part.get("image_url")
    if kind in ("image_url", "audio_url"):
        return _addressed(part, kind)
    if kind is None and isinstance(part.get("text"), str):
        return {"type": "text"} | part
    if kind == "input_image" and isinstance(url, str | dict):
        detail = {"detail": part["detail"]} if isinstance(part.get("detail"), str) else {}
        return {"type": "image_url", "image_url": (url if isinstance(url, dict) else {"url": url}) | detail}
    if kind == "input_file":
        file = {name: part[name] for name in ("filename", "file_id", "file_data") if isinstance(part.get(name), str)}
        return {"type": "file", "file": {"file_data": part["file_url"]} | file if part.get("file_url") else file}
    body, media_type = part.get("image") or part.get("data"), part.get("mimeType") or part.get("mediaType")
    if kind in ("image", "file") and isinstance(body, str):
        # Of MCP and of the AI SDK.
        address = body if ":" in body[:16] else f"data:{media_type or 'image/png'};base64,{body}"
        if kind == "image" or str(media_type).startswith("image/"):
            return {"type": "image_url", "image_url": {"url": address}}
        return {"type": "file", "file": {"filename": part.get("filename") or "document.pdf", "file_data": address}}
    if kind == "resource" and isinstance(part.get("resource"), dict) and "text" in part["resource"]:
        return {"type": "text", "text": part["resource"]["text"]}
    if kind == "search_result":
        head = " ".join(str(one) for one in (part.get("title"), part.get("source")) if one)
        return {"type": "text", "text": f"{head}\n{_result_text(part.get('content'))}".strip()}
    return part


def _addressed(part: dict[str, Any], kind: str) -> dict[str, Any]:
    """An image that is given as its bytes alone, as Ollama takes it, and a sound as vLLM takes it, by its address."""
    given = part.get(kind)
    address = given.get("url") if isinstance(given, dict) else given
    if not isinstance(address, str):
        return part
    if kind == "image_url":
        image = next((one for start, one in _IMAGES.items() if address.startswith(start)), None)
        shown = {"url": f"data:image/{image};base64,{address}"}
        return part if image is None else part | {kind: (given | shown) if isinstance(given, dict) else shown}
    head, _, body = address.partition(";base64,")
    if not (head.startswith("data:audio/") and body):
        return part
    form = head.removeprefix("data:audio/").partition(";")[0]
    return {"type": "input_audio", "input_audio": {"data": body, "format": _SOUNDS.get(form, form)}}


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
    """The content of a tool's result: its text, or parts where it has media; JSON of another form as its text."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = [_part(part) for part in content if part is not None] if isinstance(content, list) else [content]
    texts = [part.get("text") for part in parts if _kind(part) in _TEXTS]
    if len(texts) == len(parts):
        return "\n".join(str(text or "") for text in texts)
    if not any(_kind(part) in ("image_url", "file", "input_audio", "video_url") for part in parts):
        return _json(content)
    known = ("image_url", "file", "input_audio", "video_url", *_TEXTS)
    return [part if _kind(part) in known else {"type": "text", "text": _json(part)} for part in parts]


def _result_text(content: Any) -> str:
    found = _result(content)
    return found if isinstance(found, str) else _json(found)


def _anthropics_turn(turn: Any) -> Any:
    """The turn as Messages have it: results of tools are blocks of a user, calls those of an assistant."""
    if not isinstance(turn, dict):
        return turn
    turn = _role(turn)
    content, role = turn.get("content"), turn.get("role")
    if role in ("tool", "function") and turn.get("tool_call_id"):
        result = {"type": "tool_result", "tool_use_id": turn.get("tool_call_id")}
        return {"role": "user", "content": list(_blocks([result | {"content": content}]))}
    calls = [call for call in listed(turn.get("tool_calls")) or () if isinstance(call, dict)]
    blocks = content if isinstance(content, str | None) and not calls else list(_blocks(content))
    mended = turn | {"role": "system" if role == "developer" else role, "content": blocks}
    if not calls or not isinstance(blocks, list):
        return mended
    for call in calls:
        function: dict[str, Any] = found if isinstance(found := call.get("function"), dict) else {}
        blocks.append(
            {"type": "tool_use", "id": call.get("id"), "name": function.get("name")}
            | {"input": schema_of(function.get("arguments")) or {}}
        )
    return {name: value for name, value in mended.items() if name != "tool_calls"}


def _blocks(content: Any) -> Iterator[Any]:
    """The blocks of a content in the form of any API."""
    for given in [content] if isinstance(content, str) else listed(content) or ():
        part = given if isinstance(given, dict) and "source" in given else _part(given)
        kind = _kind(part)
        if kind in (*_TEXTS, "refusal") and not part.keys().isdisjoint(("text", "refusal")):
            text = part.get("text") or part.get("refusal")
            if text or "cache_control" in part:
                kept = {name: value for name, value in part.items() if name != "refusal"}
                yield kept | {"type": "text", "text": text}
        elif kind in ("image_url", "file") and isinstance(part.get(kind), str | dict):
            inner = part[kind] if isinstance(part[kind], dict) else {"url": part[kind]}
            address, title = inner.get("url") or inner.get("file_data") or "", inner.get("filename")
            named = {"title": title} if title else {}
            yield {"type": "image" if kind == "image_url" else "document", "source": _source(str(address))} | named
        elif kind == "tool_result":
            said = part.get("content")
            if isinstance(part.get("is_error"), str):
                part = part | {"is_error": part["is_error"].lower() == "true"}
            if isinstance(said, list) and all(isinstance(one, dict | str | None) for one in said):
                yield part | {"content": list(_blocks(said))}
            else:
                yield part | {"content": said if isinstance(said, str | None) else _json(said)}
        else:
            yield part


def _source(address: str) -> dict[str, Any]:
    head, _, body = address.partition(";base64,")
    if head.startswith("data:") and body:
        return {"type": "base64", "media_type": head.removeprefix("data:"), "data": body}
    return {"type": "url", "url": address}


def _items(turns: Iterable[Any]) -> Iterator[Any]:
    """Items, and turns of a chat among them, as the Responses API has them."""
    for item in turns:
        if isinstance(item, str):
            yield {"role": "user", "content": item}
        if not isinstance(item, dict):
            continue
        item = _role({name: value for name, value in item.items() if name != "type" or value is not None})
        if not isinstance(item.get("id", ""), str) or len(item.get("id", "")) > 128:
            # Copilot's are longer; nothing here refers to them.
            del item["id"]
        if item.get("type", "message") != "message":
            yield _item(item)
            continue
        role, calls = item.get("role"), listed(item.get("tool_calls")) or []
        if role in ("tool", "function") and item.get("tool_call_id"):
            output = _result(item.get("content"))
            output = output if isinstance(output, str) else list(map(_input_part, output))
            yield {"type": "function_call_output", "call_id": item.get("tool_call_id"), "output": output}
            continue
        parts = listed(item.get("content"))
        said = item if parts is None else item | {"content": list(map(_input_part, parts))}
        if not calls or said.get("content"):
            yield {name: value for name, value in said.items() if name != "tool_calls"}
        for call in calls:
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict):
                yield {"type": "function_call", "call_id": call.get("id"), "name": function.get("name")} | {
                    "arguments": function.get("arguments") or "{}"
                }


def _item(item: dict[str, Any]) -> dict[str, Any]:
    if isinstance(summary := item.get("summary"), list):
        item["summary"] = [{"type": "summary_text", "text": one} if isinstance(one, str) else one for one in summary]
    if item.get("arguments") == []:
        item["arguments"] = "{}"
    if item.get("type") == "function_call_output" and isinstance(output := item.get("output"), list):
        item["output"] = [_input_part(part) for part in output if part is not None]
    return item


def _with_call_ids(items: Iterable[Any]) -> Iterator[Any]:
    """The items with an id for each call: a call's other id, or one by its place; results answer in their order."""
    unanswered: list[str] = []
    for place, item in enumerate(items):
        kind = str(item.get("type"))
        if kind in ("function_call", "custom_tool_call"):
            item = item | {"call_id": item.get("call_id") or item.get("id") or f"call_{place}"}
            unanswered.append(item["call_id"])
        elif kind in ("function_call_output", "custom_tool_call_output"):
            if not item.get("call_id") and unanswered:
                item = item | {"call_id": unanswered[0]}
            unanswered = [one for one in unanswered if one != item.get("call_id")]
        yield item


def _input_part(content: Any) -> Any:
    """A part of a content in the form of any API as one of an item."""
    part = _part(content)
    kind = _kind(part)
    if kind in _TEXTS and part.get("text") is None:
        return part | {"text": ""}
    if kind == "image_url" and isinstance(image := part.get("image_url"), str | dict):
        return {"type": "input_image"} | ({"image_url": image} if isinstance(image, str) else _renamed_url(image))
    if kind == "file" and isinstance(part.get("file"), dict):
        return {"type": "input_file"} | part["file"]
    return part


def _renamed_url(image: dict[str, Any]) -> dict[str, Any]:
    return {"image_url" if name == "url" else name: value for name, value in image.items()}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
