"""The OpenAI error envelope: one exception that carries it, and handlers that apply it to every other failure."""

import http
import logging
import math
import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from litestar.connection import ASGIConnection, Request
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.response import Response

from gateway.base.identity import caller_request_id, new_request_id
from tiers.conversation import FieldNames
from tiers.dialects.caller_errors import FailedRequest, TooLong
from tiers.errors import (
    CONTEXT_CODE,
    CallerCredentialError,
    TierAnswerError,
    TierAnswerTooLongError,
    TierContextError,
    TierError,
    TierRequestError,
    TierUnavailableError,
)

log = logging.getLogger(__name__)

Failure = TypeVar("Failure", bound=BaseException)

# As OpenAI has it: an error that the caller can fix, including an unknown model or key, is an invalid request.
TYPE_OF_STATUS = {429: "rate_limit_error", 500: "server_error", 502: "server_error", 503: "server_error"}
CODE_OF_STATUS = {
    401: "invalid_api_key",
    404: "not_found",
    405: "method_not_allowed",
    413: "request_too_large",
    415: "unsupported_media_type",
}
# nginx's "client closed request": the client is gone, only the record keeps it.
CLIENT_CLOSED_REQUEST = 499
# litestar's message, as a server failure, for a client that disconnects in the middle of its body.
_LITESTAR_DISCONNECT = "client disconnected prematurely"
_RECORDED, _MOST_CAUSES = "is_recorded", 8
# Seconds: a predicted queue time may be long and wrong, and callers poll.
MAX_RETRY_AFTER = 60


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that OpenAI clients read."""

    message: str
    type: str
    param: str | None = None
    """The offending field of the request."""
    code: str | None = None


class ErrorEnvelope(msgspec.Struct, frozen=True):
    """The body of every answer that is not 2xx, and of error events in streams."""

    error: ErrorBody


class ApiError(Exception):
    """A failure with its HTTP status, envelope and further headers; a 503 sets `retry-after` to 1 to 60 seconds.
    `limit`: which limit was reached, and whose, in counts of refused requests."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        type_: str | None = None,
        retry_after_seconds: float = 1.0,
        headers: Mapping[str, str] | None = None,
        limit: str = "",
    ) -> None:
        super().__init__(message)
        self.status, self.limit = status, limit
        self.headers = dict(headers or {})
        self.retry_after = str(max(1, min(math.ceil(retry_after_seconds), MAX_RETRY_AFTER)))
        self.body = ErrorBody(
            message=message,
            type=type_ or TYPE_OF_STATUS.get(status, "invalid_request_error"),
            param=param,
            code=code or CODE_OF_STATUS.get(status),
        )

    def failure(self) -> FailedRequest:
        """Return what every dialect says of it in its own form."""
        wait = self.headers.get("retry-after", self.retry_after)
        body = self.body
        return FailedRequest(
            status=self.status, message=body.message, param=body.param, code=body.code, retry_after=wait
        )

    def located(self, names: FieldNames) -> "ApiError":
        """Return the failure with the path of its field in the caller's dialect, also in its words."""
        param = self.body.param
        if param is None or (path := names.path(param)) == param:
            return self
        body, field = self.body, re.split(r"[.\[]", param)[0]
        message = _renamed(body.message, param, path)
        if message == body.message:
            message = _renamed(message, field, names.path(field))
        located = ApiError(self.status, message, param=path, code=body.code, type_=body.type, headers=self.headers)
        located.retry_after, located.limit = self.retry_after, self.limit
        return located


class ContextLengthError(ApiError):
    """400 for a prompt that is too long, in OpenAI's words, by which its clients make it shorter. The Messages API has
    words of its own for it.

    `prompt_tokens`, `answer_tokens`: of the request; 0 if unknown. `max_context`: the most of both, in tokens; 0 if
    unknown. `reason`: who says so, and how.
    """

    def __init__(
        self, reason: str, param: str | None, *, prompt_tokens: int = 0, answer_tokens: int = 0, max_context: int = 0
    ) -> None:
        told = f"This model's maximum context length is {max_context} tokens. However, "
        if 0 < max_context < prompt_tokens:
            said = f"{told}your messages resulted in {prompt_tokens} tokens. Please reduce the length of the messages."
        elif prompt_tokens and answer_tokens and max_context:
            both = f"({prompt_tokens} in the messages, {answer_tokens} in the completion)"
            said = (
                f"{told}you requested {prompt_tokens + answer_tokens} tokens {both}. Please reduce the length of the "
                "messages or completion."
            )
        else:
            said = "Your input exceeds the context window of this model. Please adjust your input and try again."
        super().__init__(400, f"{said} ({reason})", param=param, code=CONTEXT_CODE)
        self.reason = reason
        self.prompt_tokens, self.answer_tokens, self.max_context = prompt_tokens, answer_tokens, max_context

    def failure(self) -> FailedRequest:
        """See `ApiError.failure`."""
        told = TooLong(
            reason=self.reason,
            prompt_tokens=self.prompt_tokens,
            answer_tokens=self.answer_tokens,
            max_context=self.max_context,
        )
        return msgspec.structs.replace(super().failure(), too_long=told)

    def located(self, names: FieldNames) -> "ContextLengthError":
        """See `ApiError.located`: the words name no field."""
        return ContextLengthError(
            self.reason,
            None if self.body.param is None else names.path(self.body.param),
            prompt_tokens=self.prompt_tokens,
            answer_tokens=self.answer_tokens,
            max_context=self.max_context,
        )


