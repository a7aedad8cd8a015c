"""How Anthropic's and Google's APIs say to a caller that a request failed."""

import re
from typing import Any

import msgspec


class TooLong(msgspec.Struct, frozen=True, kw_only=True):
    """Why a prompt is too long. Counts are tokens, 0 for one that is not known."""

    reason: str
    """Who says so, and how."""
    prompt_tokens: int
    answer_tokens: int
    max_context: int
    """The most of both."""


class FailedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong, whatever the dialect."""

    status: int
    """Of HTTP, as OpenAI's API has it."""
    message: str
    param: str | None
    """The path of the field that is wrong, in the caller's words."""
    code: str | None
    retry_after: str
    """Whole seconds."""
    too_long: TooLong | None = None


# Anthropic's own status; its clients retry after it, and raise an error of its own type.
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
_PLACE = re.compile(r"\[(\d+)\]")


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


def messages_error(failure: FailedRequest, request_id: str) -> MessagesErrorEnvelope:
    """Return the envelope of a failure in Anthropic's form."""
    kind = _TYPES.get(failure.status)
    if kind is None:
        kind = "api_error" if failure.status >= 500 else "invalid_request_error"
    message = failure.message
    if failure.too_long is not None:
        message = _anthropics_words(failure.too_long)
    elif failure.param is not None:
        param = _PLACE.sub(r".\1", failure.param)
        message = message.replace(failure.param, param, 1)
        message = message if param in message else f"{param}: {message}"
    body = MessagesErrorBody(kind, message, _DETAILS.get(failure.code))
    return MessagesErrorEnvelope(error=body, request_id=request_id)


def _anthropics_words(limits: TooLong) -> str:
    """Anthropic's words, which its clients look for: they make the conversation shorter, or the answer."""
    prompt, answer, most = limits.prompt_tokens, limits.answer_tokens, limits.max_context
    if 0 < most < prompt:
        message = f"prompt is too long: {prompt} tokens > {most} maximum"
    elif prompt and answer and most:
        message = (
            "prompt is too long for its answer: input length and `max_tokens` exceed context limit: "
            f"{prompt} + {answer} > {most}, decrease input length or `max_tokens` and try again"
        )
    else:
        message = "prompt is too long"
    return f"{message} ({limits.reason})"


# https://cloud.google.com/apis/design/errors#handling_errors
_STATUSES = {
    400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 409: "ABORTED",
    429: "RESOURCE_EXHAUSTED", 499: "CANCELLED", 501: "UNIMPLEMENTED", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED",
}  # fmt: skip


class GeminiErrorBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What went wrong."""

    code: int
    message: str
    status: str
    details: list[dict[str, Any]] = []
    """The field that is wrong, or when to try again."""


class GeminiErrorEnvelope(msgspec.Struct, frozen=True):
    """The body of every answer of this API that is not 2xx, and of the last event of a stream that broke."""

    error: GeminiErrorBody


def gemini_error(failure: FailedRequest) -> GeminiErrorBody:
    """Return the error of a failure in Google's form."""
    status, message, told = failure.status, failure.message, failure.too_long
    if told is not None and told.prompt_tokens and told.max_context:
        # Google's words, by which its clients make the conversation shorter.
        message = (
            f"The input token count ({told.prompt_tokens}) exceeds the maximum number of tokens allowed "
            f"({told.max_context}). ({told.reason})"
        )
    details: list[dict[str, Any]] = []
    if failure.param is not None and status == 400:
        violation = {"field": failure.param, "description": message}
        details.append({"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": [violation]})
    if status in (429, 503):
        wait = f"{failure.retry_after}s"
        details.append({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": wait})
    kind = _STATUSES.get(status, "INTERNAL" if status >= 500 else "INVALID_ARGUMENT")
    return GeminiErrorBody(code=status, message=message, status=kind, details=details)
