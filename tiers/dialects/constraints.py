"""What binds an answer: `response_format`, `structured_outputs`, `tools`, `tool_choice` and `chat_template_kwargs`,
checked and translated. Custom tools, which take text, become functions with one text parameter: that is what models
and servers know."""

import json
import re
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from inference_core.grammar.limits import MAX_CHARACTERS
from inference_core.protocol import Grammar
from tiers.conversation import Tool, Tooling
from tiers.dialects.chat_schemas import (
    ChatRequest,
    CustomTool,
    FunctionDefinition,
    NamedFunction,
    NamedTool,
    NamedToolChoice,
    ResponseFormat,
    StructuredOutputs,
    ToolDefinition,
)
from tiers.errors import BadRequestError
from tiers.response_format import schema_format

CUSTOM = "custom"
INPUT = "input"
_BEGINNING = re.compile(r'\s*\{\s*"input"\s*:\s*"')
# What JSON writes between quotes: a character, or an escape; two of these may be the halves of one character.
_PIECE = re.compile(r'[^"\\]+|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\[^u]')
# The first half of a character, whose second half may still come.
_FIRST_HALF = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u[0-9a-fA-F]{0,3})?)?\Z")
_LONGEST_ESCAPE = len(r"\ude00")


def function_tool(
    name: str,
    description: str | None,
    parameters: dict[str, Any] | None,
    where: str,
    *,
    strict: bool | None = False,
    cache_control: dict[str, Any] | None = None,
) -> Tool:
    """Return a function that a model may call. `where`: the path of its parameters. Raises `BadRequestError`."""
    if parameters is not None:
        kind = parameters.get("type")
        if kind not in (None, "object") and not (isinstance(kind, list) and "object" in kind):
            raise BadRequestError(
                f"The parameters of a function are a JSON schema of type object, not of {kind!r}.",
                where,
                "invalid_value",
            )
        check_packable(parameters, where)
        parameters = _OBJECT | parameters | _OBJECT
    return Tool(
        name=name,
        description=description,
        parameters=parameters,
        strict=bool(strict),
        cache_control=cache_control,
    )


def custom_tool(name: str, description: str | None, syntax: str = "", definition: str = "") -> Tool:
    """Return the function that stands for a custom tool. A grammar becomes a part of the description."""
    described = description or ""
    if definition:
        kind = "regular expression" if syntax == "regex" else "Lark grammar"
        described = f"{described}\n\nThe input must follow this {kind}:\n{definition}".strip()
    text = {"type": "string", "description": "The input of the tool: plain text, not JSON."}
    parameters = {"type": "object", "properties": {INPUT: text}, "required": [INPUT], "additionalProperties": False}
    return Tool(name=name, description=described or None, parameters=parameters, strict=True, custom=True)


def distinct(tools: Iterable[tuple[Tool, str]]) -> tuple[Tool, ...]:
    """Return the tools, each of which comes with the path of its name. The same one again is one: clients of several
    MCP servers give some twice. Raises `BadRequestError` for two others of one name."""
    named: dict[str, Tool] = {}
    for tool, where in tools:
        first = named.setdefault(tool.name, tool)
        if first != tool and msgspec.structs.replace(first, cache_control=tool.cache_control) != tool:
            raise BadRequestError(f"Two tools are called {tool.name!r}.", where, "invalid_value")
        if tool.cache_control is not None:
            named[tool.name] = tool
    return tuple(named.values())


def chosen_word(choice: str | None) -> Literal["none", "auto", "required"]:
    """Return a `tool_choice` that is a word. Raises `BadRequestError`."""
    word = _CHOICES.get("required" if choice == ANY else choice or "auto")
    if word is None:
        raise BadRequestError(
            f"Invalid tool_choice {choice!r}: allowed are {', '.join(_CHOICES)}, a named tool and allowed_tools.",
            "tool_choice",
            "invalid_value",
        )
    return word


def chosen_name(tools: Iterable[Tool], name: str | None, where: str, *, custom: bool) -> str:
    """Return the name of a tool that `tool_choice` names at the path `where`. Raises `BadRequestError` where it is not
    among the tools."""
    if name is None or name not in [tool.name for tool in tools if tool.custom == custom]:
        raise BadRequestError(
            f"{where} names {name!r}; the tools given are {', '.join(tool.name for tool in tools)}.",
            where,
            "invalid_value",
        )
    return name


