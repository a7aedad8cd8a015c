"""Bodies of the two generating endpoints, field by field as OpenAI documents them, plus vLLM's extensions.

Types and ranges are checked while decoding; `tiers.dialects.chat_request` checks what depends on several.
Fields typed `Unsupported` are known to OpenAI clients but have no machinery here: all but null is refused by name,
unless `HARMLESS` names them. Other fields are unknown: left out and named in a header, or refused for a strict key.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tiers.conversation import Call, ReasoningEffort

Unsupported = Any

MAX_CHOICES = 16
MAX_PROMPTS = 64
MAX_STOPS = 16
MAX_TOOLS = 512
# Ten times OpenAI's own bound of a conversation, and far beyond what agents send to Anthropic, whose bound is 100,000.
# They take some tens of milliseconds.
MAX_MESSAGES = 20_000
# Parts of messages and calls in them, over a conversation; also items that it is given as.
MAX_PARTS = 40_000

# Fields of a chat that change at most the speed of an answer: accepted without effect.
HARMLESS = ("prediction",)

Temperature = Annotated[float, Meta(ge=0, le=2)]
TopP = Annotated[float, Meta(gt=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
Choices = Annotated[int, Meta(ge=1, le=MAX_CHOICES)]
PositiveInt = Annotated[int, Meta(ge=1, le=2**31 - 1)]
NaturalInt = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
StopString = Annotated[str, Meta(min_length=1, max_length=1024)]
StopList = Annotated[list[StopString], Meta(max_length=MAX_STOPS)]
# OpenAI's own bounds on what callers may attach.
MetadataKey = Annotated[str, Meta(min_length=1, max_length=64)]
Metadata = Annotated[dict[MetadataKey, Annotated[str, Meta(max_length=512)]], Meta(max_length=16)]
# vLLM's name for further variables of a model's chat template, such as `enable_thinking`.
TemplateVariable = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=64)]
TemplateVariables = Annotated[dict[TemplateVariable, Any], Meta(max_length=32)]


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Options of a stream."""

    include_usage: bool | None = None
    """Whether a last chunk with the token counts is wanted."""
    include_obfuscation: bool | None = None
    """Accepted and not needed."""


class ContentPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A piece of a message: `text`, an assistant's `refusal` or thoughts, or a medium."""

    type: str
    text: str | None = None
    refusal: str | None = None
    thinking: Any = None
    image_url: Unsupported = None
    video_url: Unsupported = None
    input_audio: Unsupported = None
    file: Unsupported = None
    cache_control: Any = None
    """A mark that tiers of Anthropic get."""
    prompt_cache_breakpoint: dict[str, Any] | None = None
    """A mark that tiers of OpenAI get."""


class FunctionCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an assistant called. Clients add fields."""

    name: str
    arguments: str | dict[str, Any] | list[Any] | None = None
    """JSON text, or JSON itself from some servers."""


class CustomCall(msgspec.Struct, frozen=True, kw_only=True):
    """Which custom tool an assistant called, with what text."""

    name: str
    input: str


class TypedTool(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A function or a custom tool, in the field that has the name of its type."""

    type: str | None = None
    function: Any = None
    custom: Any = None


class _IdentifiedCall(TypedTool, frozen=True, kw_only=False):
    """A call begins with its id, which some servers leave out of an assistant's earlier turn."""

    id: str | None = None


class MessageToolCall(_IdentifiedCall, frozen=True, kw_only=True):
    """A call of a function or of a custom tool."""

    function: FunctionCall | None = None
    custom: CustomCall | None = None
    extra_content: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """What the server gave, which needs it back."""


def function_call(call: Call, extra_content: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET) -> MessageToolCall:
    """Return a call of a function."""
    function = FunctionCall(name=call.name, arguments=call.arguments)
    return MessageToolCall(id=call.id, type="function", function=function, extra_content=extra_content)


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One turn as OpenAI clients send it, answers of earlier turns included; their thoughts have either name, and what
    their server needs back is as it was given."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_details: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    extra_content: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    annotations: Any = None
    audio: Any = None
    tool_calls: list[MessageToolCall] | None = None
    tool_call_id: str | None = None
    function_call: FunctionCall | None = None
    parsed: Any = None


