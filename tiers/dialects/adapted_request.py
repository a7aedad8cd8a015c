"""A request as the rules of a server take it: names and ids in its characters, turns where they may stand, no parameter
that it refuses. What was changed is named, and the names of tools are mapped back in the answer.

JSON schemas of tools have an object at the top, without alternatives, for servers with rules of their own.
"""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from inference_core.protocol import SamplingParams
from tiers.conversation import OpaquePiece, Tool, Tooling, Turn
from tiers.dialects.adapted_turns import adapted_turns, fits, fitting_name
from tiers.dialects.chat import TEMPLATED
from tiers.dialects.rules import (
    ALL_SAMPLING,
    BREAKPOINT,
    BREAKPOINTS,
    BUDGET,
    EFFORTS,
    VARIABLES,
    AnswerRules,
    Rules,
    ToolRules,
)
from tiers.tier import Delta, GenerationRequest, ModelRequest

_COMBINED = ("anyOf", "oneOf", "allOf")
# What OpenAI refuses at the top as well.
_NOT_AT_TOP = (*_COMBINED, "not", "enum")


# Keywords whose values are schemas by other names, and those whose values are none.
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_VALUES = ("enum", "const", "default", "examples", "example", "required")


def without_keywords(schema: Any, refused: frozenset[str]) -> Any:
    """Return a JSON schema without the `refused` keywords: it admits more. A constant becomes the one value of an
    `enum`, and of several types the first one that is not null stays."""
    if isinstance(schema, list):
        return [without_keywords(subschema, refused) for subschema in schema]
    if not isinstance(schema, dict):
        return schema
    reduced: dict[str, Any] = {}
    for name, value in schema.items():
        if name in _BY_NAME and isinstance(value, dict):
            value = {key: without_keywords(subschema, refused) for key, subschema in value.items()}
        elif name not in _VALUES:
            value = without_keywords(value, refused)
        if name == "type" and name in refused:
            reduced[name] = (
                next((kind for kind in value if kind != "null"), "null") if isinstance(value, list) else value
            )
        elif name == "const" and name in refused and isinstance(value, str):
            reduced["enum"] = [value]
        elif name not in refused or (name == "properties" and value):
            reduced[name] = value
    return reduced


def fitting_schema(schema: dict[str, Any], *, combined: bool, needs_properties: bool) -> dict[str, Any]:
    """Return the schema of a tool's arguments as a server takes it: itself, where it fits.

    `combined`: whether `anyOf`, `oneOf` and `allOf` may stand at the top. Otherwise the properties of all alternatives
    are taken together, and those are required that every alternative requires: the result admits all that the schema
    does. `needs_properties`: whether an object must name its properties, be it none.
    """
    if schema.get("properties") == []:
        # PHP writes an empty object so.
        schema = schema | {"properties": {}}
    fits = combined or not any(name in schema for name in _NOT_AT_TOP)
    if fits and schema.get("type") == "object" and ("properties" in schema or not needs_properties):
        return schema
    fitted = dict(schema) if fits else _without_alternatives(schema)
    fitted["type"] = "object"
    if needs_properties:
        fitted.setdefault("properties", {})
    return fitted


def _without_alternatives(schema: dict[str, Any]) -> dict[str, Any]:
    merged = {name: value for name, value in schema.items() if name not in _NOT_AT_TOP}
    properties, required = _object(merged.get("properties")), _names(merged.get("required"))
    for part in _schemas(schema.get("allOf")):
        inner = _without_alternatives(part)
        properties = _object(inner.get("properties")) | properties
        required |= _names(inner.get("required"))
    for keyword in ("anyOf", "oneOf"):
        parts = [_without_alternatives(part) for part in _schemas(schema.get(keyword))]
        for part in parts:
            properties = _object(part.get("properties")) | properties
        if parts:
            required |= set.intersection(*(_names(part.get("required")) for part in parts))
    merged["properties"] = properties
    merged.pop("required", None)
    if still_required := [name for name in properties if name in required]:
        merged["required"] = still_required
    return merged


def _schemas(value: Any) -> list[dict[str, Any]]:
    return [schema for schema in value if isinstance(schema, dict)] if isinstance(value, list) else []


def _object(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, dict) else {}


def _names(value: Any) -> set[str]:
    return {name for name in value if isinstance(name, str)} if isinstance(value, list) else set()


