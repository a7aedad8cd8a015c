"""Figures that a scrape shows but does not wait for: of cores, GPUs and the database, any of which may hang."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 1.0
"""How long a scrape waits for readings that begin with it; it shows the last known figures of the others."""

Reading = Callable[[], Awaitable[None]]


class BackgroundReadings:
    """Runs each of `readings`, by name, at most once at a time."""

    def __init__(self, readings: Mapping[str, Reading]) -> None:
        self._readings = readings
        self._running: dict[str, asyncio.Task[None]] = {}

    async def begin(self) -> None:
        """Begin the readings that are not running, and wait for them a little."""
        begun = {name: asyncio.ensure_future(self._read(name)) for name in self._readings if name not in self._running}
        for name, task in begun.items():
            self._running[name] = task
            task.add_done_callback(lambda _, name=name: self._running.pop(name, None))  # type: ignore[misc]
        if begun:
            await asyncio.wait(begun.values(), timeout=PATIENCE_SECONDS)

    async def close(self) -> None:
        """Stop what is running."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task

    async def _read(self, name: str) -> None:
        try:
            await self._readings[name]()
        except Exception:
            log.exception("figures of %s could not be read", name)
