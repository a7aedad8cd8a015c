"""Tools of the Responses API as functions, and calls of them back: a namespace becomes the beginning of a name."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tiers.conversation import Tool, Tooling
from tiers.dialects.chat_request import check_count
from tiers.dialects.chat_schemas import MAX_TOOLS
from tiers.dialects.constraints import CUSTOM, chosen_name, chosen_word, custom_tool, distinct, function_tool
from tiers.dialects.responses_schemas import ChosenTool, NamespacedTool, ResponseTool, ToolChoice
from tiers.errors import BadRequestError

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


def tooling_of(
    tools: Sequence[ResponseTool], choice: str | ToolChoice | None, *, parallel: bool | None
) -> Tooling | None:
    """Return the tools that the caller runs; None if there are none. Raises `BadRequestError`."""
    entries = list(_flat(tools))
    check_count(len(entries), MAX_TOOLS, "tools hold {} with those of namespaces", "tools")
    functions = distinct((_function(*entry), f"{entry[3]}.name") for entry in entries)
    named = [] if choice is None or isinstance(choice, str) else list(_named(choice))
    if not entries:
        if choice not in (None, "none", "auto"):
            raise BadRequestError("tool_choice needs tools to choose from.", "tool_choice", "invalid_value")
        return None
    is_parallel = parallel is not False
    if choice is None or isinstance(choice, str):
        return Tooling(tools=functions, choice=chosen_word(choice), parallel=is_parallel)
    names = [chosen_name(functions, name, where, custom=is_custom) for name, is_custom, where in named]
    if choice.type != "allowed_tools":
        return Tooling(tools=functions, choice="named", name=names[0], parallel=False)
    # The model is given no others: no server can call them.
    allowed = tuple(tool for tool in functions if tool.name in names)
    return Tooling(tools=allowed, choice=choice.mode, parallel=is_parallel)


def shown_tool(tool: ResponseTool) -> dict[str, Any]:
    """The tool as a Response repeats it."""
    if tool.type == NAMESPACE:
        inner = [_shown(inner_tool) for inner_tool in tool.tools or ()]
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
    for index, tool in enumerate(tools):
        if tool.type != NAMESPACE:
            yield tool, None, "", f"tools[{index}]"
            continue
        about = tool.description or ""
        for inner_index, inner in enumerate(tool.tools or ()):
            yield inner, tool.name, about, f"tools[{index}].tools[{inner_index}]"
            about = ""


def _function(tool: NamespacedTool, namespace: str | None, about: str, where: str) -> Tool:
    name, described = flat_name(_name(tool), namespace), tool.description
    if about:
        described = f"{described or ''}\n\nAbout all tools of {namespace}: {about}".strip()
    if tool.type == CUSTOM:
        if tool.format is None or tool.format.type == "text":
            return custom_tool(name, described)
        if not tool.format.definition:
            raise BadRequestError(
                "A format of type grammar needs its definition.", f"{where}.format", "missing_required_parameter"
            )
        return custom_tool(name, described, tool.format.syntax or "lark", tool.format.definition)
    if tool.type != "function" and not (tool.type == SEARCH and tool.execution == "client"):
        raise BadRequestError(
            f"Unsupported tool type {tool.type[:64]!r}: no tools are run here. Give a function or a custom tool, which "
            "you run, or a namespace of these.",
            f"{where}.type",
            "unsupported_parameter",
        )
    return function_tool(name, described, tool.parameters, f"{where}.parameters", strict=tool.strict)


def _named(choice: ToolChoice) -> Iterator[tuple[str, bool, str]]:
    """Yield each tool that the choice names: as models know it, whether it is a custom one, and the path of its name.
    Raises `BadRequestError`."""
    placed: list[tuple[ChosenTool, str]] = [(choice, "tool_choice")]
    if choice.type == "allowed_tools":
        placed = [(tool, f"tool_choice.tools[{index}]") for index, tool in enumerate(choice.tools or ())]
        if not placed:
            raise BadRequestError(
                "tool_choice of the type allowed_tools needs tools.", "tool_choice.tools", "missing_required_parameter"
            )
    for tool, where in placed:
        if tool.type not in ("function", CUSTOM):
            raise BadRequestError(
                f"Unsupported tool_choice of type {tool.type[:64]!r}: allowed are function and custom, with a name, "
                "and allowed_tools.",
                f"{where}.type",
                "unsupported_parameter",
            )
        yield flat_name(tool.name or "", tool.namespace), tool.type == CUSTOM, f"{where}.name"


def _shown(tool: NamespacedTool) -> dict[str, Any]:
    if tool.type == CUSTOM:
        form: dict[str, Any] = {"type": "text"}
        if tool.format is not None:
            fields = {name: getattr(tool.format, name) for name in tool.format.__struct_fields__}
            form = {name: value for name, value in fields.items() if value is not None}
        return {"type": CUSTOM, "name": tool.name, "description": tool.description, "format": form}
    if tool.type == SEARCH:
        names: tuple[str, ...] = ("type", "execution", "description", "parameters")
    else:
        names = ("type", "name", "description", "parameters", "strict")
    return {name: getattr(tool, name) for name in names}


def _shown_name(tool: ChosenTool) -> dict[str, Any]:
    shown = {"type": tool.type, "name": tool.name or ""}
    return shown if tool.namespace is None else shown | {"namespace": tool.namespace}