class JsonSchemaFormat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`response_format.json_schema`. Answers obey the schema whether `strict` or not."""

    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}$", description="1 to 64 Latin letters, digits, _ and -")]
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class ResponseFormat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the answer must be: `text`, `json_object` (any JSON object) or `json_schema`."""

    type: str
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """vLLM's extension: one of a JSON schema (data or text), a regular expression, texts to choose from, a grammar in
    Lark or GBNF, or any JSON object."""

    json: dict[str, Any] | str | None = None
    regex: Annotated[str, Meta(min_length=1)] | None = None
    choice: Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1, max_length=1000)] | None = None
    grammar: Annotated[str, Meta(min_length=1)] | None = None
    json_object: bool | None = None


FunctionName = Annotated[
    str, Meta(pattern=r"^[\w.:/@-]{1,256}$", description="1 to 256 letters, digits and characters of ._:/@-")
]
"""More lenient than any provider; what a tier's server does not take is sent to it under another name."""


class NamedFunction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A function or a custom tool by its name, as in `tool_choice`."""

    name: str


class NamedTool(TypedTool, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool in `tool_choice`: of the type `function` or `custom`, by its name in the field of that name."""

    type: str
    function: NamedFunction | None = None
    custom: NamedFunction | None = None

    @property
    def name(self) -> str | None:
        """Its name, if the field of its type has one."""
        named = {"function": self.function, "custom": self.custom}.get(self.type)
        return None if named is None else named.name


class FunctionDefinition(NamedFunction, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A function that the model may call."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """A JSON schema of an object."""
    strict: bool | None = None


class CustomGrammar(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A grammar of the input of a custom tool."""

    definition: str
    syntax: Literal["lark", "regex"]


class CustomFormat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The input of a custom tool: `text`, or text that follows a `grammar`."""

    type: Literal["text", "grammar"]
    grammar: CustomGrammar | None = None


class CustomTool(NamedFunction, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool that takes text."""

    name: FunctionName
    description: str | None = None
    format: CustomFormat | None = None


class ToolDefinition(NamedTool, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool that the caller runs: a `function`, or a `custom` one, which takes text."""

    function: FunctionDefinition | None = None
    custom: CustomTool | None = None
    cache_control: dict[str, Any] | None = None
    """A mark that tiers of Anthropic get."""


class AllowedTools(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`tool_choice.allowed_tools`: which of the tools may (`auto`) or must (`required`) be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Meta(min_length=1, max_length=MAX_TOOLS)]


class NamedToolChoice(NamedTool, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`tool_choice` as an object: call this function or custom tool, or only `allowed_tools`."""

    allowed_tools: AllowedTools | None = None


class Sampling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields that chat and text completions share."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Choices | None = None
    max_tokens: NaturalInt | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[str, Bias] | None = None
    stop: StopString | StopList | None = None
    seed: Seed | None = None
    user: Annotated[str, Meta(max_length=512)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=64)] | None = None
    include_stop_str_in_output: bool | None = None
    priority: Annotated[int, Meta(ge=0, le=2)] | None = None
    structured_outputs: StructuredOutputs | None = None


class ChatRequest(Sampling, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/chat/completions`."""

    messages: list[Message]
    max_completion_tokens: PositiveInt | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    service_tier: str | None = None
    metadata: Metadata | None = None
    store: bool | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    modalities: list[Literal["text", "image", "audio"]] | None = None
    tools: Annotated[list[ToolDefinition], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: str | NamedToolChoice | None = None
    functions: Annotated[list[FunctionDefinition], Meta(max_length=MAX_TOOLS)] | None = None
    """Tools as the API had them in its first years; answers then have the same form."""
    function_call: str | NamedFunction | None = None
    """The choice among `functions`."""
    audio: dict[str, Any] | None = None
    prediction: Unsupported = None
    reasoning_effort: ReasoningEffort | None = None
    thinking_token_budget: NaturalInt | None = None
    chat_template_kwargs: TemplateVariables | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class CompletionRequest(Sampling, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/completions`."""

    prompt: str | list[str | int | list[TokenId]]
    """Text, texts, token ids of the named model, or lists of those."""
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: Choices | None = None
