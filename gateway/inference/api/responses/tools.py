"""Tools of `/v1/responses` as tools of a chat, and calls of them back: a namespace becomes the beginning of a name."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from gateway.base.errors import bad_request
from gateway.inference.api.responses.schemas import ChosenTool, NamespacedTool, ResponseTool, ToolChoice, ToolFormat
from tiers.dialects.chat_schemas import (
    MAX_TOOLS,
    AllowedTools,
    CustomFormat,
    CustomGrammar,
    CustomTool,
    FunctionDefinition,
    NamedFunction,
    NamedTool,
    NamedToolChoice,
    ToolDefinition,
)
from tiers.dialects.constraints import CUSTOM

NAMESPACE = "namespace"
SEARCH = "tool_search"
"""A search for further tools, which to models is a function of this name."""
_LONGEST_NAME = 64
_DIGEST_CHARS = 8


class CalledTool(NamedTuple):
    """A tool as its caller knows it."""

    name: str
    namespace: str | None
    is_custom: bool
    is_search: bool = False


def flat_name(name: str, namespace: str | None) -> str:
    """The name of a tool without its namespace: always the same one, since conversations repeat it. A digest stands for
    the end of a name that is too long for a function."""
    if namespace is None:
        return name
    flat = namespace + name if namespace.endswith("__") else f"{namespace}__{name}"
    if len(flat) <= _LONGEST_NAME:
        return flat
    digest = hashlib.sha256(flat.encode(errors="replace")).hexdigest()[:_DIGEST_CHARS]
    return f"{flat[: _LONGEST_NAME - _DIGEST_CHARS - 1]}_{digest}"


def called_tools(tools: Sequence[ResponseTool]) -> dict[str, CalledTool]:
    """The tools by the names under which models know them."""
    return {
        flat_name(_name(tool), namespace): CalledTool(
            _name(tool), namespace, is_custom=tool.type == CUSTOM, is_search=tool.type == SEARCH
        )
        for tool, namespace, _, _ in _flat(tools)
    }


def _name(tool: NamespacedTool) -> str:
    return SEARCH if tool.type == SEARCH else tool.name


def chat_tools(tools: Sequence[ResponseTool]) -> list[ToolDefinition]:
    """The tools as a chat gives them. Raises `ApiError` 400 that names the parameter."""
    definitions = [_definition(*entry) for entry in _flat(tools)]
    if len(definitions) > MAX_TOOLS:
        raise bad_request(
            f"tools hold {len(definitions)} with those of namespaces; at most {MAX_TOOLS} fit one request.",
            "tools",
            "array_too_long",
        )
    return definitions


def chat_choice(choice: str | ToolChoice | None) -> str | NamedToolChoice | None:
    if choice is None or isinstance(choice, str):
        return choice
    if choice.type == "allowed_tools":
        if not choice.tools:
            raise bad_request(
                "tool_choice of the type allowed_tools needs tools.", "tool_choice.tools", "missing_required_parameter"
            )
        named = [_named(tool, f"tool_choice.tools[{place}]") for place, tool in enumerate(choice.tools)]
        return NamedToolChoice(type=choice.type, allowed_tools=AllowedTools(mode=choice.mode, tools=named))
    one = _named(choice, "tool_choice")
    return NamedToolChoice(type=one.type, function=one.function, custom=one.custom)


def shown_tool(tool: ResponseTool) -> dict[str, Any]:
    """The tool as a Response repeats it."""
    if tool.type == NAMESPACE:
        inner = [_shown(one) for one in tool.tools or ()]
        return {"type": NAMESPACE, "name": tool.name, "description": tool.description, "tools": inner}
    return _shown(tool)


def shown_choice(choice: str | ToolChoice | None) -> str | dict[str, Any]:
    """The choice as a Response repeats it."""
    if choice is None or isinstance(choice, str):
        return choice or "auto"
    if choice.type == "allowed_tools":
        return {"type": choice.type, "mode": choice.mode, "tools": [_shown_name(tool) for tool in choice.tools or ()]}
    return _shown_name(choice)


def _flat(tools: Sequence[ResponseTool]) -> Iterator[tuple[NamespacedTool, str | None, str, str]]:
    """Every tool with its namespace, what is said of that (by its first tool), and its place."""
    for place, tool in enumerate(tools):
        if tool.type != NAMESPACE:
            yield tool, None, "", f"tools[{place}]"
            continue
        about = tool.description or ""
        for inner_place, inner in enumerate(tool.tools or ()):
            yield inner, tool.name, about, f"tools[{place}].tools[{inner_place}]"
            about = ""


def _definition(tool: NamespacedTool, namespace: str | None, about: str, where: str) -> ToolDefinition:
    name, described = flat_name(_name(tool), namespace), tool.description
    if about:
        described = f"{described or ''}\n\nAbout all tools of {namespace}: {about}".strip()
    if tool.type == CUSTOM:
        form = None if tool.format is None else _format(tool.format, f"{where}.format")
        return ToolDefinition(type=CUSTOM, custom=CustomTool(name=name, description=described, format=form))
    if tool.type != "function" and not (tool.type == SEARCH and tool.execution == "client"):
        raise bad_request(
            f"Unsupported tool type {tool.type[:64]!r}: no tools are run here. Give a function or a custom tool, which "
            "you run, or a namespace of these.",
            f"{where}.type",
            "unsupported_parameter",
        )
    function = FunctionDefinition(name=name, description=described, parameters=tool.parameters, strict=tool.strict)
    return ToolDefinition(type="function", function=function)


def _format(form: ToolFormat, where: str) -> CustomFormat:
    if form.type == "text":
        return CustomFormat(type="text")
    if not form.definition:
        raise bad_request("A format of type grammar needs its definition.", where, "missing_required_parameter")
    grammar = CustomGrammar(definition=form.definition, syntax=form.syntax or "lark")
    return CustomFormat(type="grammar", grammar=grammar)


def _named(tool: ChosenTool, where: str) -> NamedTool:
    if tool.type not in ("function", CUSTOM):
        raise bad_request(
            f"Unsupported tool_choice of type {tool.type[:64]!r}: allowed are function and custom, with a name, and "
            "allowed_tools.",
            f"{where}.type",
            "unsupported_parameter",
        )
    named = NamedFunction(name=flat_name(tool.name, tool.namespace))
    return NamedTool(type=tool.type, **{tool.type: named})


def _shown(tool: NamespacedTool) -> dict[str, Any]:
    if tool.type == CUSTOM:
        form: dict[str, Any] = {"type": "text"}
        if tool.format is not None:
            given = {name: getattr(tool.format, name) for name in tool.format.__struct_fields__}
            form = {name: value for name, value in given.items() if value is not None}
        return {"type": CUSTOM, "name": tool.name, "description": tool.description, "format": form}
    if tool.type == SEARCH:
        names: tuple[str, ...] = ("type", "execution", "description", "parameters")
    else:
        names = ("type", "name", "description", "parameters", "strict")
    return {name: getattr(tool, name) for name in names}


def _shown_name(tool: ChosenTool) -> dict[str, Any]:
    shown = {"type": tool.type, "name": tool.name}
    return shown if tool.namespace is None else shown | {"namespace": tool.namespace}
