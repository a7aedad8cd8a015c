"""Everything that can go wrong in the core, one type per thing the caller can do about it."""

from typing import Literal

KVTransferFailure = Literal["incompatible", "corrupt", "full", "missing", "refused", "gone"]
"""Why KV blocks were not handed over: other weights, kernels or layout; damaged on the way; no room; not there (any
more); the request or the state of a core does not allow it; a core is gone."""


class CoreError(Exception):
    """Base of all errors raised by `inference_core`."""


class ModelFileError(CoreError):
    """A weight or tokeniser file is missing, corrupt or of an unsupported kind. Fix the file."""


class MemoryPlanError(CoreError):
    """A model or its KV cache does not fit; the message holds the arithmetic. Shrink or add memory."""


class InvalidRequestError(CoreError):
    """The request can never be served as given; `param` names the offending field. Change the request."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class QueueFullError(CoreError):
    """The core's bounded queue is full, or too long for the request's deadline. Try later or elsewhere."""


class GrammarServerError(QueueFullError):
    """Grammars cannot be compiled at the moment, through no fault of theirs. Try later or elsewhere."""


class CoreGoneError(CoreError):
    """The core stopped or its connection broke; requests in flight are lost. Retry elsewhere."""


class CoreLostError(CoreGoneError):
    """The core died while the request was in it, or its connection broke without a farewell. The request may be the
    cause: retry it with care."""


class IntegrityError(CoreError):
    """An invariant of the engine does not hold: a bug, never the caller's fault."""


class BadLogitsError(CoreError):
    """Rows of logits hold NaN or +inf, or no token is left to draw. `rows` fail; the other rows may be run again."""

    def __init__(self, rows: list[int], vocab: int) -> None:
        super().__init__(f"logits of row(s) {rows} hold NaN or +inf, or mask all {vocab} tokens; no token can be drawn")
        self.rows = rows


class KVTransferError(CoreError):
    """KV blocks could not be handed over, for `reason`. Compute the prompt where its answer is computed."""

    def __init__(self, message: str, reason: KVTransferFailure) -> None:
        super().__init__(message)
        self.reason: KVTransferFailure = reason


class DevicesMissingError(CoreError):
    """The machine lacks devices that a core is planned for. Serve elsewhere, or plan for what is there."""


class MeshError(CoreError):
    """A model, or the machines at hand, cannot be divided into the ranks asked for. Choose other sizes."""


class RankLostError(CoreGoneError):
    """A rank of the mesh died, failed or fell silent: the core ends, since its other ranks cannot go on alone."""


class QuantizationError(CoreError):
    """A model cannot be quantised as asked for; the message says what would do. Choose other settings."""
