"""Whose work the lines of a log belong to: kept beside the running task, so that nobody has to pass it on."""

from contextvars import ContextVar
from typing import NamedTuple


class LogContext(NamedTuple):
    """The request under way, and its trace where somebody traces it."""

    request_id: str
    trace_id: str = ""


LOG_CONTEXT: ContextVar[LogContext | None] = ContextVar("aio_log_context", default=None)
