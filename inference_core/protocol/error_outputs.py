"""Error outputs of requests that a core refuses, and the errors that clients raise for them."""

from inference_core.errors import CoreError, InvalidEndError, InvalidRequestError, QueueFullError
from inference_core.protocol.outputs import ErrorKind, SequenceOutput


def refusal(request_id: str, error: CoreError) -> SequenceOutput:
    """Return the only output of a refused request."""
    output = SequenceOutput(request_id=request_id, index=0, token_ids=[], finish_reason="error")
    blame(output, error)
    return output


def blame(output: SequenceOutput, error: CoreError) -> None:
    """Set `error` as the reason of an output that ends a request."""
    kind: ErrorKind = "internal"
    if isinstance(error, InvalidEndError):
        kind = "invalid_end"
    elif isinstance(error, InvalidRequestError):
        kind = "invalid"
    elif isinstance(error, QueueFullError):
        kind = "overloaded"
    output.error, output.error_param, output.error_kind = str(error), getattr(error, "param", None), kind


def failure(output: SequenceOutput) -> CoreError:
    """Return the error that an output reports, for a caller that expected a result."""
    message = output.error or f"the core ended {output.request_id}: {output.finish_reason}"
    if output.error_kind == "invalid":
        return InvalidRequestError(message, output.error_param)
    if output.error_kind == "invalid_end":
        return InvalidEndError(message, output.error_param)
    return QueueFullError(message) if output.error_kind == "overloaded" else CoreError(message)
