"""A batch: many requests of one caller to one endpoint, from its input file to its output files.

The input is lines of JSON, read as a stream; all are checked before any is answered. Output and error files are in
OpenAI's form. The live knobs are those of all processes of a data folder.
"""

from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.base.errors import ErrorEnvelope
from gateway.base.identity import new_request_id

Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
UNDER_WAY: tuple[Status, ...] = ("validating", "in_progress", "finalizing", "cancelling")
Ending = Literal["completed", "expired", "cancelled"]


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch's row. Times are UTC epoch seconds."""

    batch_id: str
    key_id: str | None
    tenant: str
    endpoint: str
    input_file_id: str
    completion_window: str
    metadata: dict[str, str] | None
    traceparent: str | None
    output_seconds: float | None
    """Lifetime of its output files."""
    status: Status
    errors: list[dict[str, Any]] | None
    """Errors of its input, as plain data."""
    output_file_id: str | None
    error_file_id: str | None
    total: int
    completed: int | None
    """Number of lines; None until it has ended."""
    failed: int | None
    """Number of lines; None until it has ended."""
    created_at: float
    expires_at: float
    in_progress_at: float | None
    finalizing_at: float | None
    completed_at: float | None
    failed_at: float | None
    expired_at: float | None
    cancelling_at: float | None
    cancelled_at: float | None


class Counts(msgspec.Struct, frozen=True):
    """Lines of a batch: all, those answered, and those whose answer is an error."""

    total: int
    completed: int
    failed: int


class NotCancellableError(ValueError):
    """The batch has ended, or is about to end."""

    def __init__(self, status: Status) -> None:
        super().__init__(f"the batch is {status}")
        self.status = status


class TooManyBatchesError(ValueError):
    """The tenant has `most` open batches."""

    def __init__(self, most: int) -> None:
        super().__init__(f"at most {most} batches may be open at a time")
        self.most = most


class NewBatch(msgspec.Struct, frozen=True, kw_only=True):
    """What the caller decides."""

    endpoint: str
    input_file_id: str
    completion_window: str
    seconds: float
    """The completion window."""
    metadata: dict[str, str] | None = None
    traceparent: str | None = None
    output_seconds: float | None = None


MOST_LINES = 50_000
MOST_ERRORS = 100
CUSTOM_ID_LENGTH = 512
METHOD = "POST"


