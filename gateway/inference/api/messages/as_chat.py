"""What a request of the Messages API asks for, said as a chat: there is one way from a body to a tier."""

from typing import Any

import msgspec

from gateway.base.errors import ApiError, ContextLengthError, bad_request
from gateway.base.inference_request import InferenceRequest
from gateway.inference.api.messages.conversation import conversation_of
from gateway.inference.api.messages.schemas import (
    CountTokensRequest,
    MessagesRequest,
    Thinking,
    ToolChoice,
    ToolEntry,
    dotted,
)
from tiers.conversation import INTERLEAVED, NativeRequest, Opaque, Turn
from tiers.dialects.caller_urls import refuse_turn, refuse_urls
from tiers.dialects.chat_schemas import (
    ChatRequest,
    FunctionDefinition,
    JsonSchemaFormat,
    NamedFunction,
    NamedToolChoice,
    ResponseFormat,
    ToolDefinition,
)
from tiers.dialects.decoding import decoded

_encode = msgspec.json.Encoder().encode

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
# What only a server with this API understands, or understands more exactly.
_NATIVE = (
    "tool_choice",
    "thinking",
    "output_config",
    "cache_control",
    "context_management",
    "container",
    "inference_geo",
    "mcp_servers",
    "speed",
)
# Without them the answer is another one, so no other tier can give it.
_PROVIDERS_OWN = ("mcp_servers", "container")
_UNSAID = ("inference_geo", "speed")
_MARK = b'"cache_control"'
_UPLOADS = {"container_upload"}
# Types of tools that every model can call; `function` is OpenAI's, and refused.
_CALLERS = (None, "custom", "function")
# Anthropic's tools that the caller runs: without one, the model could not do what it is asked for.
_CALLERS_OWN = ("bash_", "text_editor_", "computer_", "memory_")


class Chat(msgspec.Struct, frozen=True):
    """The chat, for each of its messages the path of the one that it comes from and what it is here, and the other
    fields as they were. `left_out`: names of tools that nothing here runs, next to the caller's own."""

    request: ChatRequest
    origins: list[str]
    opaque: list[tuple[Opaque, ...]]
    native: NativeRequest
    left_out: list[str] = []

    def with_own(self, request: InferenceRequest) -> InferenceRequest:
        """`request`, which says the chat, with what a server with this API gets instead."""
        turns = zip(request.generation.messages or (), self.opaque, strict=True)
        messages = [_with_own(turn, said) if said else turn for turn, said in turns]
        return request.with_generation(messages=messages, native=self.native)

    def renamed(self, error: ApiError) -> ApiError:
        """A refusal of the chat in the words of this API."""
        given = error.body.param
        if given is None:
            return error
        param = self._path(given)
        if isinstance(error, ContextLengthError):
            return error.named(param)
        message = error.body.message if param == given else error.body.message.replace(given, param, 1)
        name = given.partition("[")[0].partition(".")[0]
        if name in _NAMES:
            message = message.replace(name, _NAMES[name], 1)
        return error.reworded(param, message)

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


def chat_of(body: CountTokensRequest, betas: str = "", *, keeps_own: bool = True) -> Chat:
    """The chat that says the same. `betas`: the header of that name. `keeps_own`: whether there is a tier that may run
    tools of Anthropic. Raises `ApiError` 400 that names the field."""
    if body.thread is not None:
        # Without the turns that a server of Anthropic would hold, the last one is answered as if it were the first.
        raise bad_request("thread: send the whole conversation without it.", "thread", "thread_unsupported_request")
    conversation = conversation_of(body.system, body.messages)
    if conversation.foreign and not keeps_own:
        raise bad_request(
            f"messages: only Anthropic's models read content of type {conversation.foreign[0][:64]!r}, and there is "
            "none here. Give text, image, document, search_result, tool_use and tool_result.",
            "messages",
            "unsupported_content",
        )
    effort = body.output_config.effort if body.output_config else None
    choice = body.tool_choice
    sampling = _sampling(body, betas) if isinstance(body, MessagesRequest) else {}
    entries = [decoded(raw, ToolEntry, f"tools.{place}") for place, raw in enumerate(body.tools or ())]
    for place, raw in enumerate(body.tools or ()):
        refuse_turn(bytes(raw), f"tools.{place}")
    refuse_urls(body.mcp_servers, "mcp_servers")
    tools = [_tool(tool, f"tools.{place}") for place, tool in enumerate(entries) if tool.type in _CALLERS]
    own = [str(tool.type) for tool in entries if tool.type not in _CALLERS]
    left_out = [] if keeps_own or not tools else [kind for kind in own if not kind.startswith(_CALLERS_OWN)]
    own = [kind for kind in own if kind not in left_out]
    added = [_tool(decoded(given, ToolEntry, "messages"), "messages") for given in conversation.added_tools]
    tools += [tool for tool in added if tool not in tools]
    if choice is not None and choice.name in [tool.name for tool in entries if tool.type not in _CALLERS]:
        choice = None
    chat = ChatRequest(
        model=body.model,
        messages=conversation.messages,
        tools=None if not tools and (body.tools is None or own) else tools,
        tool_choice=None if choice is None or (own and not tools) else _choice(choice),
        parallel_tool_calls=False if choice is not None and choice.disable_parallel_tool_use else None,
        response_format=_format(body),
        reasoning_effort=effort,
        thinking_token_budget=None if body.thinking is None else _thinking_budget(body.thinking),
        **sampling,
    )
    own += [name for name in _PROVIDERS_OWN if getattr(body, name, None)]
    own += dict.fromkeys(conversation.foreign)
    own += sorted({block.type for said in conversation.opaque for block in said} & _UPLOADS)
    unsaid = tuple(name for name in _UNSAID if getattr(body, name, None) is not None)
    native = NativeRequest("messages", _native_fields(body), tuple(own), betas, unsaid)
    return Chat(chat, conversation.origins, conversation.opaque, native, [f"tools.{kind}" for kind in left_out])


def _with_own(turn: Turn, opaque: tuple[Opaque, ...]) -> Turn:
    """The turn with what it is in this API."""
    marked = any(_MARK in block.json for block in opaque)
    return msgspec.structs.replace(turn.with_opaque(opaque), cache_mark=marked)


def _native_fields(body: CountTokensRequest) -> dict[str, bytes]:
    given = {name: value for name in _NATIVE if (value := getattr(body, name, None)) is not None}
    fields = {name: _encode(value) for name, value in given.items()}
    if getattr(body, "max_tokens", None) == 0:
        fields["max_tokens"] = b"0"
    if body.tools:
        fields["tools"] = b"[" + b",".join(map(bytes, body.tools)) + b"]"
    return fields


def _sampling(body: MessagesRequest, betas: str) -> dict[str, Any]:
    thinking = body.thinking
    budget = 0 if thinking is None else thinking.budget_tokens or 0
    if budget and budget >= body.max_tokens and INTERLEAVED not in betas:
        raise bad_request(
            "max_tokens must be greater than thinking.budget_tokens: thoughts count against it.",
            "max_tokens",
            "invalid_value",
        )
    user_id = body.metadata.user_id if body.metadata else None
    return {
        "max_completion_tokens": body.max_tokens or 1,
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
    """The tool as a chat has it."""
    if tool.type == "function":
        raise bad_request(f"{where}.type: Give a custom tool, with its input_schema.", f"{where}.type", "invalid_value")
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
