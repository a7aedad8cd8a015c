"""Tools, choices and calls of them and JSON schemas in the form of any API, as chats, Messages and the Responses API
have them.

What has no such meaning stays as it is.
"""

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

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
    name, given = inner.get("name"), inner.get("arguments") or inner.get("input")
    if not isinstance(name, str):
        return None
    arguments = given if isinstance(given, str) else json.dumps(given or {}, ensure_ascii=False)
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
    if schema is None and (bare := next((one for one in (named, form) if _is_schema(one)), None)) is not None:
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
    if not isinstance(form, dict) or form.get("type") == "text" or (found := schema_form(form)) is None:
        return None
    named = found.get("json_schema")
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
        given = [function.get("name") for tool in listed(data.get("tools")) or () if (function := _function(tool))]
        return (_CHOICES.get(choice.lower(), choice) if choice not in given else named(choice, "function")) or None
    if not isinstance(choice, dict):
        return choice
    if not isinstance(kind := choice.get("type") or "function", str):
        return choice
    if kind in _CHOICES:
        if choice.get("disable_parallel_tool_use") is True and "parallel_tool_calls" not in data:
            data["parallel_tool_calls"] = False
        return _CHOICES[kind]
    if kind == "allowed_tools":
        inner: dict[str, Any] = found if isinstance(found := choice.get("allowed_tools"), dict) else choice
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
