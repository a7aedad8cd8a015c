"""Logging of the process: one line per event on standard error, without prompts, answers or keys; and, where these are
JSON, everything else that the process writes.

Every line of a request has its id, and its trace's id if there is one: a context variable of the running task holds
them. Callers cannot break a line: control characters are escaped. For an exception in a request its type and stack
are logged, not its text, which may quote the request.
"""

import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from traceback import extract_tb
from typing import Any, Literal, TextIO

import msgspec


def with_first_cause(error: BaseException) -> str:
    """Return the error's kind and that of the error which it comes from, with the address of the server that failed;
    of the disk, the network and the database also its words, which hold no text of a user."""
    first, name, server = error, type(error).__name__, getattr(error, "server", "")
    while first.__cause__ is not None:
        first = first.__cause__
        server = server or getattr(first, "server", "")
    at = f" at {server}" if server else ""
    if first is error:
        return name + at
    is_plain = isinstance(first, OSError) or type(first).__name__ == "OperationalError"
    return f"{name} from {type(first).__name__}{f' ({first})' if is_plain and str(first) else ''}{at}"


class LogContext(msgspec.Struct, frozen=True):
    """The current request, and its trace if it is traced."""

    request_id: str
    trace_id: str = ""


LOG_CONTEXT: ContextVar[LogContext | None] = ContextVar("aio_log_context", default=None)


LogFormat = Literal["text", "json"]

_CONTROL = {code: f"\\x{code:02x}" for code in (*range(0x20), 0x7F, *range(0x80, 0xA0), 0x2028, 0x2029)}
_CONTROL |= {ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t"}
# JSON escapes only those below the space.
_IN_JSON = {code: f"\\u{code:04x}" for code in _CONTROL if code > 0x20}
_CHATTY = ("httpx", "httpcore", "alembic", "apscheduler", "aiosqlite", "asyncio", "opentelemetry", "urllib3")

FIELDS = "fields"
"""Key in `extra`: a line's own fields, a dict of plain values."""
REPORT = "report"
"""Key of the event's fields, if the line is an error report (`gateway.telemetry.error_reports`)."""
OF_OUTAGE = "aio_of_outage"
"""Attribute of an exception that belongs to the outage of a dependency, which has a line of its own."""


def configure_logging(level: str, style: LogFormat = "text") -> None:
    """Send everything from `level` on to standard error; verbose libraries only from warnings on."""
    handler = logging.StreamHandler(sys.stderr.below if isinstance(sys.stderr, JsonStream) else sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    handler.addFilter(without_outages)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))


def without_outages(record: logging.LogRecord) -> bool:
    """Whether a line is to be written: a filter of handlers. Below level debug none is that an outage caused: each part
    that needs the dependency would say the same, once a second. The cause is the exception that the line reports, or
    the one that is being handled."""
    error = record.exc_info[1] if record.exc_info else sys.exception()
    while error is not None:
        if hasattr(error, OF_OUTAGE):
            return logging.getLogger().isEnabledFor(logging.DEBUG)
        error = error.__cause__
    return True


class TextFormatter(logging.Formatter):
    """For people: time, level, logger, message, fields as `name=value`; stacks on separate lines."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage().translate(_CONTROL)
        words = [_time_of(record).replace("T", " "), f"{record.levelname:<7}", record.name, message]
        shown = _fields(record)
        words += [f"{name}={value}".translate(_CONTROL) for name, value in shown.items()]
        return "\n".join([" ".join(words), *(f"    {line}".translate(_CONTROL) for line in _stack(record))])


class JsonFormatter(logging.Formatter):
    """For programs: one JSON object per line with `time`, `level`, `logger`, `message`, `request_id` and `trace_id` if
    known, the line's own fields, and for an exception `error`, its type, and `stack`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = record.exc_info[0].__name__
            line["stack"] = list(_stack(record))
        return _json_line(line)


