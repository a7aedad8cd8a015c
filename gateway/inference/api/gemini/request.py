"""Bodies of Gemini's `generateContent` and what is like it, and the chat that says the same.

Google's own libraries write names in camel case or, in places, in snake case: `camel_names` makes them one.
Source: https://ai.google.dev/api/generate-content.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import msgspec

from gateway.base.errors import ApiError, ContextLengthError, bad_request
from gateway.base.inference_request import InferenceRequest
from tiers.conversation import NativeRequest, Opaque
from tiers.dialects.chat_schemas import (
    AllowedTools,
    ChatRequest,
    ContentPart,
    FunctionCall,
    FunctionDefinition,
    JsonSchemaFormat,
    Message,
    MessageToolCall,
    NamedFunction,
    NamedTool,
    NamedToolChoice,
    ResponseFormat,
    StructuredOutputs,
    ToolDefinition,
)
from tiers.dialects.gemini import (
    CallingConfig,
    CallResponse,
    Content,
    GenerateContentRequest,
    GenerationConfig,
    Part,
    ThinkingConfig,
    Tool,
    ToolConfig,
)

_encode = msgspec.json.Encoder().encode


# What is the caller's own JSON, whose names stay.
_DATA = {"args", "response", "parameters", "parametersJsonSchema", "responseSchema", "responseJsonSchema", "labels"}
_AFTER_UNDERSCORE = re.compile(r"_([a-z0-9])")


def camel_names(data: Any) -> Any:
    """Return a body with all names of the API in camel case."""
    if isinstance(data, list):
        return [camel_names(one) for one in data]
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
        turns = [_turn(one) for one in (said if isinstance(said, list) else [said])] if said else []
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
        return [json_schema(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {}
    for name, value in schema.items():
        if name == "properties" and isinstance(value, dict):
            found[name] = {key: json_schema(one) for key, one in value.items()}
        elif name == "type" and isinstance(value, str):
            found[name] = [value.lower(), "null"] if schema.get("nullable") else value.lower()
        elif name in ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"):
            found[name] = int(value) if str(value).isdigit() else value
        elif name not in ("nullable", "propertyOrdering"):
            found[name] = value if name in ("enum", "default", "example", "required") else json_schema(value)
    return found


# By what names the caller knows the fields of the chat.
_CONFIG = {
    "max_completion_tokens": "maxOutputTokens", "stop": "stopSequences", "response_format": "responseSchema",
    "top_p": "topP", "top_k": "topK", "n": "candidateCount", "top_logprobs": "logprobs", "seed": "seed",
    "temperature": "temperature", "reasoning_effort": "thinkingConfig", "thinking_token_budget": "thinkingConfig",
    "modalities": "responseModalities", "structured_outputs": "responseSchema",
}  # fmt: skip
_RUN_BY_GOOGLE = {
    one.name: one.encode_name for one in msgspec.structs.fields(Tool) if one.name != "function_declarations"
}


_MESSAGE = re.compile(r"messages\[(?P<message>\d+)\](?:\.content\[(?P<part>\d+)\])?")


class Origin(NamedTuple):
    """Where a message of the chat comes from: the path of a content, and which of its parts the message's are."""

    path: str
    places: tuple[int, ...] = ()

    def part(self, number: int) -> str:
        """The path of a part of the message."""
        return f"{self.path}.parts[{self.places[number]}]" if number < len(self.places) else self.path


