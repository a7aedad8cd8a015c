"""Noticing that a reader takes nothing, for whom an answer, and a remote tier behind it, would wait for ever."""

import asyncio
import logging
import time

log = logging.getLogger(__name__)


class ReaderWatch:
    """Cancels the task that made it once what it `waits` to hand over has not been `taken` for `seconds`.

    One timer at a time serves a stream of any length; an event costs a look at the clock.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: float | None = None
        self._stalled = False
        self._served = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(seconds, self._look)

    def waits(self) -> None:
        """Something is on its way to the reader from now on."""
        self._since = time.monotonic()

    def taken(self) -> None:
        """The connection has room again."""
        self._since = None

    def end(self) -> None:
        """Watch no longer. Idempotent."""
        self._timer.cancel()

    def is_reason(self, error: BaseException) -> bool:
        """Whether `error` is the cancellation by which the reader's sloth ended the stream; it is then dealt with."""
        if not (self._stalled and isinstance(error, asyncio.CancelledError)):
            return False
        if self._served is not None:
            self._served.uncancel()
        return True

    def _look(self) -> None:
        waited = 0.0 if self._since is None else time.monotonic() - self._since
        if waited < self._seconds:
            self._timer = self._loop.call_later(self._seconds - waited, self._look)
        elif self._served is not None:
            log.info("a stream's reader took nothing for %g s and is given up", self._seconds)
            self._stalled = True
            self._served.cancel()
