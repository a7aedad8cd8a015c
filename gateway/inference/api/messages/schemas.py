"""What the description of `POST /v1/messages` and `/v1/messages/count_tokens` shows, and their error envelope, for
everything that goes wrong on a path of the Messages API, guards and limits too."""

from typing import Annotated, Any, Literal

import msgspec
from litestar.connection import Request
from litestar.datastructures import State
from litestar.response import Response
from msgspec import Meta

from gateway.base.errors import as_api_error, envelope_response, request_id_of
from gateway.edge.openapi import ERRORS, promised
from gateway.inference.api.answers import Routed
from tiers.dialects.caller_errors import OVERLOADED, MessagesErrorEnvelope, messages_error
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
STATUSES = {(OVERLOADED if status == 503 else status): text for status, text in ERRORS.items()}

_encode = msgspec.json.Encoder().encode


def messages_failure(request: Request[Any, Any, State], error: Exception) -> Response[Any]:
    """The response for any failure: logged and with the headers of `envelope_response`."""
    response: Response[Any] = envelope_response(request, error)
    status, request_id = as_api_error(error).status, request_id_of(request)
    response.content = envelope_of(error, request_id)
    response.status_code = OVERLOADED if status == 503 else status
    response.set_header("request-id", request_id)
    return response


def envelope_of(error: Exception, request_id: str) -> MessagesErrorEnvelope:
    """The envelope of a failure."""
    return messages_error(as_api_error(error).failure(), request_id)


def error_event(error: Exception, request_id: str) -> bytes:
    """The last event of a stream that broke."""
    return b"event: error\ndata: " + _encode(envelope_of(error, request_id)) + b"\n\n"


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


_COUNTS = tuple(name for name in MessageUsage.__struct_fields__ if name.endswith("_tokens"))
ShownMessage = promised(
    "MessageBody",
    MessageBody,
    id=str,
    model=str,
    content=list[Block],
    stop_reason=str | None,
    stop_sequence=str | None,
    usage=promised("MessageUsage", MessageUsage, **dict.fromkeys(_COUNTS, int)),
    x_aio=Routed,
)