# What Anthropic takes of the schema of an answer
# (https://platform.claude.com/docs/en/build-with-claude/structured-outputs#json-schema-limitations, 2026-11).
_TAKEN = frozenset({
    "type", "properties", "required", "items", "enum", "const", "anyOf", "$defs", "definitions", "default", "title",
    "description",
})  # fmt: skip
_FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid")
)  # fmt: skip
# What says nothing of a value.
_REMARKS = frozenset({"$schema", "$id", "$comment", "examples", "deprecated", "discriminator", "readOnly", "writeOnly"})
_REFERENCE = re.compile(r'#/(\$defs|definitions)/([^/"]+)')


class _NotClosedError(Exception):
    """No closed schema stands for a part of one."""


def closed_schema(schema: dict[str, Any]) -> dict[str, Any] | None:
    """Return a schema whose objects are closed, with what else it demands in descriptions; None if there is none, as
    for maps, tuples, values of any type, and schemas that hold themselves."""
    if _is_recursive(schema):
        return None
    try:
        return _closed(schema)
    except _NotClosedError:
        return None
    except (AttributeError, TypeError):
        # It is no schema at all, which its server says.
        return schema


def _closed(node: Any) -> dict[str, Any]:
    node = _plain_union(node)
    if (ref := node.get("$ref")) is not None:
        if not isinstance(ref, str) or _REFERENCE.fullmatch(ref) is None:
            raise _NotClosedError
        return {"$ref": ref} | {name: _closed_each(node[name]) for name in ("$defs", "definitions") if name in node}
    types = node.get("type")
    types = [types] if isinstance(types, str) else types or []
    if not types and not node.keys() & {"enum", "const", "anyOf", "properties"}:
        raise _NotClosedError
    if any(isinstance(value, dict | list) for value in (*node.get("enum", ()), node.get("const"))):
        raise _NotClosedError
    kept = {name: value for name, value in node.items() if _is_taken(name, value)}
    for name in ("properties", "$defs", "definitions"):
        if name in kept:
            kept[name] = _closed_each(kept[name])
    if "anyOf" in kept:
        kept["anyOf"] = [_closed(part) for part in kept["anyOf"]]
    if "items" in kept or "array" in types:
        if "prefixItems" in node:
            raise _NotClosedError
        kept["items"] = _closed(node.get("items"))
    if "properties" in node or "object" in types:
        others = node.get("additionalProperties", True)
        if "patternProperties" in node or others not in (True, False) or (others and "properties" not in node):
            raise _NotClosedError
        kept["additionalProperties"] = False
    if demands := {name: node[name] for name in node if name not in kept and name not in _REMARKS}:
        said = f"It must hold: {_encode(demands).decode()}"
        kept["description"] = f"{kept['description']}\n{said}" if kept.get("description") else said
    return kept


def _closed_each(schemas: Any) -> dict[str, Any]:
    return {name: _closed(schema) for name, schema in _object(schemas).items()}


def _plain_union(node: Any) -> dict[str, Any]:
    """Return a schema with its alternatives as `anyOf`, and what alone stands in `allOf` in its place."""
    if not isinstance(node, dict):
        raise _NotClosedError
    schema = dict(node)
    if "allOf" in schema:
        parts = _schemas(schema.pop("allOf"))
        if len(parts) != 1 or parts[0].keys() & schema.keys():
            raise _NotClosedError
        schema |= parts[0]
    if "oneOf" in schema and "anyOf" not in schema:
        schema["anyOf"] = schema.pop("oneOf")
    return schema


def _is_taken(name: str, value: Any) -> bool:
    if name == "format":
        return value in _FORMATS
    return name in _TAKEN or (name == "minItems" and value in (0, 1))


def _is_recursive(schema: dict[str, Any]) -> bool:
    """Whether a definition leads back to itself."""
    leads: dict[str, set[str]] = {}
    for part in ("$defs", "definitions"):
        for name, definition in _object(schema.get(part)).items():
            leads[name] = {groups[1] for groups in _REFERENCE.findall(_encode(definition).decode())}
    while ended := [name for name, others in leads.items() if not others & leads.keys()]:
        for name in ended:
            del leads[name]
    return bool(leads)


# In the order in which they are named to the caller.
_CHANGES = (
    "tools", "tool_choice", "tools.name", "tools.parameters", "tools.description", "messages", "messages.role",
    "messages.tool_calls.id", "messages.tool_calls.arguments", "messages.name", "messages.image_url",
    "response_format", "reasoning_effort", "temperature", "stop",
)  # fmt: skip
_NEUTRAL = SamplingParams()
_NOT_THINKING = {"enable_thinking": False, "thinking": False}


