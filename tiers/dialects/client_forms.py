"""What clients send in the forms of other APIs, changed to what it plainly means: fields, roles, contents and
turns of OpenAI's chats and Responses, Anthropic's Messages, MCP and the servers that people run.

Only bodies that do not decode as they are, or are refused, come here, as plain objects. All else stays as it is. Each
function returns the names of what it leaves out.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from tiers.dialects.chat_request import THOUGHTS
from tiers.dialects.client_parts import (
    CALLS,
    LONGEST_NAME,
    RESULTS,
    TEXTS,
    answered_id,
    anthropics_call,
    anthropics_tool,
    bare_form,
    call_item,
    chat_call,
    chat_part,
    chat_result,
    chat_tool,
    flat_form,
    json_text,
    kind_of,
    listed,
    of_known_kinds,
    responses_tool,
    result_of,
    schema_form,
    schema_of,
    tool_choice,
)
from tiers.dialects.messages import PROVIDERS_OWN
from tiers.dialects.quirks import Dialect, edit_body

# OpenAI's own bounds.
_MOST_TAGS, _LONGEST_TAG = 16, 512
_MOST_LOGPROBS = 20
# Kinds of items that have a meaning here.
_ITEMS = re.compile("message|reasoning|compaction|_reference|_tools|_call|_output")
# Fields of a turn that matter next to a text.
_BESIDE_TEXT = frozenset(("tool_calls", "cache_control", "images"))
# Where the id of a call is, by the type of the call or of its result.
_ID_FIELDS = {"tool_use": "id", "tool_result": "tool_use_id"} | dict.fromkeys(
    ("function_call", "custom_tool_call", "function_call_output", "custom_tool_call_output"), "call_id"
)
# What other items need to say anything.
_SAYS = {"role", "content", "text", "image_url", "file_data", "file_id"}


def mend_fields(data: dict[str, Any], dialect: Dialect) -> list[str]:
    """The fields at the top of a request to any of the APIs."""
    ignored = edit_body(data, dialect)
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        if type(limit := data.get(name)) is int and limit >= 2**31:
            data[name] = 2**31 - 1
    if type(seed := data.get("seed")) is int and 2**63 <= seed < 2**64:
        data["seed"] = seed - 2**64
    for name in ("stop", "stop_sequences"):
        if isinstance(stops := data.get(name), str | list):
            data[name] = [stop for stop in ([stops] if isinstance(stops, str) else stops) if stop not in ("", None)]
    if data.get("stream_options") and not data.get("stream"):
        # Some clients always say how they want a stream.
        del data["stream_options"]
        ignored.append("stream_options")
    return ignored + _mend_tags(data)


def _mend_tags(data: dict[str, Any]) -> list[str]:
    """LiteLLM's clients have lists, numbers and whole texts in `metadata`, and more than OpenAI takes."""
    if not isinstance(metadata := data.get("metadata"), dict):
        return []
    tags = {key: tag if isinstance(tag, str) else json_text(tag) for key, tag in metadata.items() if tag is not None}
    kept = [key for key, tag in tags.items() if 0 < len(key) <= LONGEST_NAME and len(tag) <= _LONGEST_TAG][:_MOST_TAGS]
    data["metadata"] = {key: tags[key] for key in kept}
    return [f"metadata.{key}" for key in tags if key not in kept]


def mend_completion(data: dict[str, Any]) -> list[str]:
    """A text completion's body."""
    return mend_fields(data, "completions")


def mend_chat(data: dict[str, Any]) -> list[str]:
    """A chat's body."""
    ignored = mend_fields(data, "chat")
    if data.get("max_completion_tokens") is not None:
        # The newer name of the same limit.
        data.pop("max_tokens", None)
    _mend_logprobs(data)
    if (tools := listed(data.get("tools"))) is not None:
        data["tools"] = of_known_kinds([chat_tool(tool) for tool in tools], ("function", "custom"), ignored)
    data["tool_choice"] = tool_choice(data, lambda name, kind: {"type": kind, kind: {"name": name}})
    _mend_format(data)
    if (turns := _turns_given(data)) is not None:
        said = [{"role": "system", "content": data.pop("system")}] if data.get("system") else []
        data["messages"] = [mended for turn in [*said, *turns] for mended in _turns(turn)]
    return ignored


