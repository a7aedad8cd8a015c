"""Read a request of Gemini's API: its contents become turns, and what only Google understands stays as it was given.

Google's own libraries write names in camel case or, in places, in snake case: `mend_gemini` makes them one.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Literal

import msgspec

from inference_core.protocol import Grammar
from tiers.conversation import (
    Call,
    FieldNames,
    Opaque,
    OpaqueFields,
    ReadRequest,
    Text,
    Tool,
    Tooling,
    Turn,
    media,
)
from tiers.conversation import Content as TurnContent
from tiers.dialects.caller_urls import refuse_turn
from tiers.dialects.chat_request import check_count, medium
from tiers.dialects.chat_schemas import MAX_MESSAGES, MAX_PARTS, MAX_TOOLS
from tiers.dialects.client_parts import sound_format
from tiers.dialects.constraints import chosen_name, distinct, function_tool, schema_answer
from tiers.dialects.decoding import missing
from tiers.dialects.gemini import (
    DIALECT,
    CallingMode,
    Content,
    FunctionCallingConfig,
    FunctionResponse,
    GenerateContentRequest,
    GenerationConfig,
    MediaPart,
    Part,
    ThinkingConfig,
    ToolEntry,
)
from tiers.dialects.rules import MODALITIES
from tiers.errors import BadRequestError
from tiers.server_words import looks_like_url

_encode = msgspec.json.Encoder().encode
# Names of OpenAI's in which later failures speak of a request.
_NAMES = {
    "messages": "contents",
    **{field.name: f"generationConfig.{field.encode_name}" for field in msgspec.structs.fields(GenerationConfig)},
    "max_tokens": "generationConfig.maxOutputTokens",
    "max_completion_tokens": "generationConfig.maxOutputTokens",
    "stop": "generationConfig.stopSequences",
    "n": "generationConfig.candidateCount",
    "top_logprobs": "generationConfig.logprobs",
    "modalities": "generationConfig.responseModalities",
    "reasoning_effort": "generationConfig.thinkingConfig.thinkingLevel",
    "thinking_token_budget": "generationConfig.thinkingConfig.thinkingBudget",
    "tool_choice": "toolConfig.functionCallingConfig",
    "metadata": "labels",
}
_CHOICES: dict[CallingMode, Literal["none", "auto", "required"]] = {
    "NONE": "none", "AUTO": "auto", "VALIDATED": "auto", "MODE_UNSPECIFIED": "auto", "ANY": "required"
}  # fmt: skip
_ANY_LEVEL = "thinking_level_unspecified"
_SAMPLING = ("temperature", "top_p", "top_k", "seed", "presence_penalty", "frequency_penalty")
_KINDS = ("text", "inline_data", "file_data", "function_call", "function_response", "executable_code",
          "code_execution_result")  # fmt: skip
"""Fields that say what a part is."""


def read_gemini(body: GenerateContentRequest, model: str, *, stream: bool, runs_tools: bool) -> ReadRequest:
    """Return what a caller asks for. `runs_tools`: whether there is a tier that runs Google's tools. Raises
    `BadRequestError`."""
    if body.cached_content:
        raise BadRequestError("cachedContent: send the content itself.", "cachedContent", "unsupported_content")
    conversation = _Conversation(body)
    own = _own_tools(body.tools or ())
    config = body.generation_config or GenerationConfig()
    thinking = config.thinking_config or ThinkingConfig()
    calling = None if body.tool_config is None else body.tool_config.function_calling_config
    sampling = {name: value for name in _SAMPLING if (value := getattr(config, name)) is not None}
    logprobs = (config.logprobs or 0) if config.response_logprobs else None
    explicit = sampling | {
        "n": config.candidate_count,
        "top_logprobs": config.logprobs if config.response_logprobs else None,
        "tool_choice": None if calling is None else calling.mode,
    }
    effort: Any = (thinking.thinking_level or _ANY_LEVEL).lower()
    kinds = [kind.lower() for kind in config.response_modalities or ()]
    grammar, response_format = _answer_form(config)
    names = _NAMES if grammar is None else _NAMES | {"response_format": grammar.param}
    return ReadRequest(
        model=model,
        turns=conversation.turns,
        tooling=_tooling(body.tools or (), calling or FunctionCallingConfig()),
        grammar=grammar,
        response_format=response_format,
        reasoning_effort=None if effort == _ANY_LEVEL else effort,
        reasoning_budget=None if thinking.thinking_budget == -1 else thinking.thinking_budget,
        sampling=sampling,
        logprobs=logprobs,
        max_tokens=config.max_output_tokens,
        stop=tuple(filter(None, config.stop_sequences or ())),
        n=config.candidate_count or 1,
        stream=stream,
        explicit=tuple(name for name, value in explicit.items() if value is not None),
        passed={"metadata": body.labels} if body.labels else {},
        extra={MODALITIES: kinds} if any(kind != "text" for kind in kinds) else {},
        opaque=_opaque_fields(body, own if runs_tools else ()),
        ignored=() if runs_tools else tuple(f"tools.{name}" for name in own),
        metadata=body.labels,
        names=FieldNames(names, tuple(conversation.paths)),
    )


def _opaque_fields(body: GenerateContentRequest, own: Sequence[str]) -> OpaqueFields:
    """Return what only Google understands. `own`: the tools among it that Google runs."""
    config = body.generation_config
    fields = {"safetySettings": _encode(body.safety_settings)} if body.safety_settings else {}
    lost = tuple(fields)
    if own:
        fields["tools"] = _encode(body.tools)
        refuse_turn(fields["tools"], "tools")
    if config is not None and config.thinking_config is not None:
        fields["thinkingConfig"] = _encode(config.thinking_config)
    return OpaqueFields(DIALECT, fields, tuple(own), lost_elsewhere=lost)


def _answer_form(config: GenerationConfig) -> tuple[Grammar | None, dict[str, Any] | None]:
    """Return what the answer must follow, None if it is free, and the same as OpenAI's chats have it, None if they
    cannot say it."""
    where = "generationConfig.responseJsonSchema"
    schema: Any = config.response_json_schema
    if schema is None:
        where, schema = "generationConfig.responseSchema", json_schema(config.response_schema)
    if schema is None:
        if config.response_mime_type != "application/json":
            return None, None
        where = "generationConfig.responseMimeType"
        return Grammar(kind="json_object", param=where), {"type": "json_object"}
    choices = schema.get("enum")
    if config.response_mime_type == "text/x.enum" and choices and all(isinstance(choice, str) for choice in choices):
        return Grammar(kind="choice", text=_encode(choices).decode(), param=where), None
    return schema_answer(schema, where)


def _tooling(entries: Sequence[ToolEntry], calling: FunctionCallingConfig) -> Tooling | None:
    """Return the caller's functions, and which of them are called; None without functions."""
    tools = distinct(_functions(entries))
    if not tools:
        return None
    check_count(len(tools), MAX_TOOLS, "tools declare {} functions", "tools")
    choice = _CHOICES[calling.mode or "AUTO"]
    if not calling.allowed_function_names or calling.mode not in ("ANY", "VALIDATED"):
        return Tooling(tools=tools, choice=choice)
    where = "toolConfig.functionCallingConfig.allowedFunctionNames"
    allowed = [
        chosen_name(tools, name, f"{where}[{index}]", custom=False)
        for index, name in enumerate(calling.allowed_function_names)
    ]
    if choice == "required" and len(allowed) == 1:
        return Tooling(tools=tools, choice="named", name=allowed[0], parallel=False)
    return Tooling(tools=tuple(tool for tool in tools if tool.name in allowed), choice=choice)


