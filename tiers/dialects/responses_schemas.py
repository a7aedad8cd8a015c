"""Bodies, items and tools of the Responses API, field by field as OpenAI documents them: what callers send, and what
servers answer, which is read leniently. Fields of a request that have no machinery are refused by name."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from inference_core.io.files import prepare_types
from tiers.conversation import Dialect, ReasoningEffort, UrlCitation
from tiers.dialects.chat_schemas import (
    MAX_PARTS,
    MAX_TOOLS,
    FunctionName,
    Metadata,
    PositiveInt,
    StreamOptions,
    Temperature,
    TopP,
    Unsupported,
)

FORM: Dialect = "responses"
LOGPROBS, SEALED_REASONING = "message.output_text.logprobs", "reasoning.encrypted_content"
"""What `include` may ask for, and is known here."""
SAME_FIELDS = (
    "context_management", "instructions", "max_tool_calls", "parallel_tool_calls", "reasoning", "text",
    "tool_choice", "tools", "top_logprobs",
)  # fmt: skip
"""Fields of a request that go to a server with this API as they were given."""


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A piece of a message (`input_text`, `input_image`, `input_file`, `input_audio`, `output_text` or `refusal`) or of
    thoughts (`reasoning_text`, `summary_text`). Other fields that clients repeat from earlier answers are ignored."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    detail: str | None = None
    file_data: str | None = None
    file_id: str | None = None
    file_url: str | None = None
    filename: str | None = None
    input_audio: dict[str, Any] | None = None
    prompt_cache_breakpoint: dict[str, Any] | None = None


class SaidPart(Part, frozen=True, kw_only=True):
    """A piece of a server's item."""

    type: str = ""
    annotations: list[UrlCitation] | None = None


prepare_types(Part)


class ToolFormat(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a custom tool: `text`, or a `grammar` whose `syntax` is lark or regex."""

    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: str | None = None


class NamespacedTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that the caller runs: a `function` with `parameters`, or a `custom` one, which takes text. A chat's tool,
    which has a `function`, does not decode as one.
    """

    type: str
    name: FunctionName = "tool"
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: ToolFormat | None = None
    execution: str | None = None
    """Who runs a `tool_search`."""
    function: None = None


class ResponseTool(NamespacedTool, frozen=True, kw_only=True):
    """A tool, or a `namespace` of `tools`."""

    tools: Annotated[list[NamespacedTool], Meta(max_length=MAX_TOOLS)] | None = None


class ToolName(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that is called or chosen, with its namespace if it has one."""

    name: str | None = None
    namespace: str | None = None


class _IdentifiedItem(ToolName, frozen=True):
    """An item begins with its ids."""

    id: str | None = None
    call_id: str | None = None


class ItemFields(_IdentifiedItem, frozen=True, kw_only=True):
    """The fields that items of callers and of servers have in common."""

    arguments: Any = None
    input: str | None = None
    action: Any = None
    encrypted_content: str | None = None


class _CallersItem(ItemFields, frozen=True):
    id: Annotated[str, Meta(max_length=128)] | None = None


class Item(_CallersItem, frozen=True, kw_only=True):
    """One item of the input.

    `message` (the default): `role` and `content`. `function_call`: `call_id`, `name` (with its `namespace`) and
    `arguments`. `custom_tool_call`: `call_id`, `name` and `input`. `function_call_output`, `custom_tool_call_output`:
    `call_id` and `output`. Calls of OpenAI's tools that the caller runs (`shell_call`, `apply_patch_call` and others):
    `call_id` with an `action` or an `operation`, and outputs of any form. `reasoning`: earlier thoughts, in `content`,
    `encrypted_content` or `summary`. `item_reference`: the `id` of an item of a stored response. `additional_tools`:
    `tools`, next to those of the request. `compaction`: a summary in `encrypted_content`; `compaction_trigger`: asks
    for one.
    """

    type: str = "message"
    """Says which fields count."""
    role: str | None = None
    content: str | list[Part] | None = None
    arguments: str | dict[str, Any] | None = None
    operation: Any = None
    output: Any = None
    summary: list[Part] | None = None
    tools: list[ResponseTool] | None = None


class WrittenItem(Item, frozen=True, kw_only=True, omit_defaults=True):
    """One item for a server."""

    type: str


class SaidItem(ItemFields, frozen=True, kw_only=True):
    """One item of a server's answer."""

    type: str = ""
    content: list[SaidPart] | str | None = None
    summary: list[SaidPart] | None = None
    container_id: str | None = None

    @property
    def parts(self) -> list[SaidPart]:
        """Its content, which some servers give as a text."""
        return [SaidPart(text=self.content)] if isinstance(self.content, str) else self.content or []


class WrittenTool(NamespacedTool, frozen=True, kw_only=True, omit_defaults=True):
    """A function for a server."""

    type: str
    name: FunctionName


class ChosenTool(ToolName, frozen=True, omit_defaults=True):
    """A function or custom tool by its name."""

    type: str


class ToolChoice(ChosenTool, frozen=True, kw_only=True):
    """`tool_choice` as an object: call this tool, or of `allowed_tools` only `tools`, if any (`auto`) or at least one
    (`required`)."""

    mode: Literal["auto", "required"] = "auto"
    tools: Annotated[list[ChosenTool], Meta(max_length=MAX_TOOLS)] | None = None


class TextFormat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """`text.format`: `text`, `json_object`, or `json_schema` with its name and schema."""

    type: str
    name: FunctionName | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class TextOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the text must be."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class Reasoning(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How much to think."""

    effort: ReasoningEffort | None = None
    summary: str | None = None
    """Whether thoughts are given as a summary, which is all of them, and not as content."""
    generate_summary: str | None = None


class ResponsesRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/responses`. With `previous_response_id`, `input` goes on from that response's conversation."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    input: str | Annotated[list[Item], Meta(max_length=MAX_PARTS)]
    instructions: str | None = None
    max_output_tokens: PositiveInt | None = None
    max_tool_calls: PositiveInt | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    tools: Annotated[list[ResponseTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    store: bool | None = None
    metadata: Metadata | None = None
    service_tier: str | None = None
    truncation: Literal["auto", "disabled"] | None = None
    include: list[str] | None = None
    user: Annotated[str, Meta(max_length=512)] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    background: bool | None = None
    previous_response_id: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    conversation: Unsupported = None
    prompt: Unsupported = None
    context_management: Unsupported = None
    moderation: Unsupported = None
