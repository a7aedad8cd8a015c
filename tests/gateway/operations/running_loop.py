"""A quality loop over scripted tiers and a database of its own, as a test needs it."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.base.settings import Settings
from gateway.operations.labels.loop_setup import quality_loop
from quality.monitor.answer_monitor import AnswerMonitor
from quality.quality_loop import QualityLoop
from tests.support.app import scripted_tiers
from tests.support.database import migrated
from tiers.catalog.catalog import Catalog, CatalogInUse
from tiers.catalog.load import load_catalog
from tiers.tier import Tier


@asynccontextmanager
async def made_loop(
    settings: Settings, tiers: Mapping[int, Tier] | None = None, catalog: Catalog | None = None
) -> AsyncIterator[tuple[QualityLoop, AsyncEngine]]:
    """One of the laptop's catalogue, unless another is given, with its database; it has not started."""
    async with migrated(settings.database) as engine:
        own = {tier.number: tier for tier in scripted_tiers()} if tiers is None else tiers
        loop = quality_loop(settings, CatalogInUse(catalog or load_catalog("laptop")), engine, own, encode=None)
        try:
            yield loop, engine
        finally:
            await loop.close()


@asynccontextmanager
async def running_loop(
    settings: Settings, tiers: Mapping[int, Tier] | None = None, catalog: Catalog | None = None
) -> AsyncIterator[tuple[QualityLoop, AnswerMonitor, AsyncEngine]]:
    """The same, started, with its monitor."""
    async with made_loop(settings, tiers, catalog) as (loop, engine):
        await loop.start()
        assert loop.monitor is not None
        yield loop, loop.monitor, engine
