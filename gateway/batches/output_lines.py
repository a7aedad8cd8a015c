"""Lines of a batch's output and error files, in OpenAI's form."""

import msgspec

from gateway.base.errors import ErrorEnvelope
from gateway.base.requests.identity import new_request_id


class LineResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The response of the endpoint; `body` is its JSON."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class LineError(msgspec.Struct, frozen=True, kw_only=True):
    """Why there is no response."""

    code: str
    message: str


class OutputLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of either file."""

    id: str
    custom_id: str
    response: LineResponse | None
    error: LineError | None


EXPIRED = LineError(
    code="batch_expired",
    message="This request could not be executed before the completion window expired.",
)
CANCELLED = LineError(code="batch_cancelled", message="The batch was cancelled before this request was executed.")
EXHAUSTED = LineError(
    code="attempts_exhausted",
    message="Every worker that started this request ended before it was answered; it is not retried.",
)

PROCESS_DIED = LineError(
    code="process_died",
    message="The process that answered this request ended twice before it had an answer; it is not retried.",
)


def response_line(custom_id: str, status: int, request_id: str, body: bytes) -> str:
    """A line with a response."""
    response = LineResponse(status_code=status, request_id=request_id, body=msgspec.Raw(body))
    return _written(OutputLine(id=_new_id(), custom_id=custom_id, response=response, error=None))


def refusal_line(custom_id: str, status: int, request_id: str, envelope: ErrorEnvelope) -> str:
    """A line whose response is an error."""
    return response_line(custom_id, status, request_id, msgspec.json.encode(envelope))


def error_line(custom_id: str, error: LineError) -> str:
    """A line without a response."""
    return _written(OutputLine(id=_new_id(), custom_id=custom_id, response=None, error=error))


def _new_id() -> str:
    return new_request_id("batch_req")


def _written(line: OutputLine) -> str:
    return msgspec.json.encode(line).decode()
