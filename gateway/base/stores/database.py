"""The database as requests see it: its outages and faults, a line in the log when one begins and one when it ends, not
one by each of its users; what callers are answered while it is down; and its time, so that a step of this machine's
clock moves no period and no expiry."""

import asyncio
import logging
import os
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, TypeVar

from sqlalchemy import event, inspect, text, update
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.base.errors import ApiError, bad_request
from gateway.base.logs import OF_OUTAGE
from migrations.tables.columns import metadata
from migrations.tables.tenancy import tenancy_state
from quality.store.database import RESTORE, DatabaseFault, away_reason, blames_data, fault_of, is_away, writing_first

log = logging.getLogger(__name__)


_SQLITE_HEAD = b"SQLite format 3\0"


class DatabaseOutages:
    """Watches an engine: a server of PostgreSQL may be away, a file of SQLite locked by another process that writes or
    replaced by another file; and either database may be damaged, incomplete, or on a full disk.

    The first error of an outage or fault is logged, of locks one in `LOCKED_SECONDS`; it and all others are marked, so
    that further lines about them are left out of the log (`log_format.OF_OUTAGE`). An outage ends with the next
    connection that works, a fault when `follow` has found the database whole and written to it. Damage lasts until
    this process ends.
    """

    LOCKED_SECONDS: Final = 60.0
    CALM_SECONDS: Final = 10.0
    """Without an error, before a fault may be over: on a full disk a small transaction may find room, a larger none."""
    LEAST_FREE: Final = 1 << 20
    """Bytes of SQLite's disk."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine, self._name = engine, engine.url.render_as_string()
        self._since: float | None = None
        self._fault: DatabaseFault | None = None
        self._failed_at = 0.0
        self._was_file = self._was_whole = False
        self._file: int | None = None
        """A descriptor of SQLite's file as it was at first."""
        event.listen(engine.sync_engine, "handle_error", self._failed)
        self._is_server = engine.dialect.name == "postgresql"
        if self._is_server:
            # Before a connection is made, lost, and given to somebody after it has been tested.
            event.listen(engine.sync_engine, "do_connect", self._connect)
            event.listen(engine.sync_engine, "handle_error", self._lost)
            event.listen(engine.sync_engine, "checkout", self._works)
            # Of this there is no event where the server hangs.
            dialect: Any = engine.dialect
            dialect.do_ping = partial(self._ping, dialect.do_ping)
        else:
            event.listen(engine.sync_engine, "handle_error", self._locked)

    @property
    def is_away(self) -> bool:
        """Whether a server is; of a file only locks are known, which pass."""
        return self._is_server and self._since is not None

    @property
    def problem(self) -> str | None:
        """What is wrong with the database now, and what to do; None if nothing is known."""
        if self.is_away:
            return "it is away: records wait in the journal"
        return None if self._fault is None else self._fault.says

    def note(self, error: Exception) -> None:
        """Note an error of the database; one that says neither that it is away nor of a fault changes nothing."""
        if (fault := fault_of(error)) is not None and self._takes(fault):
            _mark(error)
        if fault is not None or not is_away(error):
            return
        if self._since is None:
            self._since = time.monotonic()
            log.warning(
                "the database %s is away (%s): requests are served, records wait in the journal; until it is back its"
                " errors are logged at level debug only",
                self._name,
                away_reason(error),
            )
        # After the line, which would be left out as well.
        _mark(error)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note the error with which the block ends: of work on a connection that is not of the engine."""
        try:
            yield
        except Exception as error:
            self.note(error)
            raise

    async def follow(self, seconds: float) -> None:
        """Every `seconds`, look whether all tables are there, SQLite's file is the one that was opened, and whether a
        fault is over."""
        while True:
            if (fault := await self._looked_for()) is not None:
                self._note_fault(fault)
            elif self._fault is not None and self._fault.kind != "damaged":
                is_calm = time.monotonic() - self._failed_at > self.CALM_SECONDS
                if is_calm and await self._is_writable() and self._fault is not None:
                    log.info("the database %s works again", self._name)
                    self._fault = None
            await asyncio.sleep(seconds)

    async def _looked_for(self) -> DatabaseFault | None:
        """What is wrong though no statement has failed."""
        # On a thread: the disk may not answer.
        if not self._is_server and (fault := await asyncio.to_thread(self._fault_of_file)) is not None:
            return fault
        try:
            async with self._engine.connect() as connection:
                tables = await connection.run_sync(lambda plain: set(inspect(plain).get_table_names()))
        except (SQLAlchemyError, OSError):
            # Noted where it was raised.
            return None
        missing = sorted(metadata.tables.keys() - tables)
        self._was_whole |= not missing
        # Else the schema is not made yet.
        if not missing or not (self._was_whole or "alembic_version" in tables):
            return None
        return DatabaseFault("incomplete", f"a table is missing ({', '.join(missing[:3])}): {RESTORE}")

    def _fault_of_file(self) -> DatabaseFault | None:
        """What is written to a file that has lost its name is lost when the process ends. Pages in memory hide that the
        file has other contents."""
        path = self._engine.url.database or ""
        try:
            named = os.stat(path)
            if self._file is None:
                # Open until the end: to close any descriptor of the file drops the locks that SQLite has on it.
                self._file = os.open(path, os.O_RDONLY)
            held, is_whole = os.fstat(self._file), os.pread(self._file, len(_SQLITE_HEAD), 0) == _SQLITE_HEAD
        except OSError as error:
            symptom = f"its file is gone ({error.strerror})"
        else:
            self._was_file |= is_whole
            is_same = (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino)
            if is_same and not is_whole and self._was_file:
                return DatabaseFault("damaged", f"it is damaged (its file is none of SQLite): {RESTORE}")
            if is_same:
                return None
            symptom = "its file was replaced while this server uses it"
        return DatabaseFault("incomplete", f"{symptom}: {RESTORE}") if self._was_file else None

    def close(self) -> None:
        """Let go of SQLite's file, once no connection of this process has it open."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    async def _is_writable(self) -> bool:
        try:
            if not self._is_server:
                disk = await asyncio.to_thread(os.statvfs, os.path.dirname(self._engine.url.database or "") or ".")
                if disk.f_bavail * disk.f_frsize < self.LEAST_FREE:
                    return False
            async with writing_first(self._engine).begin() as connection:
                same = update(tenancy_state).values(revision=tenancy_state.c.revision)
                return (await connection.execute(same)).rowcount == 1
        except (SQLAlchemyError, OSError):
            return False

    def _failed(self, context: ExceptionContext) -> None:
        if (fault := fault_of(context.original_exception)) is not None and self._takes(fault):
            _mark(context.original_exception)
            _mark(context.sqlalchemy_exception)

    def _takes(self, fault: DatabaseFault) -> bool:
        """Note a fault that a statement met. A table may be missing because the schema is not made yet: `follow` says
        whether it was there."""
        if fault.kind == "incomplete" and self._fault is None:
            return False
        self._note_fault(fault)
        return True

    def _note_fault(self, fault: DatabaseFault) -> None:
        """Log what is new. Of a damaged database further errors say less."""
        self._failed_at = time.monotonic()
        if self._fault is not None and self._fault.kind in ("damaged", fault.kind):
            return
        self._fault = fault
        log.error(
            "the database %s: %s. What does not need it is served, records wait in the journal; further errors of this"
            " kind are logged at level debug only",
            self._name,
            fault.says,
        )

    def _connect(self, dialect: Any, _record: object, arguments: list[Any], named: dict[str, Any]) -> Any:
        with self.noted():
            return dialect.connect(*arguments, **named)

    def _ping(self, ping: Callable[[Any], bool], connection: Any) -> bool:
        try:
            return ping(connection)
        except OSError as error:
            self.note(error)
            raise

    def _lost(self, context: ExceptionContext) -> None:
        if context.is_disconnect:
            for error in (context.sqlalchemy_exception, context.original_exception):
                if isinstance(error, Exception):
                    self.note(error)

    def _locked(self, context: ExceptionContext) -> None:
        code = getattr(context.original_exception, "sqlite_errorcode", None)
        if code is None or code & 0xFF != sqlite3.SQLITE_BUSY:
            return
        now = time.monotonic()
        if self._since is None or now - self._since > self.LOCKED_SECONDS:
            self._since = now
            log.warning(
                "another process has been writing to the database %s for seconds, so parts of this one wait; they try"
                " again, and their errors are logged at level debug only",
                self._name,
            )
        _mark(context.original_exception)
        _mark(context.sqlalchemy_exception)

    def _works(self, *_connection: object) -> None:
        if self._since is not None:
            log.info("the database is back after %.1f s", time.monotonic() - self._since)
            self._since = None


