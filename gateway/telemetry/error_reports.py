"""Error reports: what failed and where, without any text of a request (SPEC OB-11).

By convention a log line has a stack only for an unexpected failure. Each such line becomes a report: the line with an
event id and, if a tracker is configured, an event there. Neither contains values of variables, texts of exceptions or
messages, which may quote a prompt.
"""

import logging
import sys
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from traceback import extract_tb
from types import TracebackType

import msgspec

from gateway import __version__
from gateway.base.logs import FIELDS, LOG_CONTEXT, REPORT, chain_of, without_outages

log = logging.getLogger(__name__)

RELEASE = f"aio-gateway@{__version__}"
_EVENT = "_aio_event_id"


class Frame(msgspec.Struct, frozen=True):
    """One call of the stack where an exception was raised."""

    file: str
    line: int | None
    function: str


class Raised(msgspec.Struct, frozen=True):
    """An exception without its text; `frames` outermost first."""

    module: str
    type: str
    frames: list[Frame]


class ErrorReport(msgspec.Struct, frozen=True, kw_only=True):
    """`raised` first, then its causes. `role`: the process. `tier`, `request_id` and `trace_id` if known; `timestamp`
    in UTC epoch seconds."""

    event_id: str
    timestamp: float
    level: str
    logger: str
    raised: list[Raised]
    role: str
    tier: int | None = None
    request_id: str = ""
    trace_id: str = ""


Send = Callable[[ErrorReport], None]


class ErrorReports(logging.Handler):
    """Adds an event id to every log line with a stack, from level error on, and passes the report to `send`.

    Runs before the handlers that write lines. One exception is one event, however many lines report it.
    """

    def __init__(self, role: str, send: Send | None = None) -> None:
        super().__init__(logging.ERROR)
        self._role, self._send = role, send
        self.addFilter(without_outages)

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        # The tracker's own library must not report its own failures.
        if error is None or record.name.startswith("sentry_sdk"):
            return
        known: str | None = getattr(error, _EVENT, None)
        report = self._report(record, error, known or uuid.uuid4().hex)
        setattr(record, REPORT, {"event_id": report.event_id, "release": RELEASE, "role": report.role})
        if known is None:
            with suppress(AttributeError):
                setattr(error, _EVENT, report.event_id)
            if self._send is not None:
                self._send(report)

    def _report(self, record: logging.LogRecord, error: BaseException, event_id: str) -> ErrorReport:
        context = LOG_CONTEXT.get()
        return ErrorReport(
            event_id=event_id,
            timestamp=record.created,
            level="fatal" if record.levelno >= logging.CRITICAL else "error",
            logger=record.name,
            raised=[_raised(one) for one in chain_of(error)],
            role=self._role,
            tier=getattr(record, FIELDS, {}).get("tier"),
            request_id="" if context is None else context.request_id,
            trace_id="" if context is None else context.trace_id,
        )


def report_errors(role: str, send: Send | None = None) -> None:
    """Report errors of this process from now on, including uncaught ones that end it or one of its threads."""
    logging.getLogger().handlers.insert(0, ErrorReports(role, send))
    sys.excepthook = _uncaught
    threading.excepthook = lambda ended: _uncaught(ended.exc_type, ended.exc_value, ended.exc_traceback)


def _uncaught(kind: type[BaseException], error: BaseException | None, stack: TracebackType | None) -> None:
    if error is None or isinstance(error, (KeyboardInterrupt, SystemExit)):
        sys.__excepthook__(kind, error or kind(), stack)
    else:
        log.critical("an uncaught exception ended this thread", exc_info=(kind, error, stack))


def _raised(error: BaseException) -> Raised:
    frames = [Frame(frame.filename, frame.lineno, frame.name) for frame in extract_tb(error.__traceback__)]
    return Raised(type(error).__module__, type(error).__qualname__, frames)
