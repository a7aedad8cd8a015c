"""Error reports: what broke and where, for people who were not there, without a word of what was asked (SPEC OB-11).

By our convention a line of the log has a stack where something failed that nobody foresaw. Each such line becomes a
report: the line itself, with its event's id, and where a tracker is configured an event there. Neither has values of
variables, words of exceptions or messages, which may quote a prompt.
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
from gateway.logs.log_context import LOG_CONTEXT
from gateway.logs.log_format import FIELDS, REPORT, chain_of

log = logging.getLogger(__name__)

RELEASE = f"aio-gateway@{__version__}"
_EVENT = "_aio_event_id"


class Frame(msgspec.Struct, frozen=True):
    """One call, of the stack where something was raised."""

    file: str
    line: int | None
    function: str


class Raised(msgspec.Struct, frozen=True):
    """An exception without its words; `frames` outermost first."""

    module: str
    type: str
    frames: list[Frame]


class ErrorReport(msgspec.Struct, frozen=True, kw_only=True):
    """`raised` first, then what it came from. `role`: the process. `tier`, `request_id` and `trace_id` where there is
    one; `timestamp` in UTC epoch seconds."""

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
    """Gives every line with a stack, from the level of errors on, the id of its event, and `send` the report.

    Goes before the handlers that write lines. One exception is one event, however many lines tell of it.
    """

    def __init__(self, role: str, send: Send | None = None) -> None:
        super().__init__(logging.ERROR)
        self._role, self._send = role, send

    def emit(self, record: logging.LogRecord) -> None:
        """Take one line."""
        error = record.exc_info[1] if record.exc_info else None
        # The tracker's own library must not report that it cannot report.
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
    """From now on, in this process; also what ends it or one of its threads because nobody catches it."""
    logging.getLogger().handlers.insert(0, ErrorReports(role, send))
    sys.excepthook = _uncaught
    threading.excepthook = lambda ended: _uncaught(ended.exc_type, ended.exc_value, ended.exc_traceback)


def _uncaught(kind: type[BaseException], error: BaseException | None, stack: TracebackType | None) -> None:
    if error is None or isinstance(error, (KeyboardInterrupt, SystemExit)):
        sys.__excepthook__(kind, error or kind(), stack)
    else:
        log.critical("nobody caught what ended this thread", exc_info=(kind, error, stack))


def _raised(error: BaseException) -> Raised:
    frames = [Frame(frame.filename, frame.lineno, frame.name) for frame in extract_tb(error.__traceback__)]
    return Raised(type(error).__module__, type(error).__qualname__, frames)
