"""Answers of OpenAI's chats and text completions, field by field: each field is declared here once, whether it is
written to callers or read from servers.

A caller gets every field that its writer gives, in this order. A server may leave out any of them, and `chat_chunk`
adds the names that servers have for the same. The description of the API says what callers are promised.
"""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from tiers.dialects.chat_schemas import FunctionCall, MessageToolCall
from tiers.dialects.lenient_json import LEAST_LOGPROB

Byte = Annotated[int, msgspec.Meta(ge=0, le=255)]


class TopLogprob(msgspec.Struct, frozen=True):
    """An alternative at one position."""

    token: str
    logprob: float = LEAST_LOGPROB
    bytes: list[Byte] | None = None
    """Its UTF-8 bytes, which alone need not be valid text: `token` has U+FFFD in their place."""


class TokenLogprobs(TopLogprob, frozen=True):
    """A drawn token of a chat answer with its most likely alternatives, best first. `token` has U+FFFD where its bytes
    are no whole character; `bytes` are exact, and those of all tokens joined are the answer's UTF-8."""

    top_logprobs: list[TopLogprob] = []


class ChatLogprobs(msgspec.Struct, frozen=True):
    """`choices[].logprobs` of a chat."""

    content: list[TokenLogprobs] | None = None
    refusal: None = None


class CompletionLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    r"""`choices[].logprobs` of a text completion: four lists of one entry per token. The first token of a repeated
    prompt has no log-probabilities.

    A token that is no text by itself, as a part of a character is not, is written `bytes:\xf0\x9f`.
    """

    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float] | None] | None = None
    """The most likely tokens and the one that stands there."""
    text_offset: list[int] | None = None
    """Characters of the choice's text before the token. The first token of a repeated prompt has no log-probabilities.
    """


class PromptDetails(msgspec.Struct, frozen=True):
    """`usage.prompt_tokens_details`: tokens that a prefix cache had, and that a provider wrote into its own."""

    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class CompletionDetails(msgspec.Struct, frozen=True):
    """`usage.completion_tokens_details`: tokens spent on thinking."""

    reasoning_tokens: int | None = None


class UsageBody(msgspec.Struct, frozen=True):
    """`usage`, of whole answers and of the last chunk of a stream."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None


class ChatMessageFields(msgspec.Struct, omit_defaults=True, kw_only=True):
    """An assistant's turn without its role, which is not read."""

    content: Any = UNSET
    """Null where there is nothing but calls, or a `refusal`."""
    refusal: str | UnsetType | None = UNSET
    """What the model says instead of an answer."""
    annotations: list[Any] | UnsetType | None = UNSET
    """What the content cites."""
    reasoning_content: Any = None
    """What a chain-of-thought tier thought before it answered. `reasoning` is the same: clients read one name or the
    other.
    """
    reasoning: Any = None
    tool_calls: list[MessageToolCall] | None = None
    function_call: FunctionCall | None = None
    """The call, instead of `tool_calls`, for a caller of `functions`."""
    reasoning_details: Raw | UnsetType = UNSET
    """As the server gave them, which needs them back."""
    extra_content: Raw | UnsetType = UNSET
    """As the server gave it, which needs it back."""
    images: Raw | UnsetType = UNSET
    """Images that the model made."""
    audio: Raw | UnsetType = UNSET
    """Audio that the model made."""


class ChatMessageBody(ChatMessageFields):
    """An assistant's turn."""

    role: str


class _ChoiceEnd(msgspec.Struct, kw_only=True):
    """What follows the text of a choice."""

    logprobs: ChatLogprobs | CompletionLogprobs | None = None
    finish_reason: str | None = None


class _NumberedChoice(_ChoiceEnd):
    """A choice without its text."""

    index: int = 0


class ChatChoice(_NumberedChoice):
    """One choice of a chat."""

    message: ChatMessageFields | None = None


class CompletionChoice(_NumberedChoice):
    """One choice of a text completion."""

    text: str | None = None


class _WholeBody(msgspec.Struct, frozen=True, kw_only=True):
    """What the bodies of whole answers have in common."""

    id: str
    object: str
    created: int
    model: str
    choices: list[Any]
    usage: UsageBody
    system_fingerprint: str


class ChatBody(_WholeBody, frozen=True, kw_only=True):
    """The body of a whole chat answer."""

    object: str = "chat.completion"
    choices: list[ChatChoice]
    service_tier: str | UnsetType = UNSET
    """Present if the caller asked for one."""
    x_aio: Any


class CompletionBody(_WholeBody, frozen=True, kw_only=True):
    """The body of a whole text completion."""

    object: str = "text_completion"
    choices: list[CompletionChoice]
    x_aio: Any
