"""What the database's drivers may do: no statement waits for ever, whether a server, a network or a disk hangs, and no
failure repeats the values of a row, which may be users' texts; and what the parameters of a PostgreSQL URL mean.

Time limits: every failure is a `TimeoutError`, and the connection that it happened on is not used again.

Hidden values: SQLAlchemy's `hide_parameters` leaves the server's own words: the detail of a violated constraint has
the row ("Failing row contains …", "Key (name)=(…) already exists."), and an error in the data repeats the value.
"""

import asyncio
import functools
import importlib
import re
import sqlite3
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Self, TypeVar
from urllib.parse import urlencode

import aiosqlite
from aiosqlite.context import contextmanager
from sqlalchemy import event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_core.io.background_tasks import is_cancelled

T = TypeVar("T")

CONNECT_SECONDS = 3.0
"""To open a connection, to wait for a free one, and to find out that one from the pool still answers."""
STATEMENT_SECONDS = 30.0
"""Of one statement on a connection that has just answered. Reports on millions of requests take some seconds."""
STALL_SECONDS = 5.0
"""A disk may not answer for so long before a request fails: what waits for it waits a little longer."""
COMMIT_SECONDS = STALL_SECONDS + 2.0
"""Of a commit, which waits for a disk."""
CLOSE_SECONDS = 0.5
"""To part from a server in the regular way; after this the connection is cut."""
WATCH_SECONDS = 0.5
"""How often the calls of a SQLite connection are looked at: they fail so much later than their limit at most."""
BUSY_MS = int(1000 * STALL_SECONDS) + 2_000
"""How long SQLite waits for the lock of another writer, whose commit may wait for the disk. One that waits long asks
ten times a second, one that has just come more often: it may be passed by several."""
MOST_STUCK = 32
"""SQLite connections whose threads do not come back from the disk; beyond this none is opened."""

_LIMITS = {"BEGIN": CONNECT_SECONDS, "ROLLBACK": CONNECT_SECONDS, "COMMIT": COMMIT_SECONDS}
_stuck: set[aiosqlite.Connection] = set()


def limit_waiting(engine: AsyncEngine) -> None:
    """Discard the connection that a statement has waited on for too long, instead of asking it to roll back."""

    @event.listens_for(engine.sync_engine, "handle_error")
    def discard(context: ExceptionContext) -> None:
        if isinstance(context.original_exception, TimeoutError):
            context.is_disconnect = True


@functools.cache
def postgres_connection() -> type[Any]:
    """Return the class of asyncpg's connections with these limits; asyncpg is an optional dependency."""
    asyncpg: Any = importlib.import_module("asyncpg")

    class LimitedConnection(asyncpg.Connection):  # type: ignore[misc]
        """BEGIN, with which every use of a pooled connection starts, and ROLLBACK are answered soon or never."""

        async def execute(self, query: str, *args: Any, timeout: float | None = None) -> Any:  # noqa: ASYNC109
            if timeout is None:
                timeout = _LIMITS.get(query.rstrip(";").partition(" ")[0])
            try:
                return await super().execute(query, *args, timeout=timeout)
            except TimeoutError as error:
                if is_cancelled():
                    # This rolls back what a cancelled statement began: a loop around it must not take the cancellation
                    # for a database that is away.
                    raise asyncio.CancelledError from error
                raise

        async def close(self, *, timeout: float | None = None) -> None:  # noqa: ASYNC109
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await super().close(timeout=timeout)
            except TimeoutError:
                self.terminate()

    return LimitedConnection


class DatabaseUrlError(ValueError):
    """The database URL is invalid; the message says what is allowed."""