def custom_names(tooling: Tooling) -> frozenset[str]:
    """The names of the custom tools among a request's."""
    return frozenset([tool.name for tool in tooling.tools if tool.custom])


def arguments_of(text: str) -> str:
    """The arguments of the function for this input of the tool."""
    return json.dumps({INPUT: text}, ensure_ascii=False)


def input_of(arguments: str) -> str:
    """The input of the tool in the arguments of a call."""
    reader = InputReader()
    return reader.take(arguments) + reader.rest()


class InputReader:
    """Reads the input of a custom tool out of a call's arguments, JSON text that arrives in pieces.

    Models that nothing binds may write something else: then the whole arguments are the input, at the end.
    """

    def __init__(self) -> None:
        self._unread = ""
        self._begun = self._ended = False

    def take(self, piece: str) -> str:
        """Return the new text of the input."""
        if self._ended:
            return ""
        self._unread += piece
        if not self._begun:
            beginning = _BEGINNING.match(self._unread)
            if beginning is None:
                return ""
            self._unread, self._begun = self._unread[beginning.end() :], True
        return self._new_text()

    def rest(self) -> str:
        """Return what is left of the input, after the last piece."""
        if self._begun:
            return ""
        try:
            arguments = json.loads(self._unread)
        except (ValueError, RecursionError):
            return self._unread
        text = arguments.get(INPUT) if isinstance(arguments, dict) else arguments
        return text if isinstance(text, str) else self._unread

    def _new_text(self) -> str:
        raw, at, texts = self._unread, 0, []
        while at < len(raw):
            matched = _PIECE.match(raw, at)
            if matched is None:
                # The closing quote, or an escape that is none; a cut one goes on in the next piece.
                self._ended = raw[at] == '"' or len(raw) - at >= _LONGEST_ESCAPE
                break
            if _FIRST_HALF.match(raw, at):
                break
            texts.append(_unescaped(matched[0]))
            at = matched.end()
        self._unread = raw[at:]
        return "".join(texts)


def _unescaped(piece: str) -> str:
    if piece[0] != "\\":
        return piece
    try:
        text = str(json.loads(f'"{piece}"'))
    except ValueError:
        return piece
    # Half a character is none.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


MAX_VARIABLES_BYTES = 8192
MAX_VARIABLES_DEPTH = 8
# What the template gets from us, options of other servers that are no variables, and what Jinja cannot take.
_RESERVED = ("messages", "tools", "add_generation_prompt", "chat_template", "tokenize", "self")
_CHOICES: dict[str, Literal["none", "auto", "required"]] = {"none": "none", "auto": "auto", "required": "required"}
_OBJECT = {"type": "object"}
ANY = "any"  # Mistral's and Anthropic's word for `required`


def grammar_of(response_format: ResponseFormat | None, structured: StructuredOutputs | None) -> Grammar | None:
    """The grammar that an answer must follow; None if it is free. Whether it can be compiled, the core will tell."""
    by_format = None if response_format is None else _of_format(response_format)
    if structured is None:
        return by_format
    if by_format is not None:
        raise BadRequestError(
            "Give response_format or structured_outputs, not both.", "structured_outputs", "invalid_value"
        )
    return _of_extension(structured)


def format_of(response_format: ResponseFormat | None) -> dict[str, Any] | None:
    """`response_format` as the caller wrote it, for servers that read it themselves; None where it asks for nothing."""
    if response_format is None or response_format.type == "text":
        return None
    built: dict[str, Any] = msgspec.to_builtins(response_format)
    check_packable(built, "response_format")
    inner = built.get("json_schema")
    form = {"type": built["type"]}
    return form if inner is None else form | {"json_schema": {k: v for k, v in inner.items() if v is not None}}


