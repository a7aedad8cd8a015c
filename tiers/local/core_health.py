"""The latest statistics of a core, polled in the background and shared by its tiers."""

import asyncio
import contextlib

from inference_core.errors import CoreError
from inference_core.io.background_tasks import repeated
from inference_core.protocol import CoreStats, ModelStats
from inference_core.transport.client import CoreClient


class CoreWatch:
    """Polls the statistics of `core` every `interval` seconds while at least one tier has opened it."""

    def __init__(self, core: CoreClient, interval: float = 0.5) -> None:
        self._answers = False
        self._core, self._interval = core, interval
        self._latest: CoreStats | None = None
        self._task: asyncio.Task[None] | None = None
        self._users = 0

    async def open(self) -> None:
        """Start polling; return when the first statistics are there. Raises CoreGoneError."""
        if self._latest is None:
            await self._refresh()
        self._users += 1
        if self._task is None:
            self._task = repeated(self._watch, "figures of a core")

    async def close(self) -> None:
        """Undo one `open`; the last one stops polling."""
        self._users -= 1
        if self._users == 0:
            await self.stop()

    async def stop(self) -> None:
        """Stop polling, however many have opened it. Idempotent."""
        if self._task is not None:
            task, self._task, self._latest = self._task, None, None
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    @property
    def healthy(self) -> bool:
        """Whether the core answered the last poll, is connected, and is not stuck according to its watchdog."""
        return self._answers and self._core.gone is None and self._core.stuck is None

    def note_gone(self) -> None:
        """Note that a request found the core gone."""
        self._answers = False

    def model(self, name: str) -> ModelStats | None:
        """Return the latest statistics of one model, or None."""
        models = self._latest.models if self._latest is not None else []
        return next((m for m in models if m.name == name), None)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            with contextlib.suppress(CoreError):
                await self._refresh()

    async def _refresh(self) -> None:
        try:
            self._latest = await self._core.stats()
            self._answers = True
        except CoreError:
            self._answers = False
            raise