def mend_messages(data: dict[str, Any]) -> list[str]:
    """A body of Anthropic's Messages API."""
    ignored = mend_fields(data, "messages")
    if isinstance(form := data.pop("response_format", None), dict):
        data.setdefault("output_format", bare_form(schema_form(form)))
    if isinstance(config := data.get("output_config"), dict):
        config["format"] = bare_form(config.get("format"))
    thinking = data.get("thinking")
    if isinstance(thinking, dict) and (thinking.get("type") == "disabled" or thinking.get("budget_tokens") == 0):
        data["thinking"] = {"type": "disabled"}
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
    if (turns := _turns_given(data)) is not None:
        data["messages"] = _with_block_ids(list(map(_anthropics_turn, turns)))
    return ignored


def mend_responses(data: dict[str, Any]) -> list[str]:
    """A body of the Responses API."""
    ignored = mend_fields(data, "responses")
    form, text = data.pop("response_format", None), data.get("text")
    if isinstance(form, dict) or (isinstance(text, dict) and isinstance(form := text.get("format"), dict)):
        form = schema_form(form)
        data["text"] = _table(text) | {"format": flat_form(form)}
    if (tools := listed(data.get("tools"))) is not None:
        data["tools"] = list(map(responses_tool, tools))
    data["tool_choice"] = tool_choice(data, lambda name, kind: {"type": kind, "name": name})
    if data.get("input") is None and "messages" in data:
        data["input"] = data.pop("messages")
    elif data.get("input") is None and data.get("previous_response_id"):
        data["input"] = []
    if isinstance(turns := data.get("input"), list | dict):
        items = list(_items([turns] if isinstance(turns, dict) else turns))
        _set_ids((str(index), item) for index, item in enumerate(items))
        # Agents add kinds of items that only their provider reads.
        supported = [item for item in items if not kind_of(item) or _ITEMS.search(kind_of(item)) or _SAYS & item.keys()]
        ignored += dict.fromkeys(f"input.{kind_of(item)}" for item in items if supported and item not in supported)
        data["input"] = supported or items
    return ignored


def _turns_given(data: dict[str, Any]) -> list[Any] | None:
    """The turns of a body. Null is as if they were not there."""
    turns = data.get("messages")
    if turns is None:
        data.pop("messages", None)
    return turns if isinstance(turns, list) else None


def _mend_logprobs(data: dict[str, Any]) -> None:
    """How many log-probabilities, as completions and other servers have it, instead of whether."""
    if type(count := data.get("logprobs")) is int and 0 <= count <= _MOST_LOGPROBS:
        data["logprobs"] = count > 0
        if count:
            data.setdefault("top_logprobs", count)
    if data.get("logprobs") is False:
        data.pop("top_logprobs", None)
    elif data.get("top_logprobs") and data.get("logprobs") is None:
        data["logprobs"] = True


def _mend_format(data: dict[str, Any]) -> None:
    """The schema of the answer in other forms, or under the names of vLLM (earlier), llama.cpp and Ollama."""
    if isinstance(form := data.get("response_format"), str | dict):
        data["response_format"] = schema_form({"type": form} if isinstance(form, str) else form)
        return
    for name in ("guided_json", "json_schema", "format"):
        schema = schema_of(data.get(name))
        if schema == "json" or (isinstance(schema, dict) and schema):
            del data[name]
            named = schema if isinstance(schema, dict) and "schema" in schema else {"schema": schema}
            data["response_format"] = (
                {"type": "json_object"} if schema == "json" else schema_form({"type": "json_schema"} | named)
            )
            return


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _role(turn: dict[str, Any]) -> dict[str, Any]:
    """The turn with its role, which clients that add up a stream may lose."""
    if turn.get("role") or not (turn.get("tool_call_id") or turn.get("tool_calls")):
        return turn
    return turn | {"role": "tool" if turn.get("tool_call_id") else "assistant"}


