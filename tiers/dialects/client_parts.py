"""Parts of contents, tools, calls and results of them, and JSON schemas in the form of any API, of MCP and of agents'
libraries, written as chats, Messages and the Responses API have them.

What has no such meaning stays as it is.
"""

import base64
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

NOT_TEXT = frozenset({"signature", "encrypted_content", "data", "file_data", "image_url"})
"""Fields for what only the server of an object can read, and for the bytes of attachments."""
MAY_BE_BYTES = NOT_TEXT | {"url"}
"""Fields whose value may be bytes in base64."""
LONGEST_NAME = 64
# Types of parts that are calls and results.
CALLS = ("tool_use", "function_call")
RESULTS = ("tool_result", "function_call_output")
_IDS = ("call_id", "tool_use_id", "tool_call_id", "id")
_LARGEST = 10**300
_BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
_CHOICES = {"auto": "auto", "none": "none", "required": "required", "any": "required"}


class _Called(NamedTuple):
    id: Any
    name: str
    arguments: str


def _called(call: Any) -> _Called | None:
    """A call in the form of any API; None for what is none."""
    if not isinstance(call, dict):
        return None
    inner = call["function"] if isinstance(call.get("function"), dict) else call
    name, raw_arguments = inner.get("name"), inner.get("arguments") or inner.get("input")
    if not isinstance(name, str):
        return None
    arguments = raw_arguments if isinstance(raw_arguments, str) else json.dumps(raw_arguments or {}, ensure_ascii=False)
    return _Called(answered_id(call), name, arguments)


def answered_id(part: dict[str, Any]) -> Any:
    """The id of a call, or of the call that a result answers."""
    return next((part[name] for name in _IDS if part.get(name)), None)


def result_of(part: dict[str, Any]) -> Any:
    """The content of a result."""
    said = next((part[name] for name in ("content", "output", "result") if part.get(name) is not None), None)
    return said["value"] if isinstance(said, dict) and said.keys() == {"type", "value"} else said


def chat_call(call: Any) -> Any:
    """A call as a chat has it."""
    if isinstance(call, dict) and (isinstance(call.get("function"), dict) or isinstance(call.get("custom"), dict)):
        return call
    if (called := _called(call)) is None:
        return call
    function = {"name": called.name, "arguments": called.arguments}
    return {"id": called.id, "type": "function", "function": function}


def anthropics_call(call: Any) -> Any:
    """A call as Messages have it."""
    if (called := _called(call)) is None:
        return call
    return {"type": "tool_use", "id": called.id, "name": called.name, "input": _parsed(called.arguments) or {}}


def call_item(call: Any) -> dict[str, Any] | None:
    """A call as the Responses API has it."""
    if (called := _called(call)) is None:
        return None
    return {"type": "function_call", "call_id": called.id, "name": called.name, "arguments": called.arguments or "{}"}


def _is_schema(value: dict[str, Any]) -> bool:
    return not value.keys().isdisjoint(("properties", "$ref", "anyOf", "$defs"))


def schema_of(value: Any) -> Any:
    """A schema that is value as its text; PHP writes an empty object as a list. What is too deep to be read stays."""
    try:
        return _with_small_bounds(_parsed(value))
    except RecursionError:
        return value


def _parsed(value: Any) -> Any:
    if isinstance(value, str) and value:
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return {} if value in ([], "") else value


def _with_small_bounds(value: Any) -> Any:
    """A schema whose bounds of more than 64 bits, such as those of .NET's decimals, are floats."""
    if isinstance(value, list):
        return list(map(_with_small_bounds, value))
    if not isinstance(value, dict):
        return value
    return {
        name: _small(part) if name in _BOUNDS and type(part) is int else _with_small_bounds(part)
        for name, part in value.items()
    }


def _small(bound: int) -> int | float:
    return bound if -(2**63) <= bound < 2**64 else float(max(-_LARGEST, min(bound, _LARGEST)))


def schema_form(form: dict[str, Any]) -> dict[str, Any] | None:
    """A JSON schema at other places, as Together, TGI, llama.cpp and the Responses API have it, in a chat's, and with a
    name; None where nothing is asked for."""
    named = schema_of(form.get("json_schema"))
    if not isinstance(named, dict):
        named = {name: form[name] for name in ("name", "schema", "strict", "description") if form.get(name)}
    schema = schema_of(named.get("schema", form.get("value")))
    if schema is None and (bare := next(filter(_is_schema, (named, form)), None)) is not None:
        named, schema = {}, bare
    if not isinstance(schema, dict):
        return {"type": "json_object"} if form.get("type") == "json" else form if form.get("type") else None
    name = re.sub("[^a-zA-Z0-9_-]", "_", str(named.get("name") or "answer"))[:LONGEST_NAME]
    return {"type": "json_schema", "json_schema": named | {"name": name, "schema": schema}}


def flat_form(form: dict[str, Any] | None) -> dict[str, Any] | None:
    """The form as the Responses API has it."""
    return form if form is None or "json_schema" not in form else {"type": form["type"], **form["json_schema"]}