def _of_format(form: ResponseFormat) -> Grammar | None:
    if form.type not in ("text", "json_object", "json_schema"):
        raise BadRequestError(
            f"Invalid response_format.type {form.type!r}: allowed are text, json_object and json_schema.",
            "response_format.type",
            "invalid_value",
        )
    if (form.type == "json_schema") != (form.json_schema is not None):
        raise BadRequestError(
            "response_format.json_schema goes with the type json_schema, and with no other.",
            "response_format.json_schema",
            "invalid_value",
        )
    if form.type == "text":
        return None
    if form.json_schema is None:
        return Grammar(kind="json_object", param="response_format")
    if form.json_schema.schema is None:
        raise BadRequestError(
            "You must provide the parameter response_format.json_schema.schema.",
            "response_format.json_schema.schema",
            "missing_required_parameter",
        )
    return schema_grammar(form.json_schema.schema, "response_format.json_schema.schema")


def _of_extension(outputs: StructuredOutputs) -> Grammar:
    named = {
        "json": outputs.json,
        "regex": outputs.regex,
        "choice": outputs.choice,
        "grammar": outputs.grammar,
        "json_object": outputs.json_object or None,
    }
    chosen = [name for name, value in named.items() if value is not None]
    if len(chosen) != 1:
        raise BadRequestError(
            f"structured_outputs needs exactly one of {', '.join(named)}; given: {', '.join(chosen) or 'none'}.",
            "structured_outputs",
            "invalid_value",
        )
    param = f"structured_outputs.{chosen[0]}"
    if outputs.json is not None:
        return schema_grammar(outputs.json, param)
    if outputs.regex is not None:
        return Grammar(kind="regex", text=outputs.regex, param=param)
    if outputs.choice is not None:
        return Grammar(kind="choice", text=_text(outputs.choice), param=param)
    if outputs.grammar is not None:
        return Grammar(kind="lark", text=outputs.grammar, param=param)
    return Grammar(kind="json_object", param=param)


def schema_grammar(schema: dict[str, Any] | str, param: str) -> Grammar:
    """Return the grammar of a JSON schema, which the caller gave at the path `param`. Raises `BadRequestError`."""
    # In another format than ours it may be a little longer, and is refused where it is compiled.
    if not isinstance(schema, str) and (size := len(msgspec.json.encode(schema))) > MAX_CHARACTERS:
        raise BadRequestError(
            f"{param}: at most {MAX_CHARACTERS} characters are allowed; it has {size}.", param, "invalid_value"
        )
    return Grammar(kind="json_schema", text=schema if isinstance(schema, str) else _text(schema), param=param)


def schema_answer(schema: dict[str, Any], where: str) -> tuple[Grammar, dict[str, Any]]:
    """Return the grammar of an answer that follows a schema without a name, given at the path `where`, and the format
    as a chat has it. Raises `BadRequestError`."""
    check_packable(schema, where)
    return schema_grammar(schema, where), schema_format("answer", schema)


def tooling_of(body: ChatRequest) -> Tooling | None:
    """The tools of a chat; None if there are none."""
    if body.functions and not body.tools:
        return _of_functions(body, body.functions)
    choice = body.tool_choice
    if not body.tools:
        if choice not in (None, "none", "auto"):
            raise BadRequestError("tool_choice needs tools to choose from.", "tool_choice", "invalid_value")
        return None
    tools = distinct(_tool(definition, f"tools[{index}]") for index, definition in enumerate(body.tools))
    parallel = body.parallel_tool_calls is not False
    if isinstance(choice, NamedToolChoice) and choice.type in (*_CHOICES, ANY):
        # As Anthropic's clients say it.
        choice = choice.type
    if isinstance(choice, NamedToolChoice):
        return _chosen(tools, choice, parallel)
    return Tooling(tools=tools, choice=chosen_word(choice), parallel=parallel)


def _of_functions(body: ChatRequest, functions: list[FunctionDefinition]) -> Tooling | None:
    """The functions of the API's first years as tools; an answer calls one at most."""
    tools, asked = [ToolDefinition(type="function", function=function) for function in functions], body.function_call
    choice = NamedToolChoice(type="function", function=asked) if isinstance(asked, NamedFunction) else asked
    as_tools = msgspec.structs.replace(body, tools=tools, tool_choice=choice, parallel_tool_calls=False)
    tooling = tooling_of(as_tools)
    return None if tooling is None else msgspec.structs.replace(tooling, as_functions=True)


