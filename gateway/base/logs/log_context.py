"""The request that log lines belong to, kept in a context variable of the running task."""

from contextvars import ContextVar

import msgspec


class LogContext(msgspec.Struct, frozen=True):
    """The current request, and its trace if it is traced."""

    request_id: str
    trace_id: str = ""


LOG_CONTEXT: ContextVar[LogContext | None] = ContextVar("aio_log_context", default=None)