class Chat(msgspec.Struct, frozen=True):
    """The chat, for each of its messages the path of the content that it comes from and its parts there, and the tools
    that Google runs. `left_out`: names of such tools that no tier runs."""

    request: ChatRequest
    origins: list[Origin]
    opaque: list[Sequence[Opaque]]
    native: NativeRequest
    left_out: list[str]

    def with_own(self, request: InferenceRequest) -> InferenceRequest:
        """`request`, which says the chat, with what a server with this API gets instead."""
        turns = zip(request.generation.messages or (), self.opaque, strict=True)
        messages = [turn.with_opaque(said) if said else turn for turn, said in turns]
        return request.with_generation(messages=messages, native=self.native)

    def renamed(self, error: ApiError) -> ApiError:
        """A refusal of the chat with the caller's name of the field."""
        given = error.body.param or ""
        name = re.split(r"[.\[]", given)[0]
        if (found := _MESSAGE.match(given)) is not None:
            origin = self.origins[int(found["message"])]
            param = origin.part(int(found["part"])) if found["part"] else origin.path
        else:
            param = f"generationConfig.{_CONFIG[name]}" if name in _CONFIG else {"messages": "contents"}.get(name, name)
        if isinstance(error, ContextLengthError):
            return error.named(param)
        if not param or error.body.param is None:
            return error
        return error.reworded(param, error.body.message.replace(given, param, 1))


def chat_of(body: GenerateContentRequest, model: str, *, stream: bool, runs_tools: bool) -> Chat:
    """The chat that says the same. `runs_tools`: whether there is a tier that runs Google's tools. Raises `ApiError`
    400 that names the field."""
    if body.cached_content:
        raise bad_request("cachedContent: send the content itself.", "cachedContent", "unsupported_content")
    turns = _Turns()
    if body.system_instruction:
        given = body.system_instruction
        text = given if isinstance(given, str) else "\n".join(part.text or "" for part in given.parts)
        turns.add(Message(role="system", content=text), "systemInstruction", [])
    # A model's turn comes in as many contents as its stream had pieces.
    for is_model, group in groupby(enumerate(body.contents), key=lambda content: content[1].role == "model"):
        contents = list(group)
        if is_model:
            turns.read_model(contents)
        else:
            for place, content in contents:
                turns.read_user(content, f"contents[{place}]")
    if not turns.messages or body.contents == []:
        raise bad_request("contents is empty: give at least one content with a part.", "contents", "empty_array")
    tools, own = _tools(body.tools or ())
    left_out = [] if runs_tools else [f"tools.{name}" for name in own]
    config = body.generation_config or GenerationConfig()
    thinking = config.thinking_config or ThinkingConfig()
    chat = ChatRequest(
        model=model,
        messages=turns.messages,
        stream=stream,
        tools=tools or None,
        metadata=body.labels,
        **(_choice(body.tool_config, tools) if tools else {}),
        **_generation(config),
        **_thinking(thinking),
    )
    fields = {"safetySettings": _encode(body.safety_settings)} if body.safety_settings else {}
    unsaid = tuple(fields)
    if own and runs_tools:
        fields["tools"] = _encode(body.tools)
    if config.thinking_config is not None:
        fields["thinkingConfig"] = _encode(config.thinking_config)
    native = NativeRequest("gemini", fields, tuple(own) if runs_tools else (), unsaid=unsaid)
    return Chat(chat, turns.origins, turns.opaque, native, left_out)


def _thinking(thinking: ThinkingConfig) -> dict[str, Any]:
    level, budget = thinking.thinking_level, thinking.thinking_budget
    effort = None if level in (None, "THINKING_LEVEL_UNSPECIFIED") else str(level).lower()
    return {"reasoning_effort": effort, "thinking_token_budget": None if budget == -1 else budget}


def _generation(config: GenerationConfig) -> dict[str, Any]:
    """What the chat has of the configuration."""
    names = ("temperature", "top_p", "top_k", "seed", "presence_penalty", "frequency_penalty")
    fields: dict[str, Any] = {name: getattr(config, name) for name in names}
    fields |= {"n": config.candidate_count, "max_completion_tokens": config.max_output_tokens}
    fields |= {"stop": config.stop_sequences or None, "logprobs": config.response_logprobs}
    fields["top_logprobs"] = config.logprobs if config.response_logprobs else None
    modalities = [kind.lower() for kind in config.response_modalities or ()]
    fields["modalities"] = modalities if any(kind != "text" for kind in modalities) else None
    schema = config.response_json_schema
    schema = json_schema(config.response_schema) if schema is None else schema
    if config.response_mime_type == "text/x.enum" and isinstance(schema, dict) and schema.get("enum"):
        fields["structured_outputs"] = StructuredOutputs(choice=schema["enum"])
    elif schema is not None:
        named = JsonSchemaFormat(name="answer", schema=schema)
        fields["response_format"] = ResponseFormat(type="json_schema", json_schema=named)
    elif config.response_mime_type == "application/json":
        fields["response_format"] = ResponseFormat(type="json_object")
    return fields


