"""The traffic over time as it was last read from the database, one reading for all viewers."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from sqlalchemy.exc import SQLAlchemyError

from quality.estimates.traffic import SPANS, Span, Traffic

# A page does not wait longer for a database that hangs.
WAIT_SECONDS = 1.0
# A span is not read again sooner, and takes no more of the time than this share.
FRESH_SECONDS, SHARE = 10.0, 0.02


class TrafficReadings:
    """Reads each span when it is looked at: once at a time, and never in a request's way."""

    def __init__(self, read: Callable[[Span], Awaitable[Traffic]], clock: Callable[[], float] = time.monotonic) -> None:
        self._read, self._clock = read, clock
        self._known: dict[Span, Traffic] = {}
        self._fresh_until = dict.fromkeys(SPANS, float("-inf"))
        self._reading: dict[Span, asyncio.Task[None]] = {}

    async def look(self, span: Span) -> Traffic | None:
        """Return the traffic; what was last read if the database is slow, and None if nothing was."""
        if span not in self._reading and self._clock() >= self._fresh_until[span]:
            self._reading[span] = asyncio.create_task(self._renew(span))
        if (reading := self._reading.get(span)) is not None:
            await asyncio.wait([reading], timeout=WAIT_SECONDS)
        return self._known.get(span)

    async def close(self) -> None:
        """Stop what is being read."""
        tasks = list(self._reading.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _renew(self, span: Span) -> None:
        began = self._clock()
        try:
            self._known[span] = await self._read(span)
        except (SQLAlchemyError, OSError):
            pass  # The page says that there are no figures, or shows the older ones with their time.
        finally:
            ended = self._clock()
            self._fresh_until[span] = ended + max(FRESH_SECONDS, (ended - began) / SHARE)
            del self._reading[span]
