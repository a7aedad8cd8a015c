"""What is read of a running gateway for others to see: by a scrape, by the overview and by alerts. A scrape shows
figures of cores, GPUs and the database but does not wait for them: any of these may hang.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.base.settings import Settings
from gateway.base.stores.retries import background
from gateway.batches.jobs import Jobs
from gateway.inference.answer_stores import AnswerStore, MemoryStore
from gateway.inference.service import Service
from gateway.operations.constant_tier import ConstantFollower
from gateway.operations.labels.loop_setup import show_loop
from gateway.runtime.cores.engine import Engine
from gateway.runtime.peers import Peers
from gateway.telemetry.alert_rules import AlertInputs, Figure, alert_figures
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.service_levels import levels_of_all
from quality.ledger.ledger import Ledger
from quality.quality_loop import QualityLoop

if TYPE_CHECKING:
    from quality.estimates.costs import KeyCost

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
        tasks = {name: asyncio.ensure_future(self._read(name)) for name in self._readings if name not in self._running}
        for name, task in tasks.items():
            self._running[name] = task
            task.add_done_callback(lambda _, name=name: self._running.pop(name, None))  # type: ignore[misc]
        if tasks:
            await asyncio.wait(tasks.values(), timeout=PATIENCE_SECONDS)

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


KEY_COST_SECONDS = 300.0


@asynccontextmanager
async def running_readings(
    metrics: Metrics,
    engine: Engine,
    jobs: Jobs,
    loop: QualityLoop | None,
    ledger: Ledger,
    service: Service,
    answers: AnswerStore,
) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Yields what is awaited before every scrape. `answers`: of the response cache."""
    cores = partial(metrics.read_cores, engine.cores)
    readings: dict[str, Reading] = {"cores": cores, "GPUs": metrics.read_gpus, "batches": jobs.show}
    if loop is not None:
        readings["quality"] = partial(show_loop, loop, metrics)
    figures = BackgroundReadings(readings)

    async def refresh() -> None:
        await figures.begin()
        status = ledger.status()
        metrics.ledger_lag.set(status.appended + status.adopted - status.stored - status.rejected)
        metrics.journal_lost.set(status.lost)
        metrics.journal_lag.set(status.journal_lag_seconds)
        metrics.in_flight.set(service.in_flight)
        if isinstance(answers, MemoryStore):
            metrics.show_cache(len(answers), answers.bytes)

    try:
        yield refresh
    finally:
        if metrics.exporters is not None:
            await metrics.exporters.aclose()
        await figures.close()


@asynccontextmanager
async def running_alerts(
    settings: Settings,
    metrics: Metrics,
    engine: Engine,
    peers: Peers | None,
    loop: QualityLoop | None,
    database: AsyncEngine,
    labels: Callable[[], str | None],
    constant: ConstantFollower,
) -> AsyncIterator[None]:
    """Tell the channels of `settings`, if any; one process behind a port does so for all. `labels`: their source."""

    costs = _KeyCosts(database)

    async def figures() -> AlertInputs:
        await metrics.read_cores(engine.cores)
        await metrics.read_gpus()
        levels = await levels_of_all(metrics.levels, peers)
        days = None if loop is None else loop.days_without_retraining()
        return alert_figures(
            levels, metrics.core.stats, engine.tiers.values(), metrics.gpus.readings, days, await costs.look()
        )

    def why(figure: Figure) -> str | None:
        if figure == "key_cost_of_week":
            return None if costs.dearest is None else costs.dearest.text
        return loop.last_retrainings() if loop is not None and figure == "retraining_days" else None

    if not settings.alerts_somewhere or (peers is not None and peers.worker.number):
        yield
        return
    from gateway.operations.alert_causes import RunningCauses
    from gateway.telemetry.alerts import keep_looking

    causes = RunningCauses(settings, database, lambda: list(engine.tiers.values()), labels, constant)
    async with background(partial(keep_looking, settings, figures, causes.look, database, why=why), "alerts"):
        yield


class _KeyCosts:
    """The key whose requests have become dearest, read from a week of records every `KEY_COST_SECONDS`."""

    def __init__(self, database: AsyncEngine) -> None:
        self._database = database
        self._until = 0.0
        self.dearest: KeyCost | None = None

    async def look(self) -> float | None:
        """Return how many times as much its requests cost. While the database is away it is the last one known."""
        # Imported here: without a channel nothing is read.
        from quality.estimates.costs import dearest_key

        if time.monotonic() >= self._until:
            try:
                self.dearest = await dearest_key(self._database, time.time())
            except (SQLAlchemyError, OSError) as error:
                log.warning("what keys cost cannot be read: %s", type(error).__name__)
            self._until = time.monotonic() + KEY_COST_SECONDS
        return None if self.dearest is None else self.dearest.ratio