def _turns(turn: Any) -> Iterator[Any]:
    """The turn as chats have it: a user's results of tools are turns of their own, before what else it says."""
    if not isinstance(turn, dict):
        yield {"role": "user", "content": turn} if isinstance(turn, str) else turn
        return
    if isinstance(turn.get("content"), str) and turn.get("role") and _BESIDE_TEXT.isdisjoint(turn):
        yield turn
        return
    turn = _with_images(_role(turn))
    content, mark = turn.get("content"), turn.get("cache_control")
    if isinstance(content, str) and mark is not None:
        # As OpenRouter and LiteLLM take it, of the whole turn.
        turn = {name: value for name, value in turn.items() if name != "cache_control"}
        content = turn["content"] = [{"type": "text", "text": content, "cache_control": mark}]
    is_result, parts = turn.get("role") in ("tool", "function"), listed(content)
    if is_result and not (parts and any(kind_of(part) in RESULTS for part in parts)):
        yield turn if isinstance(content, str | None) else turn | {"content": chat_result(content)}
        return
    tool_calls = turn.get("tool_calls") or []
    tool_calls = [tool_calls] if isinstance(tool_calls, dict) else tool_calls
    calls = [chat_call(call) for call in tool_calls if call is not None] if isinstance(tool_calls, list) else []
    if parts is None or not isinstance(tool_calls, list):
        yield turn | ({"tool_calls": calls} if calls else {})
        return
    rest: list[Any] = []
    for part in map(chat_part, parts):
        kind = kind_of(part)
        if kind in CALLS:
            calls.append(chat_call(part))
        elif kind in RESULTS:
            yield {"role": "tool", "tool_call_id": answered_id(part), "content": chat_result(result_of(part))}
        elif turn.get("role") != "assistant" or kind in THOUGHTS or not kind.endswith(PROVIDERS_OWN):
            rest.append(part)
    if not is_result and (rest or calls or not parts):
        mended = turn | {"content": rest or None}
        yield mended | {"tool_calls": calls} if calls else mended


def _with_images(turn: dict[str, Any]) -> dict[str, Any]:
    """The turn with its images as parts, which Ollama has next to the text."""
    if turn.get("role") != "user" or not (images := listed(turn.get("images"))):
        return turn
    text = [{"type": "text", "text": said}] if isinstance(said := turn.get("content"), str) else listed(said) or []
    shown = [{"type": "image_url", "image_url": image} if isinstance(image, str) else image for image in images]
    return {name: value for name, value in turn.items() if name != "images"} | {"content": [*text, *shown]}


def _anthropics_turn(turn: Any) -> Any:
    """The turn as Messages have it: results of tools are blocks of a user, calls those of an assistant."""
    if not isinstance(turn, dict):
        return {"role": "user", "content": turn} if isinstance(turn, str) else turn
    turn = _with_images(_role(turn))
    content, role = turn.get("content"), turn.get("role")
    if role in ("tool", "function") and turn.get("tool_call_id"):
        result = {"type": "tool_result", "tool_use_id": turn.get("tool_call_id")}
        return {"role": "user", "content": list(_blocks([result | {"content": content}]))}
    calls = [call for call in listed(turn.get("tool_calls")) or () if isinstance(call, dict)]
    blocks = content if isinstance(content, str | None) and not calls else list(_blocks(content))
    mended = turn | {"role": "system" if role == "developer" else role, "content": blocks}
    if not calls or not isinstance(blocks, list):
        return mended
    blocks.extend(map(anthropics_call, calls))
    return {name: value for name, value in mended.items() if name != "tool_calls"}


def _blocks(content: Any) -> Iterator[Any]:
    """The blocks of a content in the form of any API."""
    for block in [content] if isinstance(content, str) else listed(content) or ():
        part = block if isinstance(block, dict) and "source" in block else chat_part(block)
        if isinstance(part, dict) and isinstance(source := part.get("source"), dict):
            part = part | {"source": {"type": "url" if "url" in source else "base64"} | source}
        kind = kind_of(part)
        if kind in (*TEXTS, "refusal") and not part.keys().isdisjoint(("text", "refusal")):
            text = part.get("text") or part.get("refusal")
            if text or "cache_control" in part:
                kept = {name: value for name, value in part.items() if name != "refusal"}
                yield kept | {"type": "text", "text": text}
        elif kind in ("image_url", "file") and isinstance(part.get(kind), str | dict):
            inner = part[kind] if isinstance(part[kind], dict) else {"url": part[kind]}
            address, title = inner.get("url") or inner.get("file_data") or "", inner.get("filename")
            named = {"title": title} if title else {}
            yield {"type": "image" if kind == "image_url" else "document", "source": _source(str(address))} | named
        elif kind in CALLS:
            yield part if kind == "tool_use" else anthropics_call(part)
        elif kind == "thinking" and "signature" not in part:
            yield {"type": "thinking", "thinking": part.get("thinking")}
        elif kind in ("json", "resource", "resource_link"):
            yield {"type": "text", "text": json_text(part.get("json", part))}
        elif kind in RESULTS:
            said = result_of(part)
            if kind != "tool_result":
                part = {"type": "tool_result", "tool_use_id": answered_id(part)}
            if isinstance(part.get("is_error"), str):
                part = part | {"is_error": part["is_error"].lower() == "true"}
            if isinstance(said, list) and all(isinstance(inner, dict | str | None) for inner in said):
                yield part | {"content": list(_blocks(said))}
            else:
                yield part | {"content": said if isinstance(said, str | None) else json_text(said)}
        else:
            yield part


