"""A batch: many requests of one caller to one endpoint, from its input file to its output files."""

from typing import Any, Literal

import msgspec

Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
UNDER_WAY: tuple[Status, ...] = ("validating", "in_progress", "finalizing", "cancelling")
Ending = Literal["completed", "expired", "cancelled"]


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch's row. Times are UTC epoch seconds. `completed` and `failed` count lines and are None until it has ended.

    `errors`: of its input, as plain data. `output_seconds`: lifetime of its output files.
    """

    batch_id: str
    key_id: str | None
    tenant: str
    endpoint: str
    input_file_id: str
    completion_window: str
    metadata: dict[str, str] | None
    traceparent: str | None
    output_seconds: float | None
    status: Status
    errors: list[dict[str, Any]] | None
    output_file_id: str | None
    error_file_id: str | None
    total: int
    completed: int | None
    failed: int | None
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
    """What the caller decides. `seconds`: the completion window."""

    endpoint: str
    input_file_id: str
    completion_window: str
    seconds: float
    metadata: dict[str, str] | None = None
    traceparent: str | None = None
    output_seconds: float | None = None