class Adapted(msgspec.Struct, frozen=True, kw_only=True):
    """A request as a server gets it, and what was changed of it."""

    request: GenerationRequest
    """The request as it is sent."""
    tool_names: dict[str, str] = {}
    """The caller's names of tools by those that are sent, where they differ."""
    left_out: tuple[str, ...] = ()
    """Parameters that were set and are not sent."""
    changed: tuple[str, ...] = ()
    """What is sent in another form."""
    stops: tuple[str, ...] = ()
    """Stop strings that the server does not take, so that the answer is cut here."""


def adapted(unadapted: GenerationRequest, rules: Rules, refused: frozenset[str] = frozenset()) -> Adapted:
    """Return the request as a server with these `rules` takes it; `refused`: parameters that it was found to refuse;
    what its refusals taught is in its rules (`lessons.taught`)."""
    fields: dict[str, Any] = {}
    changed: set[str] = set()
    request = _bound(unadapted, rules, changed)
    sent_names = _renamed_tools(request, rules.tools)
    messages = request.messages
    if messages is not None:
        turns = adapted_turns(messages, rules.turns, sent_names, changed)
        if turns is not messages:
            fields["messages"] = turns
    if request.tooling is not None:
        tooling = _tooling(request.tooling, rules.tools, sent_names, changed)
        if tooling is not request.tooling:
            fields["tooling"] = tooling
    parameters = rules.parameters
    stops = request.stop
    if stops and (parameters.stops is not None or not parameters.blank_stops):
        taken = [stop for stop in stops if parameters.blank_stops or stop.strip()][: parameters.stops]
        if len(taken) < len(stops):
            fields["stop"] = tuple(taken)
            changed.add("stop")
    if parameters.efforts and request.reasoning_effort not in (None, *parameters.efforts):
        effort: str | None = nearest_effort(str(request.reasoning_effort), parameters.efforts)
        # No thoughts at all are not near to some.
        effort = None if effort == "none" else effort
        fields["reasoning_effort"] = effort
        changed.add("reasoning_effort")
    unwanted = parameters.refused | refused if refused else parameters.refused
    thinks = (fields.get("reasoning_effort") or request.reasoning_effort) not in (None, "none")
    if thinks and parameters.refused_thinking:
        unwanted |= parameters.refused_thinking
    if not parameters.whole_top_p and request.sampling.top_p >= 1:
        unwanted |= {"top_p"}
    left_out = _leave_out(request, unwanted, fields) if unwanted else ()
    if not fields and request is unadapted:
        return Adapted(request=request)
    return Adapted(
        request=msgspec.structs.replace(request, **fields),
        tool_names={sent: name for name, sent in sent_names.items()},
        left_out=left_out,
        changed=tuple(name for name in _CHANGES if name in changed),
        stops=tuple(stop for stop in stops if stop not in fields.get("stop", stops)),
    )


def _chosen(tooling: Tooling, rules: ToolRules) -> Tooling:
    """Return the tools and the choice among them as the server takes it."""
    if not tooling.is_forced or (rules.forced_calls and (rules.named_choice or tooling.choice == "required")):
        return tooling
    tools = tuple(tool for _, tool in tooling.callable_tools)
    return msgspec.structs.replace(tooling, tools=tools, choice="required" if rules.forced_calls else "auto", name=None)


_OBJECT_WANTED = "Answer with one JSON object and nothing else, no code block around it."
_SCHEMA_WANTED = "Answer with JSON and nothing else, no code block around it. It follows this JSON schema:\n"


def _formatted(request: ModelRequest, rules: AnswerRules, changed: set[str]) -> dict[str, Any]:
    """Return the fields of the request that change so that its answer has the form that was asked for."""
    fields: dict[str, Any] = {}
    form = request.response_format
    if form is None or request.messages is None or request.opaque is not None:
        return fields
    kind, inner = form.get("type"), form.get("json_schema") or {}
    takes = "none" if request.tooling is not None and not rules.formats_with_tools else rules.formats
    schema = inner.get("schema")
    if kind == "json_schema" and takes == "schema" and rules.closed_formats and isinstance(schema, dict):
        if (closed := closed_schema(schema)) is None:
            takes = "object"
        elif closed != schema:
            fields["response_format"] = form | {"json_schema": inner | {"schema": closed}}
            changed.add("response_format")
    is_schema = kind == "json_schema" and takes != "schema"
    is_said = takes == "none" or not rules.any_object
    if is_schema or (kind == "json_object" and (is_said or rules.says_json)):
        said = _SCHEMA_WANTED + _encode(schema).decode() if is_schema and schema else _OBJECT_WANTED
        fields["messages"] = _instructed(request.messages, said)
        fields["response_format"] = None if is_said else {"type": "json_object"}
        fields["sampling"] = msgspec.structs.replace(request.sampling, grammar=None)
        changed.add("response_format")
    return fields