def _functions(entries: Sequence[ToolEntry]) -> Iterator[tuple[Tool, str]]:
    """Yield the caller's functions, each with the path of its name."""
    for index, entry in enumerate(entries):
        for number, declared in enumerate(entry.function_declarations or ()):
            where = f"tools[{index}].functionDeclarations[{number}]"
            path, schema = f"{where}.parametersJsonSchema", declared.parameters_json_schema
            if schema is None:
                path, schema = f"{where}.parameters", json_schema(declared.parameters)
            yield function_tool(declared.name, declared.description, schema, path), f"{where}.name"


def _own_tools(entries: Sequence[ToolEntry]) -> tuple[str, ...]:
    """Return the names of the tools that Google runs."""
    own = [msgspec.to_builtins(msgspec.structs.replace(entry, function_declarations=None)) for entry in entries]
    return tuple(dict.fromkeys(name for fields in own for name in fields))


class _Conversation:
    """The turns of a request's contents, with the path of each.

    Google's ids of calls are optional: a response without one answers the first open call of its name.
    """

    def __init__(self, body: GenerateContentRequest) -> None:
        """Raises `BadRequestError`."""
        self.turns: list[Turn] = []
        self.paths: list[str] = []
        self._open: list[tuple[str, str]] = []  # ids and names of calls without a response
        parts = sum([len(content.parts) for content in body.contents])
        check_count(parts, MAX_PARTS, "contents hold {} parts", "contents")
        if system := body.system_instruction:
            text = system if isinstance(system, str) else "\n".join([part.text or "" for part in system.parts])
            self.add(Turn.of("system", text), "systemInstruction")
        # A model's turn comes in as many contents as its stream had pieces.
        for is_model, group in groupby(enumerate(body.contents), key=lambda content: content[1].role == "model"):
            contents = [(f"contents[{index}]", content) for index, content in group]
            if is_model:
                self.read_model(contents)
            else:
                for where, content in contents:
                    self.read_user(content, where)
        if not body.contents or not self.turns:
            text = "contents is empty: give at least one content with a part."
            raise BadRequestError(text, "contents", "empty_array")
        check_count(len(self.turns), MAX_MESSAGES, "contents are {} turns", "contents")

    def add(self, turn: Turn, where: str) -> None:
        self.turns.append(turn)
        self.paths.append(where)

    def read_user(self, content: Content, where: str) -> None:
        """Read what is not the model's."""
        said: list[TurnContent] = []
        shown: list[TurnContent] = []
        others: list[Part] = []
        for index, part in enumerate(content.parts):
            path = f"{where}.parts[{index}]"
            if part.function_response is not None:
                shown += self._read_response(part, part.function_response, path)
                continue
            others.append(part)
            if (block := _block(part, path)) is not None:
                said.append(block)
        if said or shown:
            opaque = _opaque(others) if others else (_NOT_WRITTEN if shown else ())
            role = "system" if content.role == "system" else "user"
            self.add(Turn.of(role, [*said, *shown], opaque=opaque), where)

    def read_model(self, contents: Sequence[tuple[str, Content]]) -> None:
        """Read a turn of the model, of contents by their paths."""
        calls: list[Call] = []
        texts, thoughts = list[str](), list[str]()
        read: list[Part] = []
        self._open = []
        for where, part in (
            (f"{path}.parts[{n}]", part) for path, content in contents for n, part in enumerate(content.parts)
        ):
            if (called := part.function_call) is not None:
                if not called.name:
                    raise missing(f"{where}.functionCall.name")
                call_id = called.id or f"call_{len(self.turns)}_{len(calls)}"
                self._open.append((call_id, called.name))
                arguments = called.args if isinstance(called.args, str) else _encode(called.args or {}).decode()
                calls.append(Call(id=call_id, name=called.name, arguments=arguments or "{}"))
            elif isinstance(block := _block(part, where), Text):
                (thoughts if part.thought else texts).append(block.text)
            if part != Part(text=""):
                read.append(part)
        turn = Turn.of("assistant", "".join(texts), calls=calls, thoughts="".join(thoughts), opaque=_opaque(read))
        self.add(turn, contents[0][0])

    def _read_response(self, part: Part, response: FunctionResponse, where: str) -> list[TurnContent]:
        """Read the result of a call. Return what is no JSON of it, which the user shows."""
        if not response.name:
            raise missing(f"{where}.functionResponse.name")
        matching = [
            call for call in self._open if call[0] == response.id or (not response.id and call[1] == response.name)
        ]
        if matching:
            self._open.remove(matching[0])
        call_id = matching[0][0] if matching else response.id or f"call_{response.name}"
        output = response.response
        if isinstance(output, dict) and len(output) == 1 and ("result" in output or "output" in output):
            output = output.get("result", output.get("output"))
        text = output if isinstance(output, str) else "" if output is None else _encode(output).decode()
        self.add(Turn.of("tool", text, call_id=call_id, opaque=_opaque([part])), where)
        shown = enumerate(response.parts or ())
        blocks = [_media(shown_part, f"{where}.functionResponse.parts[{index}]") for index, shown_part in shown]
        return [block for block in blocks if block is not None]


