"""What is read of a running gateway for others to see: by a scrape, by the overview and by alerts."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

from gateway.base.settings import Settings
from gateway.base.stores.retries import background
from gateway.batches.jobs import Jobs
from gateway.inference.cache.stores import AnswerStore, MemoryStore
from gateway.inference.service import Service
from gateway.operations.quality_loop.quality_loop import QualityLoop
from gateway.runtime.cores.engine import Engine
from gateway.runtime.peers.peers import Peers
from gateway.telemetry.metrics.background_readings import BackgroundReadings, Reading
from gateway.telemetry.metrics.metrics import Metrics
from gateway.telemetry.objectives.alert_figures import alert_figures
from gateway.telemetry.objectives.alert_rules import AlertInputs, Figure
from gateway.telemetry.objectives.service_levels import levels_of_all
from quality.ledger.ledger import Ledger


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
        readings["quality"] = partial(loop.show, metrics)
    figures = BackgroundReadings(readings)

    async def refresh() -> None:
        await figures.begin()
        status = ledger.status()
        metrics.ledger_lag.set(status.appended + status.adopted - status.stored - status.rejected)
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
    settings: Settings, metrics: Metrics, engine: Engine, peers: Peers | None, loop: QualityLoop | None
) -> AsyncIterator[None]:
    """Call the webhook of `settings`, if there is one; one process behind a port does so for all."""

    async def figures() -> AlertInputs:
        await metrics.read_cores(engine.cores)
        await metrics.read_gpus()
        levels = await levels_of_all(metrics.levels, peers)
        days = None if loop is None else loop.days_without_retraining()
        return alert_figures(levels, metrics.core.stats, engine.tiers.values(), metrics.gpus.readings, days)

    def why(figure: Figure) -> str | None:
        return loop.last_retrainings() if loop is not None and figure == "retraining_days" else None

    if not settings.alert_webhook or (peers is not None and peers.place.number):
        yield
        return
    from gateway.telemetry.objectives.alerts import keep_looking

    async with background(partial(keep_looking, settings, figures, why=why), "alerts"):
        yield