def _bound(request: GenerationRequest, rules: Rules, changed: set[str]) -> GenerationRequest:
    """Return the request with what binds its answer as its server takes it: formats, forced calls, sampling."""
    fields = _formatted(request, rules.answer, changed)
    tooling, tools, parameters = request.tooling, rules.tools, rules.parameters
    if tooling is not None and (chosen := _chosen(tooling, tools)) is not tooling:
        fields["tooling"] = tooling = chosen
        changed.add("tool_choice")
    elif tooling is None and tools.declares_tools:
        called = {call.name: None for message in request.messages or () for call in message.calls}
        if called:
            fields["tooling"] = Tooling(tools=tuple(Tool(name=name) for name in called), choice="none")
            changed.add("tools")
    unsaid = {"n"} if parameters.one_choice else set()
    unsaid |= {"tool_choice"} if not tools.forced_calls else set()
    if unsaid & {*request.given}:
        fields["given"] = tuple(name for name in request.given if name not in unsaid)
    if tooling is not None and tooling.is_forced and not rules.thinking.forced_thoughts and request.opaque is None:
        fields |= {"reasoning_effort": None, "reasoning_budget": None}
        if rules.server in TEMPLATED:
            fields["template_variables"] = request.template_variables | _NOT_THINKING
        else:
            fields["extra"] = request.extra | {"thinking": {"type": "disabled"}, "enable_thinking": False}
        changed.add("reasoning_effort")
    sampling = fields.get("sampling", request.sampling)
    least, most = parameters.least_temperature, parameters.most_temperature
    if not least <= sampling.temperature <= most:
        fields["sampling"] = msgspec.structs.replace(sampling, temperature=min(max(sampling.temperature, least), most))
        changed.add("temperature")
    if (parameters.only_streams and request.whole) or (parameters.never_streams and not request.whole):
        fields["whole"] = not request.whole
    return msgspec.structs.replace(request, **fields) if fields else request


def _instructed(messages: list[Turn], instruction: str) -> list[Turn]:
    """The conversation with one more instruction of the system at its start."""
    first = messages[0] if messages else None
    if first is None or first.role != "system" or first.parts or first.opaque:
        return [Turn.of("system", instruction), *messages]
    return [first.with_text(f"{first.text}\n\n{instruction}"), *messages[1:]]


def restored(deltas: list[Delta], tool_names: dict[str, str]) -> list[Delta]:
    """Return the deltas of an answer with the caller's names of its tools."""
    for delta in deltas:
        if any(call.name in tool_names for call in delta.tool_calls):
            delta.tool_calls = [
                msgspec.structs.replace(call, name=tool_names.get(call.name, call.name)) for call in delta.tool_calls
            ]
        opaque = delta.opaque
        if opaque is not None and opaque.dialect != "chat" and (opaque.event or opaque.block is not None):
            block = opaque.block
            block = None if block is None else msgspec.structs.replace(block, json=_renamed(block.json, tool_names))
            delta.opaque = OpaquePiece(opaque.dialect, _renamed(opaque.event, tool_names), block)
    return deltas


def nearest_effort(asked: str, taken: Sequence[str]) -> str:
    """Return the effort of those that a server takes (ascending) which is not below the one that was asked for; the
    highest if there is none."""
    if asked not in EFFORTS:
        return taken[-1]
    wanted = EFFORTS.index(asked)
    return next((effort for effort in taken if effort in EFFORTS and EFFORTS.index(effort) >= wanted), taken[-1])


def _renamed_tools(request: ModelRequest, rules: ToolRules) -> dict[str, str]:
    """The names to send, by the caller's, of tools whose names the server does not take."""
    if (form := rules.tool_names) is None:
        return {}
    fitting = fits(form)
    tools = () if request.tooling is None else request.tooling.tools
    named = [tool.name for tool in tools]
    for message in request.messages or ():
        if message.calls:
            named += [call.name for call in message.calls]
    return {
        name: fitting_name(name, form)
        for name in named
        if not fitting(name) or (rules.letter_first and not (name[0].isalpha() or name[0] == "_"))
    }