def _mark(error: BaseException | None) -> None:
    # Some built-in errors take no attributes.
    with suppress(AttributeError):
        setattr(error, OF_OUTAGE, True)


T = TypeVar("T")


async def reached(answer: Awaitable[T]) -> T:
    """Return the database's answer. Raises `ApiError`: 503 while it is down, 400 for values that it cannot hold."""
    try:
        return await answer
    except (SQLAlchemyError, OSError, OverflowError) as error:
        if blames_data(error):
            raise bad_request("A value is out of the range that the database holds.", None, "invalid_value") from error
        raise ApiError(503, "The database is down. Try again later.", code="database_unavailable") from error


Clock = Callable[[], float]

MOST_BACK_SECONDS = 60.0
"""How far back the time goes where its source does: corrections are followed. A jump beyond it would begin a period of
a budget again, of which nothing is spent, and revive keys that have ended."""


class DatabaseTime:
    """UTC epoch seconds as last read from the database, continued by this machine's monotonic clock.

    SQLite has no clock: there it is this machine's at the last look. `wall` and `monotonic` in seconds. A source that
    jumps back by more than `MOST_BACK_SECONDS` is not followed until it has caught up, or the process starts again.
    """

    def __init__(self, wall: Clock = time.time, monotonic: Clock = time.monotonic) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._ahead = wall() - monotonic()
        self._looked = self._jumped = False

    def now(self) -> float:
        """Epoch seconds."""
        return self._monotonic() + self._ahead

    async def look(self, connection: AsyncConnection) -> float:
        """Read the database's time and use it from now on, unless it has jumped back; return the time that is used."""
        is_clock = connection.dialect.name == "postgresql"
        now = self._wall()
        if is_clock:
            now = float(await connection.scalar(text("SELECT extract(epoch FROM clock_timestamp())")) or now)
        back = self.now() - now
        # This machine's clock may be ahead of the database's at the first look.
        if back > MOST_BACK_SECONDS and (self._looked or not is_clock):
            if not self._jumped:
                log.warning(
                    "the clock of %s went back by %.0f s: budgets, keys and limits keep the time before, until it has "
                    "caught up or this process starts again",
                    "the database" if is_clock else "this machine", back,
                )  # fmt: skip
            self._jumped = True
            return self.now()
        self._looked, self._jumped = True, False
        self._ahead = now - self._monotonic()
        return now

    async def lease_clock(self, connection: AsyncConnection) -> float:
        """Return seconds on a clock shared by all processes of this database, by which leases expire: PostgreSQL's, or
        the machine's monotonic one with SQLite, whose processes are all on one machine."""
        if connection.dialect.name == "postgresql":
            return await self.look(connection)
        return self._monotonic()
