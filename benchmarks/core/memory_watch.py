"""Samples of what one model of a core holds while a load runs."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from benchmarks.core.contiguous_cache import ContiguousArena
from gateway.planning.load_test.run import CoreTarget
from inference_core.kv_cache.layout import KVLayout
from inference_core.protocol import ModelStats


class MemoryWatch:
    """`running`: sequences at a time; `kv_mb`: megabytes of their keys and values, or of the `reserved` arena."""

    def __init__(
        self, target: CoreTarget, model: str, layout: KVLayout, reserved: ContiguousArena | None = None
    ) -> None:
        self._target = target
        self._model = model
        self._layout = layout
        self._reserved = reserved
        self.running: list[float] = []
        self.kv_mb: list[float] = []

    @contextlib.asynccontextmanager
    async def sampling(self, seconds: float = 0.1) -> AsyncIterator[None]:
        """Take a sample every so many seconds meanwhile."""
        task = asyncio.create_task(self._sample(seconds))
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def stats(self) -> ModelStats:
        """What the core says of the model now."""
        models = (await self._target.client.stats()).models
        return next(model for model in models if model.name == self._model)

    async def _sample(self, seconds: float) -> None:
        while True:
            model = await self.stats()
            paged = model.blocks_in_use * self._layout.block_size
            tokens = paged if self._reserved is None else self._reserved.reserved
            self.running.append(model.running)
            self.kv_mb.append(tokens * self._layout.bytes_per_token / 1e6)
            await asyncio.sleep(seconds)