def _opaque(parts: Sequence[Part]) -> tuple[Opaque, ...]:
    """Return the parts of a turn as a server of Google's gets them; nothing where other blocks say as much."""
    blocks = tuple([Opaque(DIALECT, _encode(part), "part", part.thought_signature or "") for part in parts])
    if len(parts) == 1 and parts[0] == Part(text=parts[0].text):
        return ()
    # Calls that another model made are not signed, and Gemini refuses them so.
    if [part for part in parts if part.function_call is not None] and not any(block.seal for block in blocks):
        return ()
    return blocks


_NOT_WRITTEN = (Opaque(DIALECT, b""),)
"""Of media that a result of a function shows: its own part has them already."""


def _block(part: Part, where: str) -> TurnContent | None:
    """Return a text or a medium; None for a part that says nothing to other models. Raises `BadRequestError`."""
    kinds = [kind for kind in _KINDS if getattr(part, kind) is not None]
    if len(kinds) > 1 or not (kinds or part.thought_signature):
        raise BadRequestError(
            f"{where}: give one of text, inlineData, fileData, functionCall and functionResponse.",
            where,
            "invalid_value",
        )
    if part.text is not None:
        return Text(part.text)
    ran = part.executable_code or part.code_execution_result
    if isinstance(ran, dict):
        text = ran.get("code") or ran.get("output")
        return Text(f"```\n{text}\n```") if text else None
    return _media(part, where)


