"""The database's time, so that a step of this machine's clock moves no period and no expiry."""

import time
from collections.abc import Callable

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

Clock = Callable[[], float]


class DatabaseTime:
    """UTC epoch seconds as last read from the database, continued by this machine's monotonic clock.

    SQLite has no clock: there it is this machine's at the last look. `wall` and `monotonic` in seconds.
    """

    def __init__(self, wall: Clock = time.time, monotonic: Clock = time.monotonic) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._ahead = wall() - monotonic()

    def now(self) -> float:
        """Epoch seconds."""
        return self._monotonic() + self._ahead

    async def look(self, connection: AsyncConnection) -> float:
        """Read the database's time and use it from now on."""
        now = self._wall()
        if connection.dialect.name == "postgresql":
            now = float(await connection.scalar(text("SELECT extract(epoch FROM clock_timestamp())")) or now)
        self._ahead = now - self._monotonic()
        return now

    async def lease_clock(self, connection: AsyncConnection) -> float:
        """Return seconds on a clock shared by all processes of this database, by which leases expire: PostgreSQL's, or
        the machine's monotonic one with SQLite, whose processes are all on one machine."""
        if connection.dialect.name == "postgresql":
            return await self.look(connection)
        return self._monotonic()
