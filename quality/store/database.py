"""Open the store: one engine for SQLite or PostgreSQL, and migrations that several replicas may start at once."""

import asyncio
import errno
import fcntl
import socket
import sqlite3
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
from sqlalchemy import Connection, event, inspect, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

import migrations
from inference_core.extras import require_extra
from quality.store.drivers import (
    BUSY_MS,
    CONNECT_SECONDS,
    STATEMENT_SECONDS,
    DatabaseUrlError,
    hide_values,
    limit_waiting,
    postgres_arguments,
    postgres_connection,
    sqlite_connection,
)

_DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "sqlite+aiosqlite": "sqlite+aiosqlite",
    "postgres": "postgresql+asyncpg",
    "postgresql": "postgresql+asyncpg",
    "postgresql+asyncpg": "postgresql+asyncpg",
}
_MIGRATIONS = Path(migrations.__file__).parent
_MIGRATION_LOCK = 0x41494F01  # PostgreSQL advisory lock number: "AIO", 1
# SQLSTATE classes of errors in the data: 22 data exception, 23 integrity constraint violation.
_DATA_SQLSTATES = ("22", "23")
# 08 connection, 28 authorization, 3D no such database, 53 out of resources, 57P shutting down or starting.
_AWAY_SQLSTATES = ("08", "28", "3D", "53", "57P")
_UNREACHABLE = (None, errno.EHOSTUNREACH, errno.ENETUNREACH)
# Of PostgreSQL and of SQLite: pages that are damaged, a table that is missing.
_DAMAGED = ("XX001", "XX002", sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_INCOMPLETE = ("42P01", sqlite3.SQLITE_ERROR)
_NO_TABLE = "no such table"
_UNWRITABLE: Mapping[str | int, str] = {
    "53100": "the disk is full",
    "25006": "it cannot be written",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_IOERR: "the disk is full or fails",
    sqlite3.SQLITE_READONLY: "it cannot be written",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened",
    sqlite3.SQLITE_PERM: "it cannot be opened",
}
RESTORE = "stop the server and restore a backup"
_NO_HELPER_FILES = "disk I/O error"
"""What SQLite says where it cannot make or extend the -wal and -shm files."""
_OLDEST_COMMIT = "b6445069"
"""It brings earlier databases to the oldest revision that is here."""
MOST_INTEGER = 2**63 - 1
"""The largest that an integer column of either database holds."""


class SchemaError(RuntimeError):
    """The database's schema is not the one of this version of AIO; the message says what to do."""


class DatabaseAwayError(RuntimeError):
    """A command needs the database, which does not answer or is damaged; the message names it and the reason."""


class DatabaseFault(NamedTuple):
    """What is wrong with a database that answers, in a line without values of rows."""

    kind: Literal["damaged", "incomplete", "unwritable"]
    says: str


def open_database(url: str) -> AsyncEngine:
    """Return an engine for `url`, which connects on first use. JSON columns accept msgspec structs.

    SQLite runs in WAL mode (set by `migrate`) with synchronous=FULL: the journal deletes a segment once its records are
    committed here, so a commit has to survive a power failure. Transactions are deferred. A transaction that will write
    must write first, otherwise a concurrent writer makes it fail instead of wait; if it has to read first, begin it on
    `writing_first(engine)`. Deleted content is overwritten, because erasing a user must leave no text behind.

    PostgreSQL connections are tested before use, so that no request fails after an outage has ended. What hangs ends
    with a `TimeoutError`, which is an `OSError`, after the limits of `time_limits`.

    Raises:
        DatabaseUrlError: not a SQLite file or PostgreSQL URL.
        MissingExtraError: a PostgreSQL URL without its driver.
    """
    return _engine(_parse(url), sqlite_pragmas=("foreign_keys=ON",))


@asynccontextmanager
async def database_opened(url: str) -> AsyncIterator[AsyncEngine]:
    """`open_database(url)`, whose connections are closed at the end of the block."""
    engine = open_database(url)
    try:
        yield engine
    finally:
        await engine.dispose()


def writing_first(engine: AsyncEngine) -> AsyncEngine:
    """`engine` with transactions that hold SQLite's lock of writers from their beginning, for those that read what
    they then write. Nothing changes on PostgreSQL."""
    return engine.execution_options(sqlite_begin="BEGIN IMMEDIATE")


async def migrate(url: str) -> str:
    """Migrate the schema to the newest revision and return its name; safe when several replicas start at once.

    Raises:
        DatabaseUrlError: not a SQLite file or PostgreSQL URL.
        SchemaError: the database is at a revision this version does not know, a later or a much earlier one.
    """
    parsed, newest = _parse(url), head_revision()
    if not await _is_migrated(parsed, newest):
        # A SQLite file that is not there yet, or not yet as we make one, is opened under its lock alone.
        is_made = parsed.get_backend_name() != "sqlite" or _is_in_wal_mode(Path(str(parsed.database)))
        if is_made and (current := await current_revision(url)) is not None:
            _refuse_unknown(parsed, current)
        await _run_alembic(parsed, "upgrade", "head")
    return newest


async def require_schema(url: str) -> None:
    """Make the schema of an empty database; leave any other one as it is, because an earlier server may use it.

    Raises:
        DatabaseUrlError: not a SQLite file or PostgreSQL URL.
        SchemaError: the database is at another revision than this version's newest.
    """
    parsed, newest = _parse(url), head_revision()
    current = await current_revision(url)
    if current is None:
        await migrate(url)
        return
    _refuse_unknown(parsed, current)
    if current != newest:
        raise SchemaError(
            f"the database {_plain_url(parsed)} has schema {current}, and this version of AIO needs {newest}: "
            "run `aio migrate`, after which an earlier version cannot use it"
        )


@contextmanager
def database_needed(url: str) -> Iterator[None]:
    """Turn the errors of a database that does not answer, or is damaged, into one that a command shows in a sentence.

    Raises:
        DatabaseAwayError: the database cannot be reached, refuses the connection, or is damaged.
    """
    try:
        yield
    except Exception as error:
        if (why := said_of_unusable(error)) is None:
            raise
        raise DatabaseAwayError(f"the database {_plain_url(_parse(url))} {why}") from error


def said_of_unusable(error: Exception) -> str | None:
    """Return in a line that the database cannot be used, why, and what to do; None if `error` does not say that."""
    fault = fault_of(error)
    if is_away(error) and (fault is None or fault.kind == "unwritable"):
        return f"cannot be used ({away_reason(error)}); see AIO_DATABASE_URL"
    return None if fault is None else f"cannot be used: {fault.says}"


def fault_of(error: BaseException | None) -> DatabaseFault | None:
    """Return what `error` says is wrong with the database itself: it is damaged, incomplete, or cannot be written."""
    error = getattr(error, "orig", None) or error
    words = (str(error).splitlines() or [""])[0]
    sqlite_code = getattr(error, "sqlite_errorcode", None)
    code = getattr(error, "sqlstate", None) if sqlite_code is None else sqlite_code & 0xFF
    if code in _DAMAGED:
        return DatabaseFault("damaged", f"it is damaged ({words}): {RESTORE}")
    if code in _INCOMPLETE and (code != sqlite3.SQLITE_ERROR or words.startswith(_NO_TABLE)):
        return DatabaseFault("incomplete", f"a table is missing ({words}): {RESTORE}")
    said = _UNWRITABLE.get(code) if code is not None else None
    return None if said is None else DatabaseFault("unwritable", f"{said} ({words})")


def away_reason(error: Exception) -> str:
    """Return in a line why the database is away, by an error for which `is_away` is true."""
    lines = str(getattr(error, "orig", None) or error).splitlines()
    if lines[:1] == [_NO_HELPER_FILES]:
        return f"{_NO_HELPER_FILES}: the disk is full, or its folder cannot be written"
    return lines[0] if lines else f"it did not answer within {CONNECT_SECONDS:g} s"


def is_away(error: Exception) -> bool:
    """Return whether `error` says that no connection to the database could be made or kept, or that it refused one."""
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    # The driver's errors of connecting are not wrapped.
    sqlstate = getattr(getattr(error, "orig", error), "sqlstate", None)
    if isinstance(sqlstate, str):
        return sqlstate.startswith(_AWAY_SQLSTATES)
    if isinstance(error, (OperationalError, InterfaceError, PoolTimeoutError, ConnectionError, TimeoutError)):
        return True
    # asyncio joins the failures of several addresses in an error without a number.
    # What the driver makes of a certificate, or of a variable of libpq's.
    if isinstance(error, ssl.SSLError) or type(error).__name__ == "ClientConfigurationError":
        return True
    return isinstance(error, socket.gaierror) or (type(error) is OSError and error.errno in _UNREACHABLE)


async def downgrade(url: str, revision: str) -> None:
    """Downgrade the schema to `revision`, dropping what later revisions added; to the newest one is an upgrade.

    Raises:
        DatabaseUrlError: not a SQLite file or PostgreSQL URL.
        SchemaError: this version has no such revision; below its oldest one the database would be emptied.
    """
    if revision not in (revisions := _revisions()):
        raise SchemaError(
            f"this version of AIO takes a schema back to {min(revisions)} at the earliest and knows it up to "
            f"{max(revisions)}, so not to {revision!r}: an earlier one is that of a backup"
        )
    if revision == max(revisions):
        await migrate(url)
    else:
        await _run_alembic(_parse(url), "downgrade", revision)


async def current_revision(url: str) -> str | None:
    """Return the database's revision; None before the first migration."""
    async with database_opened(url) as engine, engine.connect() as connection:
        return await connection.run_sync(_revision_of)


def blames_data(error: Exception) -> bool:
    """Return whether repeating the same values is pointless; it is not if the database is away, full or unmigrated."""
    if isinstance(error, (IntegrityError, DataError, OverflowError)):
        return True
    sqlstate = getattr(getattr(error, "orig", None), "sqlstate", None)
    return isinstance(sqlstate, str) and sqlstate.startswith(_DATA_SQLSTATES)


async def checkpoint(engine: AsyncEngine) -> None:
    """Move SQLite's write-ahead log into its file and truncate it, so that no copy of deleted content remains."""
    if engine.dialect.name == "sqlite":
        async with engine.execution_options(sqlite_begin=None).connect() as connection:
            await connection.execute(text("PRAGMA wal_checkpoint(TRUNCATE)"))


def head_revision() -> str:
    """Return the newest revision that this version of AIO knows."""
    return max(_revisions())


def _revisions() -> list[str]:
    # Their files are named by revisions, which are consecutive numbers.
    names = [path.name.partition("_")[0] for path in (_MIGRATIONS / "versions").glob("[0-9]*.py")]
    if not names:
        raise SchemaError("no alembic revision was found in the migrations package: reinstall AIO")
    return names


async def _is_migrated(url: URL, revision: str) -> bool:
    """Whether the database is at `revision` already, and, of SQLite, in WAL mode."""
    if url.get_backend_name() == "sqlite" and not _is_in_wal_mode(Path(str(url.database))):
        return False
    engine = _engine(url, sqlite_pragmas=())
    try:
        async with engine.connect() as connection:
            return await connection.run_sync(_revision_of) == revision
    finally:
        await engine.dispose()


def _is_in_wal_mode(database: Path) -> bool:
    """By its header's format versions: with a connection, another process might fail to switch to that mode."""
    try:
        with database.open("rb") as file:
            return file.read(20)[18:] == b"\2\2"
    except OSError:
        return False


def _refuse_unknown(url: URL, current: str) -> None:
    """Raise `SchemaError` for a revision after the newest or before the oldest one."""
    revisions = _revisions()
    if current > max(revisions):
        raise SchemaError(
            f"the database {_plain_url(url)} is newer than this version of AIO (schema {current}, known up to "
            f"{max(revisions)}): install the version that wrote it, or restore a backup"
        )
    if current < min(revisions):
        raise SchemaError(
            f"the database {_plain_url(url)} has schema {current}, and this version of AIO migrates schemas "
            f"from {min(revisions)} on: run `aio migrate` of commit {_OLDEST_COMMIT} first"
        )


def _revision_of(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    revision: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return revision


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise DatabaseUrlError(f"AIO_DATABASE_URL is no database URL; allowed are {_ALLOWED}") from error
    driver = _DRIVERS.get(parsed.drivername)
    if driver is None:
        raise DatabaseUrlError(f"unsupported database {parsed.drivername!r}; allowed are {_ALLOWED}")
    in_memory = not parsed.database or parsed.database == ":memory:" or parsed.database.startswith("file:")
    if not driver.startswith("sqlite"):
        postgres_arguments(parsed.query)
    elif in_memory:
        raise DatabaseUrlError(f"SQLite needs a file that other connections can open; allowed are {_ALLOWED}")
    return parsed.set(drivername=driver)


def _plain_url(url: URL) -> str:
    """Without the password, and without parameters, of which one is another password."""
    return url.set(query={}).render_as_string()


_ALLOWED = "sqlite:///relative/path.db, sqlite:////absolute/path.db and postgresql://user:password@host:port/name"


def _engine(
    url: URL, *, sqlite_pragmas: Sequence[str], statement_seconds: float | None = STATEMENT_SECONDS
) -> AsyncEngine:
    """The only place that makes engines. `statement_seconds`: the limit of one statement on PostgreSQL."""
    arguments: dict[str, Any] = {
        "json_serializer": lambda value: msgspec.json.encode(value).decode(),
        "json_deserializer": msgspec.json.decode,
        "pool_timeout": CONNECT_SECONDS,
        # The errors of statements are logged and reported, and their values are users' texts.
        "hide_parameters": True,
    }
    if url.get_backend_name() == "postgresql":
        require_extra("postgres", "a PostgreSQL database")
        query, driver_args = postgres_arguments(url.query)
        limits = {
            "timeout": CONNECT_SECONDS,
            "command_timeout": statement_seconds,
            "connection_class": postgres_connection(),
        }
        engine = create_async_engine(
            url.set(query=query), pool_pre_ping=True, connect_args=limits | driver_args, **arguments
        )
        event.listen(engine.sync_engine, "handle_error", hide_values)
    else:
        # The driver begins transactions only before some statements, so we begin them ourselves.
        ours = {"isolation_level": None, "async_creator_fn": sqlite_connection}
        # All connections may wait for one writer.
        engine = create_async_engine(url, connect_args=ours, **arguments | {"pool_timeout": BUSY_MS / 1000})
        _prepare_sqlite(engine, [f"busy_timeout={BUSY_MS}", "synchronous=FULL", "secure_delete=ON", *sqlite_pragmas])
    limit_waiting(engine)
    return engine


def _prepare_sqlite(engine: AsyncEngine, pragmas: Sequence[str]) -> None:
    # The driver looks for what converts a None in vain, and makes an error of it, each time that it is given one.
    sqlite3.register_adapter(type(None), lambda nothing: nothing)

    @event.listens_for(engine.sync_engine, "connect")
    def set_pragmas(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        for pragma in pragmas:
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def begin(connection: Connection) -> None:
        statement = connection.get_execution_options().get("sqlite_begin", "BEGIN")
        if statement is not None:
            connection.exec_driver_sql(statement)


async def _run_alembic(url: URL, way: Literal["upgrade", "downgrade"], revision: str) -> None:
    # Imported here: most starts find the newest schema, and need none of it.
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    from migrations.tables import create_schema

    config = Config()
    # Escape percent signs, which would be read as interpolation.
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))

    def run_on(connection: Connection) -> None:
        config.attributes["connection"] = connection
        if way == "downgrade":
            command.downgrade(config, revision)
        elif _revision_of(connection) is None:
            create_schema(connection)
            command.stamp(config, revision)
        else:
            command.upgrade(config, revision)

    try:
        async with _locked_connection(url) as connection:
            await connection.run_sync(run_on)
    except CommandError as error:
        raise SchemaError(
            f"cannot migrate {_plain_url(url)}: {error}. This version of AIO knows revisions up to "
            f"{head_revision()}; install the version that wrote the database, or restore a backup"
        ) from error


@asynccontextmanager
async def _locked_connection(url: URL) -> AsyncIterator[AsyncConnection]:
    """Open a transaction that excludes every other migration of this database."""
    # Switching to WAL does not wait for other connections, so do it only here, under the lock file; it is permanent.
    # With foreign keys on, rebuilding a table would cascade to its children.
    # A revision may take as long as it takes.
    engine = _engine(url, sqlite_pragmas=("journal_mode=WAL", "foreign_keys=OFF"), statement_seconds=None)
    try:
        if url.get_backend_name() == "postgresql":
            async with engine.begin() as connection:
                await connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": _MIGRATION_LOCK})
                yield connection
        else:
            async with _sqlite_lock_file(Path(str(url.database))), writing_first(engine).begin() as connection:
                yield connection
    finally:
        await engine.dispose()


@asynccontextmanager
async def _sqlite_lock_file(database: Path) -> AsyncIterator[None]:
    database.parent.mkdir(parents=True, exist_ok=True)
    with database.with_name(database.name + ".migrate-lock").open("wb") as lock:
        # Released by the kernel when the process dies.
        await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
        yield
