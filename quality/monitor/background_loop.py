"""A background loop over stored work: woken when there is some, polling otherwise, and not ended by errors."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from inference_core.io.background_tasks import is_cancelled, repeated

log = logging.getLogger(__name__)

Step = Callable[[], Awaitable[bool]]


class WorkLoop:
    """Calls `step` until it returns False (nothing to do), then waits for `nudge` or `poll_seconds`.

    An exception of `step` is logged and counts as "nothing to do": an unavailable database must not end the loop.
    """

    def __init__(self, name: str, step: Step, poll_seconds: float) -> None:
        self.name = name
        self._step = step
        self._poll_seconds = poll_seconds
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start. Idempotent."""
        if self._task is None:
            self._task = repeated(self._run, self.name)

    async def close(self) -> None:
        """Cancel the running step and stop. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    def nudge(self) -> None:
        """Wake the loop: there may be work."""
        self._idle.clear()
        self._wake.set()

    async def drain(self) -> None:
        """Wait until a `step` that started after this call found nothing to do. Raises RuntimeError if not running."""
        if self._task is None:
            raise RuntimeError(f"{self.name} is not running; call start() first")
        self.nudge()
        idle = asyncio.create_task(self._idle.wait())
        await asyncio.wait({idle, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if not idle.done():
            idle.cancel()
            raise RuntimeError(f"{self.name} was stopped")

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                while await self._step():
                    pass
            except Exception as error:
                if is_cancelled():
                    raise asyncio.CancelledError from error
                log.exception("%s could not work; it tries again within %s s", self.name, self._poll_seconds)
            if not self._wake.is_set():
                self._idle.set()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), self._poll_seconds)
