"""Error reports: what failed and where, without any text of a request (SPEC OB-11).

By convention a log line has a stack only for an unexpected failure. Each such line becomes a report by an event id. It
contains no values of variables, texts of exceptions or messages, which may quote a prompt.
"""

import logging
import sys
import threading
import uuid
from contextlib import suppress
from types import TracebackType

from gateway import __version__
from gateway.base.logs import REPORT, without_outages

log = logging.getLogger(__name__)

RELEASE = f"aio-gateway@{__version__}"
_EVENT = "_aio_event_id"


class ErrorReports(logging.Handler):
    """Adds an event id, the release and the process's role to every log line with a stack, from level error on.

    Runs before the handlers that write lines. One exception is one event, however many lines report it.
    """

    def __init__(self, role: str) -> None:
        super().__init__(logging.ERROR)
        self._role = role
        self.addFilter(without_outages)

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return
        event_id: str = getattr(error, _EVENT, None) or uuid.uuid4().hex
        with suppress(AttributeError):
            setattr(error, _EVENT, event_id)
        setattr(record, REPORT, {"event_id": event_id, "release": RELEASE, "role": self._role})


def report_errors(role: str) -> None:
    """Report errors of this process from now on, including uncaught ones that end it or one of its threads."""
    logging.getLogger().handlers.insert(0, ErrorReports(role))
    sys.excepthook = _uncaught
    threading.excepthook = lambda ended: _uncaught(ended.exc_type, ended.exc_value, ended.exc_traceback)


def _uncaught(kind: type[BaseException], error: BaseException | None, stack: TracebackType | None) -> None:
    if error is None or isinstance(error, (KeyboardInterrupt, SystemExit)):
        sys.__excepthook__(kind, error or kind(), stack)
    else:
        log.critical("an uncaught exception ended this thread", exc_info=(kind, error, stack))
