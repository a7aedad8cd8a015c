"""The errors of the core: one type per action that the caller can take."""

from typing import Literal

KVTransferFailure = Literal["incompatible", "corrupt", "full", "missing", "refused", "gone"]
"""Why KV blocks were not transferred: other weights, kernels or layout; damaged in transit; no memory; not cached (any
more); refused by the request or the state of a core; a core is gone."""


class CoreError(Exception):
    """Base of all errors raised by `inference_core`."""


class ModelFileError(CoreError):
    """A weight or tokeniser file is missing, corrupt or of an unsupported kind. Fix the file."""


class MemoryPlanError(CoreError):
    """A model or its KV cache does not fit; the message holds the arithmetic. Shrink or add memory."""


class PrefixError(CoreError):
    """A prefix cannot be pinned as it is; the message says what would help. Change the prefix or its limits."""


class InvalidRequestError(CoreError):
    """The request can never be served as it is; `param` names the offending field. Change the request."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class InvalidEndError(InvalidRequestError):
    """The answer could only end with what its schema does not allow. Ask again: another answer may be valid."""


class QueueFullError(CoreError):
    """The core's queue is full, or too long for the request's deadline. Try later or elsewhere."""


class GrammarServerError(QueueFullError):
    """Grammars cannot be compiled at the moment, whatever their content. Try later or elsewhere."""


class CoreGoneError(CoreError):
    """The core stopped or its connection broke; requests in flight are lost. Retry elsewhere."""


class CoreLostError(CoreGoneError):
    """The core died while it held the request, or its connection broke. The request may be why: retry with care."""


class CoreTlsError(CoreGoneError):
    """A connection to a core would not be encrypted, or an end refuses the other's certificate. Mend either."""


class IntegrityError(CoreError):
    """An invariant of the engine does not hold: a bug, never the caller's fault."""


class BadLogitsError(CoreError):
    """Rows of logits have NaN or +inf, or mask every token. `rows` fail; the other rows may be run again."""

    def __init__(self, rows: list[int], vocab: int) -> None:
        super().__init__(f"logits of row(s) {rows} hold NaN or +inf, or mask all {vocab} tokens; no token can be drawn")
        self.rows = rows


class KVTransferError(CoreError):
    """KV blocks could not be transferred, for `reason`. Compute the prompt where its answer is computed."""

    def __init__(self, message: str, reason: KVTransferFailure) -> None:
        super().__init__(message)
        self.reason: KVTransferFailure = reason


class DevicesMissingError(CoreError):
    """The machine lacks devices that a core is planned for. Serve elsewhere, or plan for the devices present."""


class DeviceFailedError(CoreError):
    """A card's driver, the compilation of its kernels or the links between cards failed while a core was loaded. Mend
    what the message names, or serve elsewhere."""


class MeshError(CoreError):
    """A model, or the machines at hand, cannot be divided into the ranks asked for. Choose other sizes."""


class RankLostError(CoreGoneError):
    """A rank of the mesh died, failed or stopped answering: the core ends, since the other ranks need all ranks."""


class QuantizationError(CoreError):
    """A model cannot be quantised as requested; the message names settings that work. Choose other settings."""