_TLS_VERSIONS = ("TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3")
# libpq's parameters that asyncpg reads, with the words that are allowed, where these are few:
# https://www.postgresql.org/docs/current/libpq-connect.html.
_LIBPQ: Final[Mapping[str, tuple[str, ...]]] = {
    "application_name": (),
    "options": (),
    "passfile": (),
    "sslmode": ("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    "sslnegotiation": ("postgres", "direct"),
    "sslcert": (),
    "sslkey": (),
    "sslpassword": (),
    "sslrootcert": (),
    "sslcrl": (),
    "ssl_min_protocol_version": _TLS_VERSIONS,
    "ssl_max_protocol_version": _TLS_VERSIONS,
    "target_session_attrs": ("any", "primary", "standby", "read-write", "read-only", "prefer-standby"),
    "krbsrvname": (),
    "gsslib": (),
}
# Those of which the driver does one thing alone: a value that asks for no more is allowed.
_FIXED: Final[Mapping[str, tuple[str, ...]]] = {
    "channel_binding": ("disable", "prefer"),
    "client_encoding": ("utf8", "utf-8", "auto"),
    "gssencmode": ("disable", "prefer"),
    "load_balance_hosts": ("disable",),
}
# What SQLAlchemy reads itself.
_OF_SQLALCHEMY = ("host", "port", "ssl", "prepared_statement_cache_size")
_FILES = ("sslcert", "sslkey", "sslrootcert", "sslcrl", "passfile")
_MOST_CONNECT_SECONDS = 60


def postgres_arguments(query: Mapping[str, Sequence[str] | str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parameters of a PostgreSQL URL that SQLAlchemy reads, and the arguments of asyncpg's `connect` that
    the others mean: libpq's, which URLs of hosted databases have.

    Raises `DatabaseUrlError` for one that is unknown or has no effect here, and for files that cannot be used. Values
    of passwords are in no message.
    """
    ours = {name: value for name, value in query.items() if name in _OF_SQLALCHEMY}
    theirs = {name: value if isinstance(value, str) else value[-1] for name, value in query.items() if name not in ours}
    seconds = theirs.pop("connect_timeout", None)
    name = theirs.pop("fallback_application_name", None)
    for parameter, value in theirs.items():
        if parameter not in _LIBPQ and parameter not in _FIXED:
            names = ", ".join(sorted([*_LIBPQ, *_FIXED, "connect_timeout", "fallback_application_name"]))
            raise DatabaseUrlError(f"AIO_DATABASE_URL: the parameter {parameter!r:.64} is unknown; allowed are {names}")
        allowed = _LIBPQ.get(parameter) or _FIXED.get(parameter, ())
        if allowed and value.lower() not in map(str.lower, allowed):
            raise DatabaseUrlError(f"AIO_DATABASE_URL: {parameter}={value!r:.64} is none of {', '.join(allowed)}")
    _require_files(theirs)
    libpq_args = {parameter: value for parameter, value in theirs.items() if parameter in _LIBPQ}
    if name is not None:
        libpq_args.setdefault("application_name", name)
    arguments: dict[str, Any] = {"dsn": f"postgresql:///?{urlencode(libpq_args)}"} if libpq_args else {}
    if seconds is not None:
        arguments["timeout"] = _seconds(seconds)
    return ours, arguments


def _seconds(text: str) -> float:
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_CONNECT_SECONDS:
        raise DatabaseUrlError(
            f"AIO_DATABASE_URL: connect_timeout={text!r:.64} is no whole number of seconds from 1 to "
            f"{_MOST_CONNECT_SECONDS}"
        )
    return float(text)


def _require_files(parameters: Mapping[str, str]) -> None:
    """Read the files that are named, as the driver will at each connection."""
    if "sslkey" in parameters and "sslcert" not in parameters:
        raise DatabaseUrlError("AIO_DATABASE_URL: sslkey is the key of a certificate, so sslcert is needed as well")
    context, parameter = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ""
    try:
        for parameter in (name for name in _FILES if name in parameters):
            with open(parameters[parameter], "rb"):
                pass
        for parameter in (name for name in ("sslrootcert", "sslcrl") if name in parameters):
            context.load_verify_locations(cafile=parameters[parameter])
        if (parameter := "sslcert") in parameters:
            context.load_cert_chain(
                parameters["sslcert"], parameters.get("sslkey"), password=lambda: parameters.get("sslpassword", "")
            )
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) else error
        raise DatabaseUrlError(
            f"AIO_DATABASE_URL: the file of {parameter}, {parameters[parameter]}, cannot be used: {why}"
        ) from error


class LimitedSqlite(aiosqlite.Connection):
    """A connection whose thread may be stuck in a call to the disk: its caller is not."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits: dict[asyncio.Future[Any], float] = {}
        """Of each call under way: the loop's time at which it fails."""
        self._watch: asyncio.TimerHandle | None = None
        self._committed = False
        self._stopped: asyncio.Future[Any] | None = None

    async def _connect(self) -> aiosqlite.Connection:
        try:
            return await super()._connect()
        except Exception:
            # Its thread still says that it has stopped, which it cannot to an event loop that has ended.
            if self._stopped is not None:
                await asyncio.wait({self._stopped}, timeout=CLOSE_SECONDS)
            raise

    def stop(self) -> asyncio.Future[Any] | None:
        self._stopped = super().stop()
        return self._stopped

    @contextmanager
    async def cursor(self) -> aiosqlite.Cursor:
        return WholeCursor(self)

    async def _execute(self, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        # aiosqlite sends everything to the thread of the connection this way.
        return await self._answered(STATEMENT_SECONDS, functools.partial(fn, *args, **kwargs))

    async def commit(self) -> None:
        """Commit, as soon as the disk does."""
        await self._answered(COMMIT_SECONDS, self._conn.commit)
        self._committed = True

    async def rollback(self) -> None:
        """Roll back, unless the last call was a commit: SQLAlchemy's pool asks it of each connection that it gets."""
        if not self._committed:
            await super().rollback()

    async def _answered(self, seconds: float, call: Callable[[], T]) -> T:
        """Let the thread make `call`. One timer watches all calls of the connection: a timer for each cost a twentieth
        of the gateway's time."""
        self._committed = False
        if not self._running or not self._connection:
            raise ValueError("Connection closed")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._limits[answer] = loop.time() + seconds
        if self._watch is None:
            self._watch = loop.call_later(WATCH_SECONDS, self._expire, loop)
        self._tx.put_nowait((answer, call))
        try:
            return await answer
        finally:
            del self._limits[answer]

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        """Fail the calls that have waited for too long; go on watching while there are others."""
        now = loop.time()
        for answer, limit in self._limits.items():
            if limit <= now and not answer.done():
                answer.set_exception(TimeoutError())
        self._watch = loop.call_later(WATCH_SECONDS, self._expire, loop) if self._limits else None

    async def close(self) -> None:
        """Close it; if its thread is stuck, leave that to the thread."""
        closing = asyncio.ensure_future(super().close())
        done, _ = await asyncio.wait({closing}, timeout=CLOSE_SECONDS)
        if done:
            await closing
        else:
            _stuck.add(self)
            closing.add_done_callback(lambda _: _stuck.discard(self))


class WholeCursor(aiosqlite.Cursor):
    """A cursor whose statement and all its rows are one call of the connection's thread.

    With aiosqlite's own they are four: SQLAlchemy has a cursor made, a statement executed, its rows read and the cursor
    closed, and to wait for a thread takes longer than most statements.
    """

    def __init__(self, connection: LimitedSqlite) -> None:
        super().__init__(connection, None)  # type: ignore[arg-type]  # it has one once it has executed a statement
        self._owner = connection
        self._rows: list[Any] = []

    async def execute(self, sql: str, parameters: Iterable[Any] | None = None) -> Self:
        return await self._executed(sqlite3.Cursor.execute, sql, parameters or ())

    async def executemany(self, sql: str, parameters: Iterable[Iterable[Any]]) -> Self:
        return await self._executed(sqlite3.Cursor.executemany, sql, parameters)

    async def _executed(self, execute: Callable[..., object], sql: str, parameters: Iterable[Any]) -> Self:
        connection = self._owner
        self._cursor, self._rows = await connection._execute(_all_rows, connection._conn, execute, sql, parameters)
        return self

    async def fetchall(self) -> list[Any]:
        rows, self._rows = self._rows, []
        return rows

    async def close(self) -> None:
        """Do nothing: the thread has closed it."""


def _all_rows(
    connection: sqlite3.Connection, execute: Callable[..., object], sql: str, parameters: Iterable[Any]
) -> tuple[sqlite3.Cursor, list[Any]]:
    """Return the closed cursor, which still describes the rows, and these."""
    cursor = connection.cursor()
    try:
        execute(cursor, sql, parameters)
        return cursor, cursor.fetchall() if cursor.description else []
    finally:
        cursor.close()


def sqlite_connection(database: str, **arguments: Any) -> LimitedSqlite:
    """Return an unopened connection to a SQLite file. Raises `TimeoutError` while too many are stuck."""
    if len(_stuck) >= MOST_STUCK:
        raise TimeoutError(f"the disk of the database does not answer: {MOST_STUCK} threads wait for it")
    connection = LimitedSqlite(lambda: sqlite3.connect(database, **arguments), iter_chunk_size=64)
    # A thread that is stuck must not keep the process from ending.
    connection._thread.daemon = True
    return connection


HIDDEN = "(hidden)"
_DETAIL = "\nDETAIL:"
_OF_DATA = "22"
"""The class of SQLSTATE of errors in the data, whose messages repeat a value."""
# After a colon or in quotes, or asyncpg's own of a value that it cannot send.
_VALUE = re.compile(r"(?<=invalid input for query argument ).*|(?<=: ).*|\".*\"", re.DOTALL)


def hide_values(context: ExceptionContext) -> None:
    """Take the values out of an error before anybody writes it down: a listener of `handle_error`."""
    errors = list(_chain(context.original_exception))
    of_data = any(str(getattr(error, "sqlstate", "")).startswith(_OF_DATA) for error in errors)
    for error in (context.sqlalchemy_exception, *errors):
        if error is None:
            continue
        if getattr(error, "detail", None):
            error.detail = None  # type: ignore[attr-defined]
        if error.args and isinstance(error.args[0], str):
            said = error.args[0].partition(_DETAIL)[0]
            error.args = (_VALUE.sub(HIDDEN, said) if of_data else said, *error.args[1:])


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