def _renamed(message: str, param: str, path: str) -> str:
    """`message` with `path` where it first names the field `param` by itself."""
    return re.sub(rf"(?<![\w.]){re.escape(param)}(?!\w)", lambda _: path, message, count=1)


class ClientGoneError(ApiError):
    """The caller disconnected before there was an answer."""

    def __init__(self) -> None:
        super().__init__(CLIENT_CLOSED_REQUEST, "The client closed the connection.", code="client_closed_request")


def shutting_down(message: str = "The server is shutting down. Send the request elsewhere.") -> ApiError:
    """Return the error of a request that the end of the process refuses or interrupts."""
    return ApiError(503, message, code="shutting_down")


def bad_request(message: str, param: str | None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def located(error: Failure, names: FieldNames) -> "Failure | ApiError":
    """Return a refusal with the path of its field in the caller's dialect, whose names are `names`; any other failure
    as it is."""
    if not isinstance(error, ApiError | TierRequestError) or names == FieldNames():
        return error
    return as_api_error(error).located(names)


def mark_recorded(error: Exception) -> None:
    """Say that the record of an answer tells of this failure, so that it is not counted as a refused request too."""
    error.__dict__[_RECORDED] = True


def is_recorded(error: BaseException | None) -> bool:
    """Return whether the failure, or one that it was raised for, was marked with `mark_recorded`."""
    for _ in range(_MOST_CAUSES):
        if error is None:
            return False
        if _RECORDED in error.__dict__:
            return True
        error = error.__cause__ or error.__context__
    return False


def as_api_error(error: BaseException) -> ApiError:
    """Convert any failure to an `ApiError`; details stay in the log, only our own wording leaves the process."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, TierError):
        return _of_tier_error(error)
    if isinstance(error, HTTPException):
        return _of_http_exception(error)
    return _failed()


def _of_tier_error(error: TierError) -> ApiError:
    tried = f" {error.chain}." if error.chain else ""
    if isinstance(error, CallerCredentialError):
        wait = error.retry_after_seconds
        headers = None if wait is None else {"retry-after": str(max(1, math.ceil(wait)))}
        return ApiError(error.status, f"{error}{tried}", param=error.param, code=error.code, headers=headers)
    if isinstance(error, TierContextError):
        return ContextLengthError(
            f"{error}{tried}",
            error.param,
            prompt_tokens=error.prompt_tokens,
            answer_tokens=error.answer_tokens,
            max_context=error.max_context,
        )
    if isinstance(error, TierRequestError):
        return ApiError(400, f"{error}{tried}", param=error.param, code=error.code)
    if isinstance(error, TierUnavailableError):
        return ApiError(
            503,
            f"No tier could take the request: {error}. Try again later.{tried}",
            code="tier_unavailable",
            retry_after_seconds=error.retry_after_seconds,
        )
    if isinstance(error, TierAnswerTooLongError):
        return ApiError(502, f"No tier could answer: {error}{tried}", code="answer_too_long")
    if isinstance(error, TierAnswerError):
        return ApiError(502, f"No tier could answer: {error}{tried}", code="tier_failed")
    return _failed(tried)


def _failed(more: str = "") -> ApiError:
    return ApiError(500, f"The server failed while answering. The failure is logged under the request's id.{more}")


def _of_http_exception(error: HTTPException) -> ApiError:
    status = error.status_code
    if status == 413:
        return ApiError(413, "The request body is larger than the server accepts (AIO_BODY_LIMIT).", param=None)
    if status == 500 and error.detail == _LITESTAR_DISCONNECT:
        return ClientGoneError()
    return ApiError(status, error.detail or http.HTTPStatus(status).phrase)


def envelope_response(request: Request[Any, Any, State], error: Exception) -> Response[ErrorEnvelope]:
    """Litestar's exception handler for everything."""
    failure = as_api_error(error)
    request_id = request_id_of(request)
    if failure.status >= 500:
        from gateway.base.logs import with_first_cause

        # An expected failure needs no traceback; a bug does.
        bug = None if isinstance(error, (ApiError, TierError, HTTPException)) else error
        # A 503 is one of many: `RefusedRequests` counts them, and what is away has a line of its own.
        say = log.debug if failure is error and failure.status == 503 else log.error
        say("request %s: %d, %s", request_id, failure.status, with_first_cause(error), exc_info=bug)
    headers = {"x-request-id": request_id} | failure.headers
    if failure.status == 401:
        headers["www-authenticate"] = "Bearer"
    if failure.status == 503:
        headers["retry-after"] = failure.retry_after
    if isinstance(error, HTTPException) and error.headers:
        headers |= {name.lower(): value for name, value in error.headers.items()}
    return Response(
        ErrorEnvelope(failure.body), status_code=failure.status, headers=headers, media_type="application/json"
    )


def request_id_of(request: ASGIConnection[Any, Any, Any, State]) -> str:
    """Return the id of a failed request in headers and logs: the caller's own, else the one from its guard."""
    request_id: str | None = caller_request_id(request.headers.get("x-request-id")) or request.state.get("request_id")
    return request_id or new_request_id("req")
