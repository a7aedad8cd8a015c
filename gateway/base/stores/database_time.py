"""The database's time, so that a step of this machine's clock moves no period and no expiry."""

import logging
import time
from collections.abc import Callable

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

log = logging.getLogger(__name__)

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
