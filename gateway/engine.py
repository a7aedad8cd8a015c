"""The tiers of a process and the core behind them: in this process, in another one, or not needed at all."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from gateway.retries import background, until_it_works
from gateway.settings import Settings
from inference_core.client import CoreClient
from inference_core.errors import CoreError
from tiers.build import build_tiers
from tiers.catalog import Catalog
from tiers.core_spec import core_spec
from tiers.quality_gate import require_quality
from tiers.tier import Tier

log = logging.getLogger(__name__)

WATCH_SECONDS = 1.0


class Engine:
    """What serves: the tiers, and the client of their core if there is one."""

    def __init__(self, tiers: Sequence[Tier], core: CoreClient | None, not_ready: dict[str, str]) -> None:
        self.tiers = {tier.number: tier for tier in tiers}
        self.core = core
        self._not_ready = not_ready

    async def start(self) -> None:
        """Connect to the core, then start every tier; what already runs stays as it is."""
        if self.core is not None:
            await self.core.start()
        for tier in self.tiers.values():
            await tier.start()

    async def stay_connected(self) -> None:
        """Connect to a core in another process, now and whenever the connection was lost."""
        assert self.core is not None
        while True:
            await until_it_works(self.start, "core", self._not_ready, WATCH_SECONDS)
            try:
                while True:
                    await self.core.stats()
                    await asyncio.sleep(WATCH_SECONDS)
            except CoreError as error:
                self._not_ready["core"] = str(error)
                log.warning("lost the core: %s", error)

    async def close(self) -> None:
        """Stop the tiers, then leave the core."""
        for tier in self.tiers.values():
            await tier.close()
        if self.core is not None:
            await self.core.close()


@asynccontextmanager
async def running_engine(
    settings: Settings,
    catalog: Catalog,
    tiers: Sequence[Tier] | None,
    not_ready: dict[str, str],
    core: CoreClient | None = None,
) -> AsyncIterator[Engine]:
    """The engine of this process, started; `tiers` and `core` replace the catalogue's own, as tests do.

    In the role `all` a core that cannot load stops the start, with the reason; in the role `gateway` the process serves
    503 until its core is there.
    """
    if tiers is None:
        core = core or _core_client(settings, catalog)
        tiers = build_tiers(catalog, core)
    engine = Engine(tiers, core, not_ready)
    try:
        if settings.role == "gateway" and core is not None:
            not_ready["core"] = "not connected yet"
            async with background(engine.stay_connected()):
                yield engine
        else:
            await engine.start()
            yield engine
    finally:
        await engine.close()


def _core_client(settings: Settings, catalog: Catalog) -> CoreClient | None:
    if not catalog.core.models:
        return None
    if settings.role == "gateway":
        from inference_core.socket_transport import SocketCoreClient

        return SocketCoreClient(settings.socket_path)
    require_quality(catalog, settings.cache_path)
    from inference_core.core_loop import SteppingCore, ThreadCoreClient

    def load() -> SteppingCore:
        # Imported on the core's thread: torch takes seconds, and a gateway process must never need it.
        from inference_core.loading import load_core

        return load_core(core_spec(catalog), settings.cache_path, knobs_file=settings.knobs_path)

    return ThreadCoreClient(load, watchdog_seconds=catalog.core.watchdog_seconds)
