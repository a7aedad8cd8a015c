"""Background retries, for dependencies that may start after the gateway."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from inference_core.io.background_tasks import repeated

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 0.1, 10.0
STEADY_SECONDS = 30.0


class RestartPauses:
    """The pauses between the ends of something that is kept running and its next starts.

    They double from `FIRST_PAUSE_SECONDS` to `LAST_PAUSE_SECONDS`, and begin again after `STEADY_SECONDS` without an
    end. `clock`: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = FIRST_PAUSE_SECONDS
        self._began = clock()

    def note_start(self) -> None:
        self._began = self._clock()

    def after_end(self) -> float:
        """Return the seconds to wait before it is started again, as it has ended now."""
        if self._clock() - self._began > STEADY_SECONDS:
            self._next = FIRST_PAUSE_SECONDS
        pause, self._next = self._next, min(2 * self._next, LAST_PAUSE_SECONDS)
        return pause


@asynccontextmanager
async def background(work: Callable[[], Awaitable[object]], name: str) -> AsyncIterator[None]:
    """Run `work()` as a task while the context is open; one that fails is started again (`repeated`)."""
    async with cancelled_at_end(repeated(work, name)):
        yield


@asynccontextmanager
async def cancelled_at_end(task: asyncio.Future[Any]) -> AsyncIterator[None]:
    """Cancel `task`, which somebody awaits, at the end of the context."""
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def look_every(seconds: float, look: Callable[[], Awaitable[object]], what: str, log: logging.Logger) -> None:
    """Await `look()` every `seconds`, at first at once. While the database is away, `log` says once for each reason
    that `what` cannot be read."""
    failure = ""
    while True:
        try:
            await look()
            failure = ""
        except (SQLAlchemyError, OSError) as error:
            if str(error) != failure:
                failure = str(error)
                log.warning("%s cannot be read: %s", what, error)
        await asyncio.sleep(seconds)


async def retry_until_success(
    attempt: Callable[[], Awaitable[object]],
    name: str,
    failures: dict[str, str],
    seconds: float = 1.0,
    *,
    fatal: type[Exception] | tuple[type[Exception], ...] = (),
) -> None:
    """Await `attempt()` every `seconds` until it succeeds; `failures[name]` says why not. Raises `fatal` errors."""
    while True:
        try:
            await attempt()
        except fatal:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            if failures.get(name) != reason:
                told = f"{type(error).__name__}: {getattr(error, 'for_operators', error)}"
                log.warning("%s: %s; trying again every %g s", name, told, seconds)
            failures[name] = reason
            await asyncio.sleep(seconds)
        else:
            if failures.pop(name, None) is not None:
                log.info("%s: works now", name)
            return