def _json_line(line: dict[str, Any]) -> str:
    try:
        encoded = msgspec.json.encode(line, enc_hook=str)
    except UnicodeEncodeError:
        # A lone surrogate cannot be encoded as UTF-8.
        line["message"] = line["message"].encode("utf-8", "backslashreplace").decode()
        encoded = msgspec.json.encode(line, enc_hook=str)
    return encoded.decode().translate(_IN_JSON)


class JsonStream:
    """Standard output or standard error whose every line is a JSON object: what is written between two flushes, up to
    its last line break, is the `message` of one. Objects of other processes, which one passes on, stay as they are."""

    def __init__(self, below: TextIO, level: str) -> None:
        self.below, self._level = below, level
        self._text = ""
        self._lock = threading.RLock()

    def write(self, text: str) -> int:
        """Keep `text`; at a line break, write what is kept."""
        with self._lock:
            self._text += text
            if self._text.endswith("\n"):
                self._write_kept()
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Write what is kept, also without a line break."""
        with self._lock:
            self._write_kept()
            self.below.flush()

    def isatty(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.below, name)

    def _write_kept(self) -> None:
        text, self._text = self._text.strip(), ""
        if not text:
            return
        if all(map(_is_log_line, text.split("\n"))):
            self.below.write(f"{text}\n")
            return
        is_error = text.startswith(_ERROR)
        message, level = text.removeprefix(_ERROR), "error" if is_error else self._level
        line = {"time": _utc(time.time()), "level": level, "logger": "aio", "message": message}
        self.below.write(f"{_json_line(line)}\n")


_ERROR = "Error: "
"""How the command line begins the reason why it ends."""


def _is_log_line(text: str) -> bool:
    if not text.startswith("{"):
        return False
    try:
        return "message" in msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:
        return False


@contextmanager
def all_as_json() -> Iterator[None]:
    """Write JSON alone until the end of the block: texts for people, failures, warnings, and the lines of libraries
    that have handlers of their own. An exception that nothing catches ends the process with status 1."""
    before = sys.stdout, sys.stderr, threading.excepthook, sys.unraisablehook
    sys.stdout, sys.stderr = JsonStream(sys.stdout, "info"), JsonStream(sys.stderr, "warning")
    configure_logging("info", "json")
    log = logging.getLogger("aio")

    def of_a_thread(failed: threading.ExceptHookArgs) -> None:
        raised = failed.exc_value or failed.exc_type()
        log.error("an exception ended a thread", exc_info=raised)

    def unraisable(failed: "sys.UnraisableHookArgs") -> None:
        log.error("an exception could not be raised", exc_info=failed.exc_value)

    threading.excepthook, sys.unraisablehook = of_a_thread, unraisable
    logging.captureWarnings(True)
    try:
        yield
    except Exception:
        log.critical("the process ends by an exception that nothing caught", exc_info=True)
        raise SystemExit(1) from None
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        logging.captureWarnings(False)
        sys.stdout, sys.stderr, threading.excepthook, sys.unraisablehook = before


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    context = LOG_CONTEXT.get()
    own: dict[str, Any] = getattr(record, FIELDS, {}) | getattr(record, REPORT, {})
    if context is None:
        return own
    shown: dict[str, Any] = {"request_id": context.request_id}
    if context.trace_id:
        shown["trace_id"] = context.trace_id
    return shown | own


def _stack(record: logging.LogRecord) -> Iterator[str]:
    """Format what was raised, outermost frame first, then its causes; texts only outside of requests."""
    raised = record.exc_info[1] if record.exc_info else None
    said = LOG_CONTEXT.get() is None and not hasattr(record, FIELDS)
    for error in chain_of(raised):
        if error is not raised:
            yield "from"
        yield f"{type(error).__qualname__}: {error}" if said else type(error).__qualname__
        for frame in extract_tb(error.__traceback__):
            yield f"  {frame.filename}:{frame.lineno} in {frame.name}"


def chain_of(error: BaseException | None) -> Iterator[BaseException]:
    """Return an exception and its causes, each once."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _time_of(record: logging.LogRecord) -> str:
    return _utc(record.created)


def _utc(seconds: float) -> str:
    """Format UTC, to the millisecond."""
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{int(seconds % 1 * 1000):03d}Z"
