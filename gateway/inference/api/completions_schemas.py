"""What the descriptions of `POST /v1/chat/completions` and `/v1/completions` promise of an answer."""

from typing import Annotated, Any

from msgspec import Meta, UnsetType

from gateway.edge.openapi import promised
from gateway.inference.api.answers import Routed
from tiers.dialects.chat_form import (
    ChatBody,
    ChatChoice,
    ChatLogprobs,
    ChatMessageBody,
    CompletionBody,
    CompletionChoice,
    CompletionDetails,
    CompletionLogprobs,
    PromptDetails,
    TokenLogprobs,
    UsageBody,
)
from tiers.dialects.chat_schemas import CustomCall, FunctionCall, MessageToolCall

_USAGE = promised(
    "UsageBody",
    UsageBody,
    prompt_tokens=int,
    completion_tokens=int,
    total_tokens=int,
    prompt_tokens_details=promised("PromptDetails", PromptDetails, cached_tokens=int, cache_write_tokens=int),
    completion_tokens_details=promised("CompletionDetails", CompletionDetails, reasoning_tokens=int),
)
_FUNCTION = promised("FunctionBody", FunctionCall, arguments=Annotated[str, Meta(description="JSON text.")])
_CALL = promised(
    "ToolCallBody",
    MessageToolCall,
    id=str,
    type=str,
    function=_FUNCTION | UnsetType,
    custom=CustomCall | UnsetType,
)
_MESSAGE = promised(
    "ChatMessageBody",
    ChatMessageBody,
    role=str,
    content=str | None,
    refusal=str | None,
    annotations=list[Any],
    reasoning_content=str | UnsetType,
    reasoning=str | UnsetType,
    tool_calls=list[_CALL] | UnsetType,  # type: ignore[valid-type]
    function_call=_FUNCTION | UnsetType,
)
_CHAT_CHOICE = promised(
    "ChatChoice",
    ChatChoice,
    index=int,
    message=_MESSAGE,
    logprobs=promised("ChatLogprobs", ChatLogprobs, content=list[TokenLogprobs]) | None,
    finish_reason=str | None,
)
_COMPLETION_CHOICE = promised(
    "CompletionChoice",
    CompletionChoice,
    index=int,
    text=str,
    logprobs=promised(
        "CompletionLogprobs",
        CompletionLogprobs,
        tokens=list[str],
        token_logprobs=list[float | None],
        top_logprobs=list[dict[str, float] | None],
        text_offset=list[int],
    )
    | None,
    finish_reason=str | None,
)
ChatAnswer = promised("ChatAnswer", ChatBody, choices=list[_CHAT_CHOICE], usage=_USAGE, x_aio=Routed)  # type: ignore[valid-type]
CompletionAnswer = promised(
    "CompletionAnswer",
    CompletionBody,
    choices=list[_COMPLETION_CHOICE],  # type: ignore[valid-type]
    usage=_USAGE,
    x_aio=Routed,
)
