"""What a request of the Messages API asks for, said as a chat: there is one way from a body to a tier."""

from typing import Any

import msgspec

from gateway.base.errors import ApiError, bad_request
from gateway.inference.api.messages.conversation import conversation_of
from gateway.inference.api.messages.errors import dotted
from gateway.inference.api.messages.schemas import CountTokensRequest, MessagesRequest, Thinking, ToolChoice, ToolEntry
from gateway.inference.api.reading.parsing import refuse_given
from gateway.inference.api.reading.schemas import (
    ChatRequest,
    FunctionDefinition,
    JsonSchemaFormat,
    NamedFunction,
    NamedToolChoice,
    ResponseFormat,
    ToolDefinition,
)

# By what names the caller knows the fields of the chat.
_NAMES = {
    "max_completion_tokens": "max_tokens",
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "thinking_token_budget": "thinking.budget_tokens",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
}
_FIELDS = {"function.parameters": "input_schema", "function.": "", "json_schema.schema": "schema"}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class Chat(msgspec.Struct, frozen=True):
    """The chat, and for each of its messages the path of the one that it comes from."""

    request: ChatRequest
    origins: list[str]

    def renamed(self, error: ApiError) -> ApiError:
        """A refusal of the chat in the words of this API."""
        given = error.body.param
        if given is None:
            return error
        param = self._path(given)
        message = error.body.message if param == given else error.body.message.replace(given, param)
        name = given.partition("[")[0].partition(".")[0]
        if name in _NAMES:
            message = message.replace(name, _NAMES[name])
        headers, body = error.headers, error.body
        found = ApiError(error.status, message, param=param, code=body.code, type_=body.type, headers=headers)
        found.retry_after = error.retry_after
        return found

    def _path(self, param: str) -> str:
        head, dot, rest = param.partition(".")
        name, bracket, _ = head.partition("[")
        if name == "messages" and bracket:
            place = int(head[len("messages[") : -1])
            return self.origins[place] if place < len(self.origins) else "messages"
        path = dotted(_NAMES.get(name, name) + head[len(name) :] + dot + rest)
        for theirs, ours in _FIELDS.items():
            path = path.replace(theirs, ours)
        return path


def chat_of(body: CountTokensRequest) -> Chat:
    """The chat that says the same. Raises `ApiError` 400 that names the field."""
    refuse_given(body, ("mcp_servers",))
    conversation = conversation_of(body.system, body.messages)
    effort = body.output_config.effort if body.output_config else None
    choice = body.tool_choice
    sampling = _sampling(body) if isinstance(body, MessagesRequest) else {}
    chat = ChatRequest(
        model=body.model,
        messages=conversation.messages,
        tools=None if body.tools is None else [_tool(tool, f"tools.{i}") for i, tool in enumerate(body.tools)],
        tool_choice=None if choice is None else _choice(choice),
        parallel_tool_calls=False if choice is not None and choice.disable_parallel_tool_use else None,
        response_format=_format(body),
        reasoning_effort="xhigh" if effort == "max" else effort,
        thinking_token_budget=None if body.thinking is None else _thinking_budget(body.thinking),
        **sampling,
    )
    return Chat(chat, conversation.origins)


def _sampling(body: MessagesRequest) -> dict[str, Any]:
    refuse_given(body, ("container",))
    thinking = body.thinking
    if thinking is not None and thinking.budget_tokens is not None and thinking.budget_tokens >= body.max_tokens:
        raise bad_request(
            "max_tokens must be greater than thinking.budget_tokens: thoughts count against it.",
            "max_tokens",
            "invalid_value",
        )
    user_id = body.metadata.user_id if body.metadata else None
    return {
        "max_completion_tokens": body.max_tokens,
        "stream": body.stream,
        "stop": body.stop_sequences or None,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "metadata": None if user_id is None else {"user_id": user_id},
        "user": user_id,
        "service_tier": "default" if body.service_tier == "standard_only" else body.service_tier,
    }


def _thinking_budget(thinking: Thinking) -> int | None:
    if thinking.type == "disabled":
        return 0
    if thinking.type == "enabled" and thinking.budget_tokens is None:
        raise bad_request(
            "thinking.budget_tokens: Field required.", "thinking.budget_tokens", "missing_required_parameter"
        )
    return thinking.budget_tokens


def _tool(tool: ToolEntry, where: str) -> ToolDefinition:
    if tool.type not in (None, "custom"):
        raise bad_request(
            f"{where}.type: tools of type {tool.type!r} are Anthropic's own and not available here; give custom tools.",
            f"{where}.type",
            "unsupported_parameter",
        )
    if not tool.name:
        raise bad_request(f"{where}.name: Field required.", f"{where}.name", "missing_required_parameter")
    if tool.input_schema is None:
        raise bad_request(
            f"{where}.input_schema: Field required.", f"{where}.input_schema", "missing_required_parameter"
        )
    function = FunctionDefinition(
        name=tool.name, description=tool.description, parameters=tool.input_schema, strict=tool.strict
    )
    return ToolDefinition(type="function", function=function)


def _choice(choice: ToolChoice) -> str | NamedToolChoice:
    if choice.type != "tool":
        return _CHOICES[choice.type]
    if not choice.name:
        raise bad_request("tool_choice.name: Field required.", "tool_choice.name", "missing_required_parameter")
    return NamedToolChoice(type="function", function=NamedFunction(name=choice.name))


def _format(body: CountTokensRequest) -> ResponseFormat | None:
    form = body.output_format if body.output_config is None else body.output_config.format or body.output_format
    if form is None:
        return None
    return ResponseFormat(type="json_schema", json_schema=JsonSchemaFormat(name="answer", schema=form.schema))
