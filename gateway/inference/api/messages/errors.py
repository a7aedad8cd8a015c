"""Anthropic's error envelope, for everything that goes wrong on a path of the Messages API, guards and limits too."""

import re
from typing import Any

import msgspec
from litestar.connection import Request
from litestar.datastructures import State
from litestar.response import Response

from gateway.base.errors import ApiError, ContextLengthError, as_api_error, envelope_response, request_id_of
from gateway.edge.openapi import ERRORS

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
STATUSES = {(OVERLOADED if status == 503 else status): text for status, text in ERRORS.items()}

_PLACE = re.compile(r"\[(\d+)\]")
_encode = msgspec.json.Encoder().encode


class MessagesErrorBody(msgspec.Struct, frozen=True):
    """What went wrong; the message names the field."""

    type: str
    message: str


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
        message = message.replace(body.param, param)
        message = message if param in message else f"{param}: {message}"
    return MessagesErrorEnvelope(error=MessagesErrorBody(kind, message), request_id=request_id)


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
