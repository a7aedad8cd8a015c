"""Bodies of `POST /v1/messages` and `/v1/messages/count_tokens`, field by field as Anthropic documents them, and its
error envelope, for everything that goes wrong on a path of the Messages API, guards and limits too.

Types and ranges are checked while decoding; `conversation` and `as_chat` check what depends on several. What is
typed `Raw` is decoded there, and goes on as it is to a server with this API; so does what is typed `Any`.
"""

import re
from typing import Annotated, Any, Literal

import msgspec
from litestar.connection import Request
from litestar.datastructures import State
from litestar.response import Response
from msgspec import Meta

from gateway.base.errors import ApiError, ContextLengthError, as_api_error, envelope_response, request_id_of
from gateway.edge.openapi import ERRORS
from gateway.inference.api.answers import Routed
from inference_core.io.files import prepare_types
from tiers.dialects.chat_schemas import MAX_TOOLS, FunctionName, NaturalInt, StopString, TopP
from tiers.dialects.messages import Block, MessageBody, MessageUsage, ResultBlock, Text

PATH = "/v1/messages"
# Anthropic's own; its clients retry after it, and raise an error of its own type.
OVERLOADED = 529
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
# Anthropic's clients send the whole conversation after it.
_DETAILS: dict[str | None, dict[str, str]] = {
    "thread_unsupported_request": {"error_code": "thread_unsupported_request"}
}
STATUSES = {(OVERLOADED if status == 503 else status): text for status, text in ERRORS.items()}

_PLACE = re.compile(r"\[(\d+)\]")
_encode = msgspec.json.Encoder().encode


class MessagesErrorBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """What went wrong; the message names the field. `details`: by what a client knows what to do instead."""

    type: str
    message: str
    details: dict[str, str] | None = None


