"""What a request to `/v1/responses` asks for, said as a chat: there is one way from a body to a tier."""

from collections.abc import Iterator, Sequence

from gateway.api.inference.parsing import refuse_given
from gateway.api.inference.responses_schemas import Item, Part, ResponsesRequest, TextFormat
from gateway.api.inference.schemas import (
    ChatRequest,
    ContentPart,
    FunctionCall,
    FunctionDefinition,
    JsonSchemaFormat,
    Message,
    MessageToolCall,
    NamedFunction,
    NamedToolChoice,
    ResponseFormat,
    ToolDefinition,
)
from gateway.errors import ApiError, bad_request

# By what names the caller knows the fields of the chat.
_NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}


def chat_of(body: ResponsesRequest) -> ChatRequest:
    """The chat that says the same. Raises `ApiError` 400 that names the parameter."""
    _check(body)
    instructions = [] if body.instructions is None else [Message(role="system", content=body.instructions)]
    return ChatRequest(
        model=body.model,
        messages=[*instructions, *_messages(body.input)],
        max_completion_tokens=body.max_output_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        tools=None if body.tools is None else [_tool(tool) for tool in body.tools],
        tool_choice=_choice(body),
        parallel_tool_calls=body.parallel_tool_calls,
        response_format=_format(body.text.format if body.text else None),
        reasoning_effort=body.reasoning.effort if body.reasoning else None,
        stream=body.stream,
        store=body.store,
        metadata=body.metadata,
        service_tier=body.service_tier,
        user=body.user,
    )


def renamed(error: ApiError) -> ApiError:
    """A refusal of the chat in the words of this API."""
    param = error.body.param
    head, dot, rest = (param or "").partition(".")
    name, bracket, place = head.partition("[")
    if param is None or name not in _NAMES:
        return error
    message = error.body.message.replace(name, _NAMES[name])
    # Where instructions stand before it, a place in the chat is none in the input.
    where = _NAMES[name] + ("" if name == "messages" else bracket + place + dot + rest)
    return ApiError(error.status, message, param=where, code=error.body.code, type_=error.body.type)


def _check(body: ResponsesRequest) -> None:
    refuse_given(body, ("conversation", "prompt", "context_management", "moderation"))
    if body.previous_response_id is not None:
        raise bad_request(
            "Unsupported parameter previous_response_id: responses are not kept; send the whole conversation as input.",
            "previous_response_id",
            "unsupported_parameter",
        )
    if body.background:
        raise bad_request("Unsupported parameter background: leave it out.", "background", "unsupported_parameter")
    if body.truncation == "auto":
        raise bad_request(
            "An input that is too long is not cut: leave truncation out.",
            "truncation",
            "unsupported_parameter",
        )
    if body.include or body.top_logprobs:
        param = "include" if body.include else "top_logprobs"
        raise bad_request(f"Unsupported parameter {param}: leave it out.", param, "unsupported_parameter")
    if body.stream_options is not None and not body.stream:
        raise bad_request("stream_options is only allowed when stream is true.", "stream_options", "invalid_value")
    if body.text is not None and body.text.verbosity not in (None, "medium"):
        raise bad_request("Unsupported text.verbosity: leave it out.", "text.verbosity", "unsupported_parameter")


def _messages(given: str | Sequence[Item]) -> list[Message]:
    if isinstance(given, str):
        return [Message(role="user", content=given)]
    if not given:
        raise bad_request("input is empty: give a text or at least one item.", "input", "empty_array")
    return list(_joined(message for place, item in enumerate(given) for message in _turns(item, f"input[{place}]")))


def _turns(item: Item, where: str) -> Iterator[Message]:
    if item.type == "message":
        if item.role not in ("user", "assistant", "system", "developer"):
            raise bad_request(
                f"Invalid role {item.role!r}: allowed are user, assistant, system and developer.", f"{where}.role"
            )
        yield Message(role=item.role, content=_content(item.content, where))
    elif item.type == "function_call":
        if item.call_id is None or item.name is None or item.arguments is None:
            raise bad_request("A function_call needs call_id, name and arguments.", where, "missing_required_parameter")
        function = FunctionCall(name=item.name, arguments=item.arguments)
        yield Message(role="assistant", tool_calls=[MessageToolCall(id=item.call_id, function=function)])
    elif item.type == "function_call_output":
        if item.call_id is None or item.output is None:
            raise bad_request("A function_call_output needs call_id and output.", where, "missing_required_parameter")
        yield Message(role="tool", tool_call_id=item.call_id, content=_content(item.output, where))
    elif item.type != "reasoning":
        raise bad_request(f"Unsupported item of type {item.type!r}.", f"{where}.type", "unsupported_content")


def _joined(messages: Iterator[Message]) -> Iterator[Message]:
    """An assistant's text and calls, which come as items of their own, as the one turn that they were."""
    last: Message | None = None
    for message in messages:
        if last is not None and last.role == message.role == "assistant" and message.tool_calls:
            calls = last.tool_calls or []
            calls += message.tool_calls
            last = Message(role="assistant", content=last.content, tool_calls=calls)
            continue
        if last is not None:
            yield last
        last = message
    if last is not None:
        yield last


def _content(given: str | Sequence[Part] | None, where: str) -> str | list[ContentPart] | None:
    if given is None or isinstance(given, str):
        return given
    return [_part(part, f"{where}.content[{place}]") for place, part in enumerate(given)]


def _part(part: Part, where: str) -> ContentPart:
    if part.type in ("input_text", "output_text", "text") and part.text is not None:
        return ContentPart(type="text", text=part.text)
    if part.type == "refusal" and part.refusal is not None:
        return ContentPart(type="refusal", refusal=part.refusal)
    raise bad_request(
        f"Content of type {part.type!r} is not supported: the models here read text only.",
        f"{where}.type",
        "unsupported_content",
    )


def _tool(tool: object) -> ToolDefinition:
    fields = {name: getattr(tool, name) for name in ("name", "description", "parameters", "strict")}
    return ToolDefinition(type=getattr(tool, "type", ""), function=FunctionDefinition(**fields))


def _choice(body: ResponsesRequest) -> str | NamedToolChoice | None:
    choice = body.tool_choice
    if choice is None or isinstance(choice, str):
        return choice
    return NamedToolChoice(type=choice.type, function=NamedFunction(name=choice.name))


def _format(given: TextFormat | None) -> ResponseFormat | None:
    if given is None:
        return None
    if given.type != "json_schema":
        return ResponseFormat(type=given.type)
    if given.name is None:
        raise bad_request("You must provide text.format.name.", "text.format.name", "missing_required_parameter")
    schema = JsonSchemaFormat(name=given.name, schema=given.schema, strict=given.strict, description=given.description)
    return ResponseFormat(type="json_schema", json_schema=schema)
