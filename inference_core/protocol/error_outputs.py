"""What a core says of a request that it does not take."""

from inference_core.errors import CoreError, InvalidRequestError, QueueFullError
from inference_core.protocol import ErrorKind, SequenceOutput


def refusal(request_id: str, error: CoreError) -> SequenceOutput:
    """The one output of a request that was not admitted."""
    output = SequenceOutput(request_id=request_id, index=0, token_ids=[], finish_reason="error")
    blame(output, error)
    return output


def blame(output: SequenceOutput, error: CoreError) -> None:
    """Say in an output that ends a request that it ends because of `error`."""
    kind: ErrorKind = "internal"
    if isinstance(error, InvalidRequestError):
        kind = "invalid"
    elif isinstance(error, QueueFullError):
        kind = "overloaded"
    output.error, output.error_param, output.error_kind = str(error), getattr(error, "param", None), kind


def failure(output: SequenceOutput) -> CoreError:
    """What `refusal` was made of, or a `CoreError`, for whoever asked for one thing and got this output instead."""
    message = output.error or f"the core ended {output.request_id}: {output.finish_reason}"
    if output.error_kind == "invalid":
        return InvalidRequestError(message, output.error_param)
    return QueueFullError(message) if output.error_kind == "overloaded" else CoreError(message)
