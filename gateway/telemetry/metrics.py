"""Prometheus metrics: vLLM's names where the meaning is the same, so that its dashboards work, `aio_*` for the rest."""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from gateway.runtime.cores.reading import read_cores
from gateway.telemetry.alert_rules import queues_elsewhere
from gateway.telemetry.core_collector import CoreCollector
from gateway.telemetry.families import ChatQueueMetrics, JobMetrics, LoopLag
from gateway.telemetry.gpus import GpuCollector, Gpus
from gateway.telemetry.refused_requests import RefusedMetrics
from gateway.telemetry.request_metrics import RequestMetrics
from gateway.telemetry.scraped import ReplicaGauges, SloCollector
from gateway.telemetry.service_levels import ServiceLevels
from gateway.telemetry.slo import SloReport, slo_report
from inference_core.transport.client import CoreClient
from quality.comparison.routing_worth import VERDICTS, WorthVerdict
from quality.retraining.runs import RetrainingStatus
from quality.verification.judging import OpinionsGiven
from quality.verification.sampling import Reason
from tiers.tier import Tier

if TYPE_CHECKING:
    from gateway.telemetry.gpu_exporters import GpuExporters

# Characters of a reason in a label.
MOST_REASON = 200
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """All metrics of one gateway, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        # With names of keys and servers, or amounts of money: for callers that may look at them elsewhere too.
        self.private = CollectorRegistry()
        # Metrics that several gateway processes share, counted separately.
        self.shared = CollectorRegistry()
        self.core = CoreCollector()
        self.shared.register(self.core)
        self.gpus = GpuCollector()
        self._gpus = Gpus()
        self.exporters: GpuExporters | None = None
        self.shared.register(self.gpus)
        self.jobs = JobMetrics(self.registry, self.shared)
        self.chat_queue = ChatQueueMetrics(self.registry, self.shared)
        self.loop_lag = LoopLag(self.registry)
        self.levels = ServiceLevels()
        self.requests = RequestMetrics(self.registry, self.private, self.levels)
        self.refused = RefusedMetrics(self.registry, self.private)
        self._models: dict[int, str] = {}
        self.registry.register(SloCollector(self._slo_report))
        self._declare_gauges()

    def _declare_gauges(self) -> None:
        gauge, counter = partial(Gauge, registry=self.registry), partial(Counter, registry=self.registry)
        self._saving = Gauge("aio_saving_ratio", "1 - cost / baseline cost, since start.", registry=self.private)
        self._healthy = gauge("aio_tier_healthy", "Whether a tier takes requests.", ["tier"])
        self._tier_wait = gauge("aio_tier_predicted_wait_seconds", "Predicted queueing, as routing sees it.", ["tier"])
        self._tier_versions = gauge(
            "aio_tier_version_info",
            "1 for the version of a tier that takes new requests.",
            ["tier", "model", "version"],
        )
        self._remote_waiting = gauge(
            "aio_remote_waiting",
            "Requests that wait at servers elsewhere: of all clients where a server tells, else of this process.",
        )
        self._engine_restarts = gauge("aio_engine_restarts", "Restarts of a tier's engine since AIO started.", ["tier"])
        self._replicas = ReplicaGauges(self.private)
        self.in_flight = gauge("aio_in_flight", "Answers in progress.")
        self.ledger_lag = gauge("aio_ledger_lag_records", "Records not in the database yet.")
        self.journal_lost = gauge(
            "aio_journal_lost_records", "Records of earlier processes that their damaged journals no longer hold."
        )
        self.journal_lag = gauge("aio_journal_lag_seconds", "Age of the oldest record that is not on disk yet.")
        self._cache_entries = gauge("aio_cache_entries", "Answers in the response cache of this process.")
        self._cache_bytes = gauge("aio_cache_bytes", "Bytes in the response cache of this process.")
        self.cache_failures = counter("aio_cache_failures", "Times that Redis was unreachable for the response cache.")
        self.ignored_fields = counter("aio_ignored_fields", "Requests with fields that were ignored.", ["endpoint"])
        self._guardrails = counter(
            "aio_guardrail_verdicts",
            "Texts that guardrails judged, or failed to.",
            ["guardrail", "stage", "verdict"],
        )
        self.upgrade_rate = gauge(
            "aio_upgrade_rate", "Share of the last 100 verified answers that need an upgrade.", ["tier"]
        )
        self._opinions = counter(
            "aio_second_opinions", 'Verdicts of "worse" for which further answers were asked for.', ["result"]
        )
        self._opinions_usd = Counter(
            "aio_second_opinions_cost_usd", "What those further answers cost, judging included.", registry=self.private
        )
        self._opinions_shown = OpinionsGiven()
        self._not_sampled = counter(
            "aio_not_sampled", "Finished chats that are not verified, by the reason.", ["reason"]
        )
        self._not_sampled_shown: dict[Reason, int] = {}
        self.own_labels = gauge("aio_own_labels", "Labels of the catalogue that count in decisions.")
        self._worth = gauge(
            "aio_routing_pays", "1 for the verdict on routing: pays, does_not_pay or not_known_yet.", ["verdict"]
        )
        # Of the database, which all processes and replicas share.
        shared = partial(Gauge, registry=self.shared)
        self._retraining_days = shared(
            "aio_retraining_age_days",
            "Days since the last successful retraining, or the first record; NaN where none is scheduled.",
        )
        self._retraining_days.set(float("nan"))
        self._retraining_failures = shared(
            "aio_retraining_failed_runs", "Failed retrainings since the last successful one."
        )
        self._refused = shared(
            "aio_retraining_refused_info", "1 for why the last refused candidate was refused.", ["reason"]
        )
        self.classifier = gauge("aio_classifier_info", "1 for the active version.", ["version"])
        self.canary = gauge(
            "aio_classifier_canary_share", "Share of requests decided by a version on trial.", ["version"]
        )

    def show_classifier(self, version: str, canary: str | None = None, share: float = 0.0) -> None:
        """Set the active classifier version, and the one on trial for a `share` of the requests."""
        self.classifier.clear()
        self.classifier.labels(version).set(1)
        self.canary.clear()
        if canary is not None:
            self.canary.labels(canary).set(share)

    def count_verdict(self, guardrail: str, stage: str, verdict: str) -> None:
        """Count a guardrail's verdict on a request or an answer."""
        self._guardrails.labels(guardrail, stage, verdict).inc()

    def show_worth(self, verdict: WorthVerdict) -> None:
        """Set the verdict on routing in this catalogue."""
        for label in VERDICTS:
            self._worth.labels(label).set(label == verdict)

    def show_opinions(self, opinions: OpinionsGiven) -> None:
        """Count the second opinions of verification; `opinions`: all since the monitor's start."""
        shown, self._opinions_shown = self._opinions_shown, opinions
        self._opinions.labels("confirmed").inc(opinions.confirmed - shown.confirmed)
        self._opinions.labels("uncertain").inc(opinions.uncertain - shown.uncertain)
        self._opinions_usd.inc(opinions.cost_usd - shown.cost_usd)

    def show_not_sampled(self, counts: Mapping[Reason, int]) -> None:
        """Count why answers are not verified; `counts`: all since the monitor's start."""
        for reason, count in counts.items():
            self._not_sampled.labels(reason).inc(count - self._not_sampled_shown.get(reason, 0))
        self._not_sampled_shown = dict(counts)

    def show_retraining(self, standing: RetrainingStatus, days: float | None) -> None:
        """Set what the stored runs say; `days` since the last success, None where none is scheduled."""
        self._retraining_days.set(float("nan") if days is None else days)
        self._retraining_failures.set(standing.failures)
        self._refused.clear()
        if standing.refused is not None:
            self._refused.labels(standing.refused[:MOST_REASON]).set(1)

    def show_cache(self, entries: int, size: int) -> None:
        """Set the contents of this process's response cache."""
        self._cache_entries.set(entries)
        self._cache_bytes.set(size)

    async def read_gpus(self) -> None:
        """Take a reading of every GPU of this machine, and of those of `exporters`; one that both know counts once."""
        own = await asyncio.to_thread(self._gpus.read)
        own_uuids = {reading.uuid for reading in own}
        others = [] if self.exporters is None else await self.exporters.read()
        self.gpus.readings = [*own, *(reading for reading in others if reading.uuid not in own_uuids)]

    async def read_cores(self, cores: Mapping[str, CoreClient]) -> None:
        """Take a snapshot of every core; a core that is gone leaves no stale figures."""
        self.core.stats, away = await read_cores(cores)
        self.core.away = list(away)

    def exposition(self, tiers: list[Tier], *, private: bool) -> bytes:
        """Return the exposition of one process, with the tiers' current health."""
        return self.own_exposition(tiers, private=private) + self.shared_exposition()

    def shared_exposition(self) -> bytes:
        """Return its part about the cores."""
        return generate_latest(self.shared)

    def own_exposition(self, tiers: list[Tier], *, private: bool) -> bytes:
        """Return its part about this process; `private`: with names of keys and servers, and with costs."""
        self._models = {tier.number: tier.model for tier in tiers}
        self._tier_versions.clear()
        for tier in tiers:
            load = tier.load()
            self._tier_versions.labels(str(tier.number), tier.model, tier.version).set(1)
            self._healthy.labels(str(tier.number)).set(load.healthy)
            self._tier_wait.labels(str(tier.number)).set(load.predicted_wait_seconds)
            if (engine := tier.engine()) is not None:
                self._engine_restarts.labels(str(tier.number)).set(engine.restarts)
        self._remote_waiting.set(sum(queues_elsewhere(tiers).values()))
        self._replicas.show(tiers)
        self._saving.set(self.requests.saving)
        return generate_latest(self.registry) + (generate_latest(self.private) if private else b"")

    def _slo_report(self) -> SloReport:
        return slo_report(self.levels.figures(), self.levels.window_seconds, self._models)
