"""Figures as they were last read from the database, one reading for all viewers."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from sqlalchemy.exc import SQLAlchemyError

# A page does not wait longer for a database that hangs.
WAIT_SECONDS = 1.0
# A reading is not repeated sooner, and takes no more of the time than this share.
FRESH_SECONDS, SHARE = 10.0, 0.02
# The oldest readings beyond these are forgotten.
MOST_READINGS = 64

Asked = TypeVar("Asked", bound=Hashable)
Found = TypeVar("Found")


class Readings(Generic[Asked, Found]):
    """Reads what is asked for when it is looked at: once at a time, and never in a request's way."""

    def __init__(self, read: Callable[[Asked], Awaitable[Found]], clock: Callable[[], float] = time.monotonic) -> None:
        self._read, self._clock = read, clock
        self._known: dict[Asked, Found] = {}
        self._fresh_until: dict[Asked, float] = {}
        self._reading: dict[Asked, asyncio.Task[None]] = {}

    async def look(self, asked: Asked) -> Found | None:
        """Return the figures; those last read if the database is slow, and None if nothing was read."""
        if asked not in self._reading and self._clock() >= self._fresh_until.get(asked, float("-inf")):
            self._reading[asked] = asyncio.create_task(self._renew(asked))
        if (reading := self._reading.get(asked)) is not None:
            await asyncio.wait([reading], timeout=WAIT_SECONDS)
        return self._known.get(asked)

    async def close(self) -> None:
        """Stop what is being read."""
        tasks = list(self._reading.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _renew(self, asked: Asked) -> None:
        began = self._clock()
        try:
            self._known[asked] = await self._read(asked)
        except (SQLAlchemyError, OSError):
            pass  # The page says that there are no figures, or shows the older ones.
        finally:
            ended = self._clock()
            self._fresh_until.pop(asked, None)
            self._fresh_until[asked] = ended + max(FRESH_SECONDS, (ended - began) / SHARE)
            del self._reading[asked]
            while len(self._fresh_until) > MOST_READINGS:
                oldest = next(iter(self._fresh_until))
                del self._fresh_until[oldest]
                self._known.pop(oldest, None)