def _tools(tools: Sequence[Tool]) -> tuple[list[ToolDefinition], list[str]]:
    """The caller's functions, and the names of the tools that Google runs."""
    functions: list[ToolDefinition] = []
    for declaration in (one for tool in tools for one in tool.function_declarations or ()):
        schema = declaration.parameters_json_schema
        schema = json_schema(declaration.parameters) if schema is None else schema
        function = FunctionDefinition(name=declaration.name, description=declaration.description, parameters=schema)
        functions.append(ToolDefinition(type="function", function=function))
    run = [encoded for tool in tools for name, encoded in _RUN_BY_GOOGLE.items() if getattr(tool, name) is not None]
    return functions, list(dict.fromkeys(run))


def _choice(config: ToolConfig | None, tools: Sequence[ToolDefinition]) -> dict[str, Any]:
    calling = (None if config is None else config.function_calling_config) or CallingConfig()
    mode = {"ANY": "required", "NONE": "none"}.get(calling.mode or "", "auto")
    allowed = calling.allowed_function_names if mode == "required" else None
    if not allowed:
        return {"tool_choice": mode}
    if len(allowed) == 1:
        return {"tool_choice": NamedToolChoice(type="function", function=NamedFunction(name=allowed[0]))}
    named = [NamedTool(type="function", function=NamedFunction(name=name)) for name in allowed]
    return {
        "tool_choice": NamedToolChoice(type="allowed_tools", allowed_tools=AllowedTools(mode="required", tools=named))
    }