def bare_form(form: Any) -> Any:
    """The form as Anthropic has it, which knows schemas alone."""
    if not isinstance(form, dict) or form.get("type") == "text" or (wrapped := schema_form(form)) is None:
        return None
    named = wrapped.get("json_schema")
    return {"type": "json_schema", "schema": named["schema"]} if named and "schema" in named else form


def _fields_of(table: dict[str, Any], *names: str) -> dict[str, Any]:
    """The fields of these names that have a value."""
    return {name: table[name] for name in names if table.get(name) is not None}


def _function(tool: Any) -> dict[str, Any] | None:
    """The fields of a function in the form of any API; None for another tool."""
    if not isinstance(tool, dict) or tool.get("type") not in (None, "function", "custom"):
        return None
    if isinstance(inner := tool.get("function"), dict):
        return inner | ({"parameters": schema_of(inner["parameters"])} if "parameters" in inner else {})
    schemas = [name for name in ("input_schema", "inputSchema", "parameters") if name in tool]
    bare = tool.get("type") == "function" or ("type" not in tool and isinstance(tool.get("description"), str))
    if not isinstance(tool.get("name"), str) or not (bare or schemas):
        return None
    return _fields_of(tool, "name", "description", "strict") | (
        {"parameters": schema_of(tool[schemas[0]])} if schemas else {}
    )


def chat_tool(tool: Any) -> Any:
    """A tool as a chat has it."""
    if (function := _function(tool)) is not None:
        if isinstance(tool.get("function"), dict):
            return {"type": "function"} | tool | {"function": function}
        return {"type": "function", "function": function} | _fields_of(tool, "cache_control")
    if not isinstance(tool, dict) or tool.get("type") != "custom" or "name" not in tool:
        return tool
    custom = _fields_of(tool, "name", "description", "format")
    if isinstance(form := custom.get("format"), dict) and "definition" in form:
        grammar = {name: form[name] for name in ("definition", "syntax") if name in form}
        custom["format"] = {"type": "grammar", "grammar": grammar}
    return {"type": "custom", "custom": custom}


def of_known_kinds(tools: list[Any], kinds: tuple[str, ...], ignored: list[str]) -> list[Any]:
    """The tools without those that nothing here runs, if there are others: clients give a provider's next to theirs."""
    kept = [tool for tool in tools if isinstance(tool, dict) and tool.get("type") in kinds]
    if not kept:
        return tools
    others = [tool for tool in tools if isinstance(tool, dict) and tool.get("type") not in kinds]
    ignored += [f"tools.{tool.get('type') or next(iter(tool), '')}" for tool in others]
    return kept


def anthropics_tool(tool: Any) -> Any:
    """A tool as Messages have it."""
    if (function := _function(tool)) is None:
        return tool
    if "input_schema" in tool:
        return tool | {"input_schema": function.get("parameters")}
    schema = function.get("parameters") or {"type": "object"}
    shown = _fields_of(function, "name", "description", "strict")
    return shown | {"input_schema": schema} | _fields_of(tool, "cache_control")


def responses_tool(tool: Any) -> Any:
    """A tool as the Responses API has it."""
    function = _function(tool)
    return tool if function is None else {"type": "function"} | function


def tool_choice(data: dict[str, Any], named: Callable[[str, str], dict[str, Any]]) -> Any:
    """`tool_choice` in the form of any API: a word, or what `named` makes of a name and a kind."""
    choice = data.get("tool_choice")
    if isinstance(choice, str):
        tool_names = [function.get("name") for tool in listed(data.get("tools")) or () if (function := _function(tool))]
        return (_CHOICES.get(choice.lower(), choice) if choice not in tool_names else named(choice, "function")) or None
    if not isinstance(choice, dict):
        return choice
    if not isinstance(kind := choice.get("type") or "function", str):
        return choice
    if kind in _CHOICES:
        if choice.get("disable_parallel_tool_use") is True and "parallel_tool_calls" not in data:
            data["parallel_tool_calls"] = False
        return _CHOICES[kind]
    if kind == "allowed_tools":
        inner: dict[str, Any] = allowed if isinstance(allowed := choice.get("allowed_tools"), dict) else choice
        if not inner.get("tools"):
            return choice
        chosen = [_named(tool, named) for tool in inner.get("tools") or ()]
        fields = {"mode": inner.get("mode") or "auto", "tools": chosen}
        is_flat = "name" in named("", "function")
        return {"type": kind} | (fields if is_flat else {"allowed_tools": fields})
    return _named(choice, named)


def _named(choice: Any, named: Callable[[str, str], dict[str, Any]]) -> Any:
    if not isinstance(choice, dict) or (kind := choice.get("type") or "function") not in ("tool", "function", "custom"):
        return choice
    inner = choice.get(kind)
    name = inner.get("name") if isinstance(inner, dict) else choice.get("name")
    if not isinstance(name, str):
        return choice
    rest = {key: value for key, value in choice.items() if key not in ("type", "name", kind, "function")}
    return rest | named(name, "custom" if kind == "custom" else "function")


