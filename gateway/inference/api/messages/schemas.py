"""Bodies of `POST /v1/messages` and `/v1/messages/count_tokens`, field by field as Anthropic documents them.

Types and ranges are checked while decoding; `conversation` and `as_chat` check what depends on several. Fields typed
`Unsupported` are refused by name unless null, and others typed `Any` are accepted and not needed.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.inference.api.reading.schemas import PositiveInt, StopString, TopP, Unsupported

MAX_TOOLS = 512
MAX_STOP_SEQUENCES = 64

# Anthropic's own bounds.
LEAST_THINKING_TOKENS = 1024
ToolName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,128}$")]


class Text(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A text block where nothing else is allowed: of `system`, and of a document's or a search result's content."""

    type: Literal["text"] = "text"
    text: str
    cache_control: Any = None
    citations: Any = None


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where an image or a document is: `base64` or `text` (`media_type`, `data`), `url`, `content`, `file`."""

    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None
    file_id: str | None = None
    content: str | list[Text] | None = None


class _Readable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of blocks that tell the model something: `text`, `image`, `document` and `search_result`."""

    type: str
    text: str | None = None
    source: str | Source | None = None
    title: str | None = None
    context: str | None = None
    cache_control: Any = None
    citations: Any = None


class ResultBlock(_Readable, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A block of a tool's result."""

    content: str | list[Text] | None = None


class Block(_Readable, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A block of a message; `type` says which fields count.

    `tool_use`: `id`, `name` and `input`. `tool_result`: `tool_use_id`, `content` and `is_error`.
    `thinking`: the thoughts of an earlier answer; their `signature` is not checked, and `data` that hides them is not
    read.
    """

    content: str | list[ResultBlock] | None = None
    thinking: str | None = None
    signature: Any = None
    data: Any = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    is_error: bool | None = None
    caller: Any = None


class Turn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One message."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class ToolEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool; only custom ones are understood, so that nothing else needs to be checked of others."""

    type: str | None = None
    name: ToolName = ""
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    cache_control: Any = None
    eager_input_streaming: Any = None
    input_examples: Any = None


class ToolChoice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether tools may be, must be or are not called; `tool`: the one called `name`."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether the answer shows its thoughts, and how many tokens they may have; `adaptive`: as the tier thinks usually.
    `display`: `omitted` leaves out their text."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Meta(ge=LEAST_THINKING_TOKENS, le=2**31 - 1)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The JSON schema that the answer obeys."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much to think, and the format of the answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class RequestMetadata(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`user_id`: an opaque name of the user, recorded as a tag; by it experiments are split."""

    user_id: Annotated[str, Meta(max_length=512)] | None = None


class CountTokensRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/messages/count_tokens`. `output_format`: an earlier name of `output_config.format`.

    `cache_control` (here and in blocks) and `context_management` are accepted and not needed: prefixes are cached by
    their tokens, and nothing is cut from a conversation.
    """

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    messages: list[Turn]
    system: str | list[Text] | None = None
    tools: Annotated[list[ToolEntry], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    cache_control: Any = None
    context_management: Any = None
    mcp_servers: Unsupported = None


class MessagesRequest(CountTokensRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/messages`."""

    max_tokens: PositiveInt
    stream: bool | None = None
    stop_sequences: Annotated[list[StopString], Meta(max_length=MAX_STOP_SEQUENCES)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: TopP | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    metadata: RequestMetadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    container: Unsupported = None