def _tooling(tooling: Tooling, rules: ToolRules, sent_names: dict[str, str], changed: set[str]) -> Tooling:
    tools: list[Tool] = []
    combined, needed = rules.combined_schemas, rules.needs_properties
    for tool in tooling.tools:
        fields: dict[str, Any] = {}
        if tool.name in sent_names:
            fields["name"] = sent_names[tool.name]
            changed.add("tools.name")
        if tool.parameters is not None and (needed or not combined or rules.refused_keywords):
            schema = tool.parameters
            if rules.refused_keywords:
                schema = without_keywords(schema, rules.refused_keywords)
            schema = fitting_schema(schema, combined=combined, needs_properties=needed)
            if schema != tool.parameters:
                fields["parameters"] = schema
                if not _says_the_same(schema, tool.parameters):
                    changed.add("tools.parameters")
        if "properties" in rules.refused_keywords and not (tool.parameters or {}).get("properties"):
            # A server that takes no object without properties takes a function without parameters.
            fields["parameters"] = None
        if 0 < rules.most_description < len(tool.description or ""):
            fields["description"] = f"{(tool.description or '')[: rules.most_description - 1]}…"
            changed.add("tools.description")
        if rules.whole_tools != "any":
            fields |= {"parameters": tool.schema} if tool.parameters is None else {}
        if rules.whole_tools == "described" and tool.description is None:
            fields["description"] = ""
        if tool.strict and not rules.strict_tools:
            fields["strict"] = False
        tools.append(msgspec.structs.replace(tool, **fields) if fields else tool)
    edited = {old.name: new for new, old in zip(tools, tooling.tools, strict=True) if new is not old}
    if not edited:
        return tooling
    name = None if tooling.name is None else sent_names.get(tooling.name, tooling.name)
    return msgspec.structs.replace(tooling, tools=tuple(tools), name=name, edited=edited)


def _says_the_same(schema: dict[str, Any], original: dict[str, Any]) -> bool:
    """Whether the schema differs in nothing but what an object says of itself anyway."""
    usual: dict[str, Any] = {"type": "object", "properties": {}}
    return usual | original == usual | schema


def _leave_out(request: ModelRequest, refused: frozenset[str], fields: dict[str, Any]) -> tuple[str, ...]:
    """Set the parameters that are not sent to their neutral values in `fields`; return the names of those that were
    set. A neutral value counts only if the caller gave it."""
    sampling, given_fields = request.sampling, request.given
    neutral: dict[str, Any] = {}
    named: list[str] = []
    for name in ALL_SAMPLING:
        if name in refused and (getattr(sampling, name) != getattr(_NEUTRAL, name) or name in given_fields):
            neutral[name] = getattr(_NEUTRAL, name)
            named.append(name)
    if "logit_bias" in refused and sampling.logit_bias:
        neutral["logit_bias"] = _NEUTRAL.logit_bias
        named.append("logit_bias")
    if neutral:
        fields["sampling"] = msgspec.structs.replace(sampling, **neutral)
    if "reasoning_effort" in refused:
        for field, name in (("reasoning_effort", "reasoning_effort"), ("reasoning_budget", BUDGET)):
            if getattr(request, field) is not None:
                fields[field] = None
                named.append(name)
    tooling: Tooling | None = fields.get("tooling", request.tooling)
    is_parallel_said = tooling is not None and (not tooling.parallel or "parallel_tool_calls" in given_fields)
    if "parallel_tool_calls" in refused and tooling is not None and is_parallel_said:
        fields["tooling"] = msgspec.structs.replace(tooling, parallel=True)
        named.append("parallel_tool_calls")
    for name, values in (("passed", request.passed), ("extra", request.extra)):
        if unwanted := values.keys() & refused:
            fields[name] = {key: value for key, value in values.items() if key not in unwanted}
            named += sorted(unwanted)
    turns: list[Turn] = fields.get("messages", request.messages) or []
    if BREAKPOINT in refused and any(block.breakpoint for turn in turns for block in turn.content_blocks):
        fields["messages"] = [_without_breakpoints(turn) for turn in turns]
        named.append(BREAKPOINTS)
    if VARIABLES in refused and request.template_variables:
        fields["template_variables"] = {}
        named.append(VARIABLES)
    if named:
        fields["given"] = tuple(name for name in given_fields if name not in named)
    return tuple(dict.fromkeys(named))


def _without_breakpoints(turn: Turn) -> Turn:
    content = [msgspec.structs.replace(block, breakpoint=None) for block in turn.content_blocks]
    is_marked = any(block.cache_control is not None for block in content)
    return msgspec.structs.replace(turn.with_content(content), cache_mark=is_marked)


def _renamed(json: bytes, names: dict[str, str]) -> bytes:
    """A JSON object with the value of each `name` that is among `names` replaced, in what describes a call."""
    if b'"name"' not in json:
        return json
    said = msgspec.json.decode(json)
    for where in (said, *(said.get(key) for key in ("content_block", "item", "functionCall", "toolUse", "function"))):
        if isinstance(where, dict) and isinstance(where.get("name"), str):
            where["name"] = names.get(where["name"], where["name"])
    return _encode(said)


_encode = msgspec.json.Encoder().encode