class InputError(msgspec.Struct, frozen=True, kw_only=True):
    """An error in a line (counted from 1), or in the whole file (None)."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class InputRefusedError(ValueError):
    """The input is rejected; `errors` say why."""

    def __init__(self, errors: list[InputError]) -> None:
        super().__init__(f"{len(errors)} errors")
        self.errors = errors


class InputLine(msgspec.Struct, frozen=True):
    """A checked line: its number, and the JSON object for the endpoint."""

    number: int
    custom_id: str
    body: str


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


_decoder = msgspec.json.Decoder(_Line)


async def lines_of(content: AsyncIterator[bytes], most: int) -> AsyncIterator[tuple[int, bytes | None]]:
    """Yield non-blank lines with their numbers; None for a line of more than `most` bytes, never held whole."""
    number, held, too_long = 1, bytearray(), False
    async for chunk in content:
        start = 0
        while True:
            end = chunk.find(b"\n", start)
            piece = chunk[start:] if end < 0 else chunk[start:end]
            too_long = too_long or len(held) + len(piece) > most
            if too_long:
                held.clear()
            else:
                held += piece
            if end < 0:
                break
            if too_long or held.strip():
                yield number, None if too_long else bytes(held)
            held.clear()
            number, too_long, start = number + 1, False, end + 1
    if too_long or held.strip():
        yield number, None if too_long else bytes(held)


async def checked_lines(content: AsyncIterator[bytes], endpoint: str, most: int) -> AsyncIterator[InputLine]:
    """Yield the requests in `content`, for `endpoint`, in lines of at most `most` bytes.

    Raises `InputRefusedError` at the end, with the first errors; after the first error no more lines are yielded.
    """
    errors: list[InputError] = []
    seen: dict[str, int] = {}
    async for number, raw in lines_of(content, most):
        if len(seen) + len(errors) >= MOST_LINES:
            message = f"The file has more than {MOST_LINES} requests; make several batches of them."
            errors.append(InputError(code="too_many_tasks", message=message))
            break
        checked = _checked(number, raw, endpoint, most, seen)
        if isinstance(checked, InputError):
            errors.append(checked)
            if len(errors) >= MOST_ERRORS:
                break
        elif not errors:
            yield checked
    if not seen and not errors:
        errors.append(InputError(code="empty_file", message="The input file has no requests."))
    if errors:
        raise InputRefusedError(errors)


def _checked(number: int, raw: bytes | None, endpoint: str, most: int, seen: dict[str, int]) -> InputLine | InputError:
    if raw is None:
        return InputError(code="line_too_long", message=f"This line has more than {most} bytes.", line=number)
    try:
        line = _decoder.decode(raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw)
        body = bytes(line.body).decode()
    except msgspec.ValidationError as error:
        return _misshapen(number, str(error))
    except UnicodeDecodeError:
        return InputError(code="invalid_utf8", message="This line is not valid UTF-8.", line=number)
    except (msgspec.DecodeError, RecursionError):
        message = "This line is not parseable as valid JSON."
        return InputError(code="invalid_json_line", message=message, line=number)
    wrong = _wrong(line, body, endpoint)
    if wrong is not None:
        param, code, message = wrong
        return InputError(code=code, message=message, line=number, param=param)
    if (first := seen.setdefault(line.custom_id, number)) != number:
        message = f"Line {first} has the same custom_id; each line needs a unique one."
        return InputError(code="duplicate_custom_id", message=message, line=number, param="custom_id")
    return InputLine(number, line.custom_id, body)


def _wrong(line: _Line, body: str, endpoint: str) -> tuple[str, str, str] | None:
    """Return parameter, code and message of what decoding cannot check."""
    if not 1 <= len(line.custom_id) <= CUSTOM_ID_LENGTH or "\0" in line.custom_id:
        return "custom_id", "invalid_custom_id", f"custom_id must be a string of 1 to {CUSTOM_ID_LENGTH} characters."
    if line.method.upper() != METHOD:
        return "method", "invalid_method", f"method must be {METHOD}."
    if line.url != endpoint:
        return "url", "invalid_url", f"url must be the batch's endpoint, {endpoint}."
    if not body.lstrip().startswith("{"):
        return "body", "invalid_body", "body must be a JSON object."
    return None


def _misshapen(number: int, error: str) -> InputError:
    """Return msgspec's error, which names a field and never a value."""
    for name in _Line.__struct_fields__:
        if f"`{name}`" in error or f"$.{name}`" in error:
            missing = "missing" in error
            code = "missing_required_parameter" if missing else "invalid_type"
            said = f"You must provide {name}." if missing else f"{name} has a wrong type."
            return InputError(code=code, message=said, line=number, param=name)
    return InputError(code="invalid_json_line", message="This line is not a JSON object.", line=number)


class LineResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The response of the endpoint."""

    status_code: int
    request_id: str
    body: msgspec.Raw
    """Its JSON."""


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


class BatchKnobs(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator may change while lines are answered; bounds are enforced and descriptions shown."""

    concurrency: Annotated[
        Annotated[int, Meta(ge=0, le=4096)] | None,
        Meta(description="How many lines a process answers at once. 0: it starts none. null: AIO_BATCH_CONCURRENCY."),
    ] = None
    most_attempts: Annotated[
        int, Meta(ge=1, le=100, description="How often AIO attempts a line before the failure becomes its answer.")
    ] = 8
    backoff_seconds: Annotated[
        float,
        Meta(
            ge=0.01, le=60, description="The delay before a retry. It doubles each time, up to 300 s, and has jitter."
        ),
    ] = 1.0
