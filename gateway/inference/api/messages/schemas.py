"""What the description of `POST /v1/messages` and `/v1/messages/count_tokens` shows, and their error envelope, for
everything that goes wrong on a path of the Messages API, guards and limits too."""

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
from tiers.dialects.chat_schemas import MAX_TOOLS
from tiers.dialects.messages import (
    Block,
    CountTokensRequest,
    MessageBody,
    MessagesRequest,
    MessageUsage,
    Text,
    ToolEntry,
)

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
    """What went wrong; the message names the field."""

    type: str
    message: str
    details: dict[str, str] | None = None
    """What tells a client what to do instead."""


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


_COUNTS = tuple(name for name in MessageUsage.__struct_fields__ if name.endswith("_tokens"))
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