def listed(content: Any) -> list[Any] | None:
    """The parts of a content, if it has any."""
    if isinstance(content, dict):
        return [content] if content else []
    return [part for part in content if part is not None] if isinstance(content, list) else None


# The beginnings of images in base64.
_IMAGES = {"iVBORw0": "png", "/9j/": "jpeg", "R0lGOD": "gif", "UklGR": "webp"}
_SOUNDS = {
    "mpeg": "mp3", "x-wav": "wav", "wave": "wav", "vnd.wave": "wav", "mp4": "m4a", "x-m4a": "m4a", "x-aac": "aac"
}  # fmt: skip
TEXTS = ("text", "input_text", "output_text")


def kind_of(part: Any) -> str:
    """The type of a part; "" for what has none."""
    return str(part.get("type")) if isinstance(part, dict) else ""


def chat_part(part: Any) -> Any:
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
    body = part.get("image") or part.get("data") or part.get("url")
    media_type = part.get("mimeType") or part.get("mediaType")
    if kind in ("image", "file") and isinstance(body, str):
        # Of MCP and of the AI SDK.
        address = body if ":" in body[:16] else f"data:{media_type or 'image/png'};base64,{body}"
        if kind == "image" or str(media_type).startswith("image/"):
            return {"type": "image_url", "image_url": {"url": address}}
        return {"type": "file", "file": {"filename": part.get("filename") or "document.pdf", "file_data": address}}
    if kind == "resource" and isinstance(part.get("resource"), dict) and "text" in part["resource"]:
        return {"type": "text", "text": part["resource"]["text"]}
    if kind == "search_result":
        head = " ".join(str(field) for field in (part.get("title"), part.get("source")) if field)
        return {"type": "text", "text": f"{head}\n{_result_text(part.get('content'))}".strip()}
    return part


def _addressed(part: dict[str, Any], kind: str) -> dict[str, Any]:
    """An image that is given as its bytes alone, as Ollama takes it, and a sound as vLLM takes it, by its address."""
    medium = part.get(kind)
    address = medium.get("url") if isinstance(medium, dict) else medium
    if not isinstance(address, str):
        return part
    if kind == "image_url":
        image = next((subtype for start, subtype in _IMAGES.items() if address.startswith(start)), None)
        shown = {"url": f"data:image/{image};base64,{address}"}
        if image is not None:
            return part | {kind: (medium | shown) if isinstance(medium, dict) else shown}
    head, _, body = address.partition(";base64,")
    if body and head.startswith(("data:application/", "data:text/")):
        # As clients of Gemini and of LiteLLM give documents.
        return {"type": "file", "file": {"filename": "document.pdf", "file_data": address}}
    if not (head.startswith("data:audio/") and body):
        return part
    sound = {"data": body, "format": sound_format(head.removeprefix("data:"))}
    return {"type": "input_audio", "input_audio": sound}


def sound_format(media_type: str) -> str:
    """Return the name of a sound's format by its MIME type, with or without parameters."""
    form = media_type.partition(";")[0].removeprefix("audio/")
    return _SOUNDS.get(form, form)


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


def chat_result(content: Any) -> Any:
    """The content of a tool's result: its text, or parts where it has media; JSON of another form as its text."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = [chat_part(part) for part in content if part is not None] if isinstance(content, list) else [content]
    texts = [part.get("text") for part in parts if kind_of(part) in TEXTS]
    if len(texts) == len(parts):
        return "\n".join(str(text or "") for text in texts)
    if not any(kind_of(part) in ("image_url", "file", "input_audio", "video_url") for part in parts):
        return json_text(content)
    chat_kinds = ("image_url", "file", "input_audio", "video_url", *TEXTS)
    return [part if kind_of(part) in chat_kinds else {"type": "text", "text": json_text(part)} for part in parts]


def _result_text(content: Any) -> str:
    converted = chat_result(content)
    return converted if isinstance(converted, str) else json_text(converted)


def json_text(value: Any) -> str:
    """A value as its JSON."""
    return json.dumps(value, ensure_ascii=False)


FILE_ID = "file_id"


def file_holders(data: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the objects of a request that have the id of a file, each with it; the inner ones first."""
    for value in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
        yield from file_holders(value)
    if isinstance(data, dict) and isinstance(data.get(FILE_ID), str):
        yield data, data[FILE_ID]


def fill_file(holder: dict[str, Any], name: str, media_type: str, content: bytes) -> None:
    """Replace the id of a file by its bytes: as the source of an Anthropic block, an image, or a file."""
    del holder[FILE_ID]
    data, is_text = base64.b64encode(content).decode(), media_type.startswith("text/")
    if holder.get("type") == "file":
        said = content.decode(errors="replace") if is_text else data
        holder |= {"type": "text" if is_text else "base64", "media_type": media_type, "data": said}
    elif holder.get("type") == "input_image":
        holder["image_url"] = f"data:{media_type};base64,{data}"
    else:
        holder |= {"filename": holder.get("filename") or name, "file_data": f"data:{media_type};base64,{data}"}
