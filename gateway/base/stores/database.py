"""The database as requests see it: its outages, a line in the log when one begins and one when it ends, not one by
each of its users; what callers are answered while it is down; and its time, so that a step of this machine's clock
moves no period and no expiry."""

import logging
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, TypeVar

from sqlalchemy import event, text
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.base.errors import ApiError, bad_request
from gateway.base.logs import OF_OUTAGE
from quality.store.database import away_reason, blames_data, is_away

log = logging.getLogger(__name__)


class DatabaseOutages:
    """Watches an engine: a server of PostgreSQL may be away, a file of SQLite locked by another process that writes.
    What else fails of a file, such as a full disk, fails one statement.

    The first error of an outage is logged, of locks one in `LOCKED_SECONDS`; it and all others are marked, so that
    further lines about them are left out of the log (`log_format.OF_OUTAGE`). An outage ends with the next connection
    that works.
    """

    LOCKED_SECONDS: Final = 60.0

    def __init__(self, engine: AsyncEngine) -> None:
        self._name = engine.url.render_as_string()
        self._since: float | None = None
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

    def note(self, error: Exception) -> None:
        """Note an error of the database; one that does not say that it is away changes nothing."""
        if not is_away(error):
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