def _with_block_ids(turns: list[Any]) -> list[Any]:
    """The turns with an id for each call, by its place; results answer in their order."""
    contents = [turn.get("content") if isinstance(turn, dict) else None for turn in turns]
    placed = [
        (f"{index}_{number}", block)
        for index, blocks in enumerate(contents)
        for number, block in enumerate(blocks if isinstance(blocks, list) else ())
    ]
    _set_ids(placed)
    return turns


def _set_ids(placed: Iterable[tuple[str, Any]]) -> None:
    """Give each call an id, its own or one by its place, and each result that has none the id of the first call that
    is not answered."""
    unanswered: list[str] = []
    for position, block in placed:
        kind = kind_of(block)
        if (field := _ID_FIELDS.get(kind)) is None:
            continue
        if not kind.endswith(("_result", "_output")):
            block[field] = block.get(field) or block.get("id") or f"call_{position}"
            unanswered.append(block[field])
            continue
        if not block.get(field) and unanswered:
            block[field] = unanswered[0]
        unanswered = [call_id for call_id in unanswered if call_id != block.get(field)]


def _source(address: str) -> dict[str, Any]:
    head, _, body = address.partition(";base64,")
    if head.startswith("data:") and body:
        return {"type": "base64", "media_type": head.removeprefix("data:"), "data": body}
    return {"type": "url", "url": address}


def _items(turns: Iterable[Any]) -> Iterator[Any]:
    """Items, and turns of a chat among them, as the Responses API has them."""
    for item in chain.from_iterable(map(_without_blocks, turns)):
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
            output = chat_result(item.get("content"))
            output = output if isinstance(output, str) else list(map(_input_part, output))
            yield {"type": "function_call_output", "call_id": item.get("tool_call_id"), "output": output}
            continue
        parts = listed(item.get("content"))
        said = item if parts is None else item | {"content": list(map(_input_part, parts))}
        if not calls or said.get("content"):
            yield {name: value for name, value in said.items() if name != "tool_calls"}
        yield from (item for call in calls if (item := call_item(call)) is not None)


def _without_blocks(turn: Any) -> Iterator[Any]:
    """A turn whose content has calls, results or thoughts among its parts, as turns and items without any."""
    parts = (listed(turn.get("content")) if isinstance(turn, dict) and turn.get("role") else None) or []
    thoughts = [part for part in parts if kind_of(part) in THOUGHTS]
    if not thoughts and not any(kind_of(part) in (*CALLS, *RESULTS) for part in parts):
        yield turn
        return
    for part in thoughts:
        said = [{"type": "reasoning_text", "text": part.get("thinking")}]
        yield {"type": "reasoning", "summary": [], "content": said}
    yield from _turns(turn | {"content": [part for part in parts if part not in thoughts]})


def _item(item: dict[str, Any]) -> dict[str, Any]:
    kind = kind_of(item)
    if kind in CALLS and kind != "function_call":
        item = call_item(item) or item
    elif kind in RESULTS and kind != "function_call_output":
        item = {"type": "function_call_output", "call_id": answered_id(item), "output": chat_result(result_of(item))}
    elif kind.endswith("_output") and not item.get("call_id") and item.get("id"):
        # The id of a result of OpenAI's local shell is that of the call.
        item = item | {"call_id": item["id"]}
    if isinstance(summary := item.get("summary"), list):
        item["summary"] = [
            {"type": "summary_text", "text": part} if isinstance(part, str) else part for part in summary
        ]
    if item.get("arguments") == []:
        item["arguments"] = "{}"
    if item.get("type") == "function_call_output" and isinstance(output := item.get("output"), list):
        item["output"] = [_input_part(part) for part in output if part is not None]
    return item


def _input_part(content: Any) -> Any:
    """A part of a content in the form of any API as one of an item."""
    part = chat_part(content)
    kind = kind_of(part)
    if kind in TEXTS and part.get("text") is None:
        return part | {"text": ""}
    if kind == "image_url" and isinstance(image := part.get("image_url"), str | dict):
        return {"type": "input_image"} | ({"image_url": image} if isinstance(image, str) else _renamed_url(image))
    if kind == "file" and isinstance(part.get("file"), dict):
        return {"type": "input_file"} | part["file"]
    return part


def _renamed_url(image: dict[str, Any]) -> dict[str, Any]:
    return {"image_url" if name == "url" else name: value for name, value in image.items()}