class MessagesErrorEnvelope(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every answer of this API that is not 2xx, and of error events in its streams."""

    type: str = "error"
    error: MessagesErrorBody
    request_id: str


def messages_failure(request: Request[Any, Any, State], error: Exception) -> Response[Any]:
    """The response for any failure: logged and with the headers of `envelope_response`."""
    response: Response[Any] = envelope_response(request, error)
    failure, request_id = as_api_error(error), request_id_of(request)
    response.content = envelope_of(failure, request_id)
    response.status_code = OVERLOADED if failure.status == 503 else failure.status
    response.set_header("request-id", request_id)
    return response


def envelope_of(failure: ApiError, request_id: str) -> MessagesErrorEnvelope:
    """The envelope of a failure."""
    body, kind = failure.body, _TYPES.get(failure.status)
    if kind is None:
        kind = "api_error" if failure.status >= 500 else "invalid_request_error"
    message = body.message
    if isinstance(failure, ContextLengthError):
        message = _too_long(failure)
    elif body.param is not None:
        param = dotted(body.param)
        message = message.replace(body.param, param, 1)
        message = message if param in message else f"{param}: {message}"
    return MessagesErrorEnvelope(error=MessagesErrorBody(kind, message, _DETAILS.get(body.code)), request_id=request_id)


def _too_long(failure: ContextLengthError) -> str:
    """Anthropic's words for it, which its clients look for: they make the conversation shorter, or the answer."""
    prompt, answer, most = failure.prompt_tokens, failure.answer_tokens, failure.max_context
    if 0 < most < prompt:
        said = f"prompt is too long: {prompt} tokens > {most} maximum"
    elif prompt and answer and most:
        said = (
            "prompt is too long for its answer: input length and `max_tokens` exceed context limit: "
            f"{prompt} + {answer} > {most}, decrease input length or `max_tokens` and try again"
        )
    else:
        said = "prompt is too long"
    return f"{said} ({failure.reason})"


def dotted(path: str) -> str:
    """A path as this API writes it: `messages.0.content` for `messages[0].content`."""
    return _PLACE.sub(r".\1", path)


def error_event(error: Exception, request_id: str) -> bytes:
    """The last event of a stream that broke."""
    return b"event: error\ndata: " + _encode(envelope_of(as_api_error(error), request_id)) + b"\n\n"


def is_messages_path(path: str) -> bool:
    """Whether failures on this path use Anthropic's envelope."""
    return path == PATH or path.startswith(f"{PATH}/")


MAX_STOP_SEQUENCES = 64

# Anthropic's own bounds.
LEAST_THINKING_TOKENS = 1024


class Turn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One message: a text, or blocks (`Block`). Of a system's alone: `output_config`, how a tier of Anthropic goes on,
    and `clear_at`, with which it may hold until the user speaks."""

    role: Literal["user", "assistant", "system"]
    content: str | list[msgspec.Raw] | None = None
    output_config: Any = None
    clear_at: str | None = None

    @property
    def has_controls(self) -> bool:
        """Whether it says more than its content."""
        return self.output_config is not None or self.clear_at is not None


class ToolEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A tool. Those with a `type` but `custom` are Anthropic's own: only tiers of Anthropic have them. Other fields,
    too, reach these alone."""

    type: str | None = None
    name: FunctionName = ""
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


prepare_types(Block, ResultBlock, Text, ToolEntry)


class ToolChoice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Whether tools may be, must be or are not called; `tool`: the one called `name`."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Whether the answer shows its thoughts, and how many tokens they may have; `adaptive`: as the tier thinks usually.
    `display`: `omitted` leaves out their text. `block_binding` and other displays are for Anthropic."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Meta(ge=LEAST_THINKING_TOKENS, le=2**31 - 1)] | None = None
    display: str | None = None
    block_binding: Any = None


class OutputFormat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The JSON schema that the answer obeys."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How much to think, and the format of the answer. `task_budget`: for Anthropic."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None
    task_budget: Any = None


class RequestMetadata(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`user_id`: an opaque name of the user, recorded as a tag; by it experiments are split."""

    user_id: Annotated[str, Meta(max_length=512)] | None = None


class CountTokensRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/messages/count_tokens`. `output_format`: an earlier name of `output_config.format`.

    `tools` are `ToolEntry`s, and blocks of `system` are `Text`s. `cache_control`, `context_management`, `mcp_servers`,
    `container` and what is like them reach tiers of Anthropic as they are. `thread` is refused.
    """

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    messages: list[Turn]
    system: str | list[msgspec.Raw] | None = None
    tools: Annotated[list[msgspec.Raw], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    cache_control: Any = None
    context_management: Any = None
    mcp_servers: Any = None
    thread: Any = None


class MessagesRequest(CountTokensRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/messages`. `max_tokens` 0: Anthropic fills its cache and answers nothing; others answer one token."""

    max_tokens: NaturalInt
    stream: bool | None = None
    stop_sequences: Annotated[list[StopString], Meta(max_length=MAX_STOP_SEQUENCES)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: TopP | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    metadata: RequestMetadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    container: Any = None
    inference_geo: Any = None
    speed: Any = None


class ShownTurn(msgspec.Struct, frozen=True, kw_only=True):
    """One message: a text, or blocks."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class ShownCountTokens(CountTokensRequest, frozen=True, kw_only=True):
    """`CountTokensRequest` as the API's description shows it: what is decoded later has its types."""

    messages: list[ShownTurn]  # type: ignore[assignment]
    system: str | list[Text] | None = None  # type: ignore[assignment]
    tools: Annotated[list[ToolEntry], Meta(max_length=MAX_TOOLS)] | None = None  # type: ignore[assignment]


class ShownMessages(MessagesRequest, frozen=True, kw_only=True):
    """`MessagesRequest` in the same way."""

    messages: list[ShownTurn]  # type: ignore[assignment]
    system: str | list[Text] | None = None  # type: ignore[assignment]
    tools: Annotated[list[ToolEntry], Meta(max_length=MAX_TOOLS)] | None = None  # type: ignore[assignment]


def _promised(form: type[msgspec.Struct], **fields: Any) -> Any:
    """Return `form` as the API's description shows it: `fields`, by their types, are always there."""
    namespace = {"__doc__": form.__doc__}
    return msgspec.defstruct(form.__name__, fields.items(), bases=(form,), namespace=namespace, kw_only=True)


_COUNTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
ShownMessage = _promised(
    MessageBody,
    id=str,
    model=str,
    content=list[Block],
    stop_reason=str | None,
    stop_sequence=str | None,
    usage=_promised(MessageUsage, **dict.fromkeys(_COUNTS, int)),
    x_aio=Routed,
)