class _Turns:
    """The messages of the chat as contents are read, with the path and the parts of each.

    Google's ids of calls are optional: a response without one answers the first open call of its name.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.origins: list[Origin] = []
        self.opaque: list[Sequence[Opaque]] = []
        self._open: list[tuple[str, str]] = []  # ids and names of calls without a response

    def add(self, message: Message, where: str, parts: Sequence[Part], places: tuple[int, ...] = ()) -> None:
        self.messages.append(message)
        self.origins.append(Origin(where, places))
        blocks = [Opaque("gemini", _encode(one), "part", one.thought_signature or "") for one in parts]
        plain = len(parts) == 1 and parts[0] == Part(text=parts[0].text)
        # Calls that another model made are not signed, and Gemini refuses them so.
        unsigned = any(one.function_call is not None for one in parts) and not any(block.seal for block in blocks)
        is_given = bool(blocks) and not plain and not unsigned
        self.opaque.append(blocks if is_given else ())

    def read_user(self, content: Content, where: str) -> None:
        """Read what is not the model's. Raises `ApiError` 400 that names the part."""
        others = [(place, part) for place, part in enumerate(content.parts) if part.function_response is None]
        shown: list[ContentPart] = []
        for part in content.parts:
            if part.function_response is not None:
                shown += self._read_response(part, part.function_response, where)
        read = [(place, _content_part(part, f"{where}.parts[{place}]")) for place, part in others]
        parts = [*(part for _, part in read if part is not None), *shown]
        if parts:
            texts = all(part.type == "text" for part in parts)
            said = "\n".join(part.text or "" for part in parts) if texts else parts
            role = "system" if content.role == "system" else "user"
            places = tuple(place for place, part in read if part is not None)
            self.add(Message(role=role, content=said), where, [part for _, part in others], places)

    def read_model(self, contents: Sequence[tuple[int, Content]]) -> None:
        """Read a turn of the model. Raises `ApiError` 400 that names the part."""
        calls: list[MessageToolCall] = []
        texts, thoughts = list[str](), list[str]()
        read: list[Part] = []
        self._open = []
        for where, part in _placed(contents):
            if (call := part.function_call) is not None:
                call_id = call.id or f"call_{len(self.messages)}_{len(calls)}"
                self._open.append((call_id, call.name))
                function = FunctionCall(name=call.name, arguments=call.args or {})
                calls.append(MessageToolCall(id=call_id, function=function))
            elif part.text is not None:
                (thoughts if part.thought else texts).append(part.text)
            elif (said := _content_part(part, where)) is not None and said.text:
                texts.append(said.text)
            if part != Part(text=""):
                read.append(part)
        thought = "".join(thoughts) or None
        message = Message(role="assistant", content="".join(texts), tool_calls=calls or None, reasoning_content=thought)
        self.add(message, f"contents[{contents[0][0]}]", read)

    def _read_response(self, part: Part, response: CallResponse, where: str) -> list[ContentPart]:
        """Add the result of a call. Return what is no JSON of it, which the user shows."""
        matching = [one for one in self._open if one[0] == response.id or (not response.id and one[1] == response.name)]
        if matching:
            self._open.remove(matching[0])
        call_id = matching[0][0] if matching else response.id or f"call_{response.name}"
        given = response.response
        if isinstance(given, dict) and len(given) == 1 and ("result" in given or "output" in given):
            given = given.get("result", given.get("output"))
        text = given if isinstance(given, str) else "" if given is None else _encode(given).decode()
        self.add(Message(role="tool", tool_call_id=call_id, content=text), where, [part])
        media = (Part(inline_data=one.inline_data, file_data=one.file_data) for one in response.parts or ())
        return [found for one in media if (found := _content_part(one, where)) is not None]


def _placed(contents: Sequence[tuple[int, Content]]) -> Iterator[tuple[str, Part]]:
    for number, content in contents:
        for place, part in enumerate(content.parts):
            yield f"contents[{number}].parts[{place}]", part


def _content_part(part: Part, where: str) -> ContentPart | None:
    """A part as a chat has it; None for one that says nothing to other models. Raises `ApiError` 400."""
    if part.text is not None:
        return ContentPart(type="text", text=part.text)
    if part.inline_data is not None:
        blob = part.inline_data
        return _media(blob.mime_type, f"data:{blob.mime_type};base64,{blob.data}", blob.data, blob.display_name)
    if part.file_data is not None:
        file = part.file_data
        return _media(file.mime_type or "", file.file_uri, None, file.display_name)
    if part.executable_code is not None or part.code_execution_result is not None:
        said = part.executable_code or part.code_execution_result
        text = said.get("code") or said.get("output") if isinstance(said, dict) else None
        return ContentPart(type="text", text=f"```\n{text}\n```") if text else None
    if part.thought_signature is not None:
        return None
    raise bad_request(
        f"{where}: give one of text, inlineData, fileData, functionCall and functionResponse.", where, "invalid_value"
    )


_AUDIO = {"mpeg": "mp3", "x-wav": "wav", "wave": "wav", "mp4": "m4a", "x-m4a": "m4a", "x-aac": "aac"}


def _media(mime_type: str, url: str, data: str | None, name: str | None) -> ContentPart:
    kind, _, subtype = mime_type.partition(";")[0].partition("/")
    if kind == "image":
        return ContentPart(type="image_url", image_url={"url": url})
    if kind == "video":
        return ContentPart(type="video_url", video_url={"url": url})
    if kind == "audio" and data is not None:
        return ContentPart(type="input_audio", input_audio={"data": data, "format": _AUDIO.get(subtype, subtype)})
    return ContentPart(type="file", file={"filename": name or f"file.{subtype or 'bin'}", "file_data": url})
