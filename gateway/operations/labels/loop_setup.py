"""The quality loop as this deployment runs it: what its settings say, which answers it is offered, and the figures that
it shows. The loop itself is `quality.quality_loop`.
"""

import logging
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial

import msgspec
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.registry.registry import ArtefactRegistry
from gateway.base.inference_request import InferenceRequest
from gateway.base.settings import Settings
from gateway.base.stores.retries import background, retry_until_success
from gateway.inference.answer import Answer
from gateway.inference.class_prior import tier_prior
from gateway.inference.routing_knobs import objective_of
from gateway.operations.labels.label_sources import MACHINE_SHARE, cold_start_cap, has_idle_time, judging_cap
from gateway.telemetry.metrics import Metrics
from quality.monitor.worker import MonitorSettings
from quality.quality_loop import LoopSettings, QualityLoop
from quality.records.record import Record
from quality.records.redaction import RedactText
from quality.retraining.retrain import RetrainSettings
from quality.rollout.rollout import RolloutSettings
from quality.verification.comparison import VerifiedComparison
from quality.verification.job import exchange_of, failed_calls
from quality.verification.sampling import Purpose, SamplingSettings, sampling_of
from quality.verification.training_rows import Encode
from tiers.catalog.catalog import Catalog, CatalogInUse
from tiers.deltas import CollectedChoice
from tiers.tier import Tier

log = logging.getLogger(__name__)

# In each process: labels soon, and no more of a provider's rate than that. Models of one's own answer several at a time
# nearly as fast as one, and for idle time all first requests are probes, whose reference serves for every tier.
PARALLEL_VERIFICATIONS, PARALLEL_IN_IDLE_TIME = 2, 8
PROBES_IN_IDLE_TIME = 100

ToCompareAnswer = Callable[[InferenceRequest, CollectedChoice, Record, Purpose], VerifiedComparison | None]
"""Return the cheap tiers whose answers the verification of a request compares."""


def retrain_settings(settings: Settings, catalog: Catalog) -> RetrainSettings:
    """Whose outcomes the stored rows are (the catalogue's models, by tier), and how a candidate is rolled out."""
    models: list[str | None] = [spec.model_name for spec in catalog.tiers]
    return RetrainSettings(
        catalogue_fingerprint=catalog.fingerprint,
        models={catalog.name: models},
        tiers=catalog.tier_fingerprints,
        prior=tier_prior(catalog, settings.data_path),
        serving=objective_of(settings, catalog),
        rollout=RolloutSettings(share=settings.canary_share, days=settings.canary_days),
        keys_are_tenants=settings.keys_are_tenants,
    )


def sampling_settings(settings: Settings, catalog: Catalog) -> SamplingSettings:
    sampling = sampling_of(
        len(catalog.tiers),
        settings.sampling_rate,
        settings.verification_budget,
        cold_start_cap(settings, catalog),
        settings.verification_most_usd,
    )
    if has_idle_time(settings, catalog) and sampling.first_probes:
        # Where nothing is on a bill, no tenant spends money.
        sampling = msgspec.structs.replace(sampling, first_probes=PROBES_IN_IDLE_TIME, start_usd=math.inf)
    return sampling


def monitor_settings(settings: Settings, catalog: Catalog) -> MonitorSettings:
    """How answers of a catalogue are sampled and verified."""
    return MonitorSettings(
        sampling=sampling_settings(settings, catalog),
        second_opinions=settings.second_opinions,
        trigger=settings.retrain_trigger,
        parallel=PARALLEL_IN_IDLE_TIME if has_idle_time(settings, catalog) else PARALLEL_VERIFICATIONS,
        machine_share=MACHINE_SHARE,
    )


def quality_loop(
    settings: Settings,
    catalog: CatalogInUse,
    engine: AsyncEngine,
    tiers: Mapping[int, Tier],
    encode: Encode | None,
    redact: RedactText | None = None,
    shadow_share: Callable[[], float] | None = None,
) -> QualityLoop:
    """Return the loop of this process; `running_quality_loop` starts it."""
    of = LoopSettings(
        registry=ArtefactRegistry(settings.registry_path),
        retrain_cron=settings.retrain_cron,
        monitor=partial(monitor_settings, settings),
        retraining=partial(retrain_settings, settings),
        judging_usd=partial(judging_cap, settings),
    )
    return QualityLoop(of, catalog, engine, tiers, encode, redact, shadow_share)


def offer_answer(loop: QualityLoop, to_compare: ToCompareAnswer, answer: Answer, record: Record) -> None:
    """Let the monitor consider a finished request, and take note of earlier calls that failed; before the monitor
    has started, nothing is sampled.

    What an adapter or a grammar shapes cannot be compared with a free answer. A shadow answers once, so that its
    cost says nothing about several choices.
    """
    if (monitor := loop.monitor) is None:
        return
    request = answer.request
    if failed := failed_calls(request.generation):
        monitor.calls_failed(record.key_id, failed)
    if not request.is_comparable:
        monitor.refuse("bound")
    elif record.decision.would_be is not None and not request.is_single:
        monitor.refuse("several choices")
    else:
        choice = answer.choices[0]
        # Not the answer: up to a thousand offers wait, and what made each would wait with it.
        monitor.offer(record, partial(to_compare, request, choice, record), exchange_of(request.generation, choice))


async def show_loop(loop: QualityLoop, metrics: Metrics) -> None:
    """Set the metrics of sampling, second opinions, retrainings and upgrade rates; while the database is down, the
    last two keep their values."""
    if loop.monitor is None:
        return
    metrics.show_opinions(loop.monitor.worker.second_opinions)
    metrics.show_not_sampled(loop.monitor.not_sampled)
    try:
        metrics.show_retraining(await loop.read_standing(), loop.days_without_retraining())
        for tier in loop.monitor.judged_tiers:
            rate = await loop.monitor.upgrade_rate(tier)
            if rate.needs_upgrade.total:
                share = rate.needs_upgrade.count / rate.needs_upgrade.total
                metrics.upgrade_rate.labels(str(tier)).set(share)
    except (SQLAlchemyError, OSError) as error:
        log.warning("upgrade rates and retrainings are unknown: %s", error)


@asynccontextmanager
async def running_quality_loop(loop: QualityLoop) -> AsyncIterator[QualityLoop]:
    """Started in the background, because it needs the database and serving does not; closed at the end."""
    async with background(
        partial(retry_until_success, loop.start, "quality loop", {}, 5.0), "start of the quality loop"
    ):
        try:
            yield loop
        finally:
            await loop.close()