def _media(part: Part | MediaPart, where: str) -> TurnContent | None:
    if (file := part.file_data) is not None:
        where = f"{where}.fileData.fileUri"
        if not file.file_uri:
            raise missing(where)
        return _medium(file.mime_type or "", file.file_uri, file.display_name, where)
    if (blob := part.inline_data) is None:
        return None
    where = f"{where}.inlineData"
    for name, value in (("mimeType", blob.mime_type), ("data", blob.data)):
        if not value:
            raise missing(f"{where}.{name}")
    if looks_like_url(blob.data):
        raise BadRequestError(f"{where}.data: give bytes in base64.", f"{where}.data", "invalid_value")
    if blob.mime_type.startswith("audio/"):
        return media("audio", {"data": blob.data, "format": sound_format(blob.mime_type)})
    return _medium(blob.mime_type, f"data:{blob.mime_type};base64,{blob.data}", blob.display_name, where)


def _medium(mime_type: str, address: str, name: str | None, where: str) -> TurnContent:
    kind, _, subtype = mime_type.partition(";")[0].partition("/")
    if kind in ("image", "video"):
        return medium("image" if kind == "image" else "video", {"url": address}, {"url": where})
    fields = {"filename": name or f"file.{subtype or 'bin'}", "file_data": address}
    return medium("file", fields, {"file_data": where})


# What is the caller's own JSON, whose names stay.
_DATA = {"args", "response", "parameters", "parametersJsonSchema", "responseSchema", "responseJsonSchema", "labels"}
_AFTER_UNDERSCORE = re.compile(r"_([a-z0-9])")


def camel_names(data: Any) -> Any:
    """Return a body with all names of the API in camel case."""
    if isinstance(data, list):
        return [camel_names(element) for element in data]
    if not isinstance(data, dict):
        return data
    named = {_AFTER_UNDERSCORE.sub(lambda match: match[1].upper(), name): value for name, value in data.items()}
    return {name: value if name in _DATA else camel_names(value) for name, value in named.items()}


def mend_gemini(data: dict[str, Any]) -> list[str]:
    """Change a body in place to what it plainly means: names, and contents that are one text or one turn."""
    named = camel_names(data)
    data.clear()
    data.update(named)
    for name in ("contents", "content"):
        said = data.get(name)
        turns = [_turn(turn) for turn in (said if isinstance(said, list) else [said])] if said else []
        if turns:
            data[name] = turns if name == "contents" else turns[0]
    return []


def _turn(content: Any) -> Any:
    if isinstance(content, str):
        return {"role": "user", "parts": [{"text": content}]}
    if isinstance(content, dict) and isinstance(content.get("parts"), str | dict):
        parts = content["parts"]
        return content | {"parts": [{"text": parts} if isinstance(parts, str) else parts]}
    return content


def json_schema(schema: Any) -> Any:
    """Return a schema in Google's form (https://ai.google.dev/api/caching#Schema) as a JSON schema."""
    if isinstance(schema, list):
        return [json_schema(subschema) for subschema in schema]
    if not isinstance(schema, dict):
        return schema
    converted: dict[str, Any] = {}
    for name, value in schema.items():
        if name == "properties" and isinstance(value, dict):
            converted[name] = {key: json_schema(subschema) for key, subschema in value.items()}
        elif name == "type" and isinstance(value, str):
            converted[name] = [value.lower(), "null"] if schema.get("nullable") else value.lower()
        elif name in ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"):
            converted[name] = int(value) if str(value).isdigit() else value
        elif name not in ("nullable", "propertyOrdering"):
            converted[name] = value if name in ("enum", "default", "example", "required") else json_schema(value)
    return converted