def _chosen(tools: tuple[Tool, ...], choice: NamedToolChoice, parallel: bool) -> Tooling:
    """The tools under a choice by name. Of `allowed_tools` the model is given no others: no server can call them."""
    if choice.type != "allowed_tools":
        return Tooling(tools=tools, choice="named", name=_known(tools, choice, "tool_choice"), parallel=False)
    if choice.allowed_tools is None:
        raise BadRequestError(
            "You must provide the parameter tool_choice.allowed_tools.",
            "tool_choice.allowed_tools",
            "missing_required_parameter",
        )
    where = "tool_choice.allowed_tools.tools"
    allowed = {_known(tools, tool, f"{where}[{index}]") for index, tool in enumerate(choice.allowed_tools.tools)}
    allowed_tools = tuple(tool for tool in tools if tool.name in allowed)
    return Tooling(tools=allowed_tools, choice=choice.allowed_tools.mode, parallel=parallel)


def _known(tools: tuple[Tool, ...], choice: NamedTool, where: str) -> str:
    """The name of a tool of `tool_choice`, which must be among the tools."""
    if choice.type not in ("function", CUSTOM):
        raise BadRequestError(
            f"Unsupported type {choice.type[:64]!r} in tool_choice: allowed are function, custom and allowed_tools.",
            f"{where}.type",
            "unsupported_parameter",
        )
    return chosen_name(tools, choice.name, f"{where}.{choice.type}.name", custom=choice.type == CUSTOM)


def template_variables_of(body: ChatRequest) -> dict[str, Any]:
    """The further variables of the chat template: a few plain values, whose text a template may repeat."""
    variables = body.chat_template_kwargs
    if not variables:
        return {}
    for name in _RESERVED:
        if name in variables:
            raise BadRequestError(
                f"chat_template_kwargs cannot set {name}.", f"chat_template_kwargs.{name}", "invalid_value"
            )
    if _depth(variables) > MAX_VARIABLES_DEPTH or len(msgspec.json.encode(variables)) > MAX_VARIABLES_BYTES:
        raise BadRequestError(
            f"chat_template_kwargs may have {MAX_VARIABLES_BYTES} bytes and {MAX_VARIABLES_DEPTH} levels at most.",
            "chat_template_kwargs",
            "invalid_value",
        )
    check_packable(variables, "chat_template_kwargs")
    return variables


def check_packable(value: dict[str, Any], where: str) -> None:
    """Raises `BadRequestError` for a value that the cache's keys and the records cannot hold."""
    try:
        msgspec.msgpack.encode(value)
    except OverflowError:
        raise BadRequestError(f"{where} has an integer of more than 64 bits.", where, "invalid_value") from None


def _depth(value: Any, level: int = 1) -> int:
    """Levels of nested objects and arrays; one too many ends the count."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if not inner or level > MAX_VARIABLES_DEPTH:
        return level
    return max(_depth(child, level + 1) for child in inner)


def _tool(definition: ToolDefinition, where: str) -> tuple[Tool, str]:
    """Return the tool at `where`, and the path of its name."""
    if definition.type not in ("function", CUSTOM):
        raise BadRequestError(
            f"Unsupported tool type {definition.type!r}: allowed are function and custom.",
            f"{where}.type",
            "unsupported_parameter",
        )
    if definition.custom is not None and definition.type == CUSTOM:
        return _custom(definition.custom, f"{where}.{CUSTOM}"), f"{where}.{CUSTOM}.name"
    function = definition.function
    if function is None or definition.type == CUSTOM:
        name = f"{where}.{definition.type}"
        raise BadRequestError(f"You must provide the parameter {name}.", name, "missing_required_parameter")
    tool = function_tool(
        function.name,
        function.description,
        function.parameters,
        f"{where}.function.parameters",
        strict=function.strict,
        cache_control=definition.cache_control,
    )
    return tool, f"{where}.function.name"


def _custom(tool: CustomTool, where: str) -> Tool:
    if tool.format is None or tool.format.type != "grammar":
        return custom_tool(tool.name, tool.description)
    grammar = tool.format.grammar
    if grammar is None or not grammar.definition:
        raise BadRequestError(
            "A format of type grammar needs its definition.", f"{where}.format", "missing_required_parameter"
        )
    return custom_tool(tool.name, tool.description, grammar.syntax, grammar.definition)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
