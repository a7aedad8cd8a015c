"""What the overview shows, in memory: the gateway's current figures as plain data (by tier, by core, against the alert
thresholds), and one snapshot shared by all viewers.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from gateway.inference.router import RoutingService
from gateway.runtime.cores.reading import read_cores
from gateway.runtime.peers import Peers
from gateway.telemetry.alert_rules import RULES, AlertInputs, Severity, alert_figures
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.readings import Readings
from gateway.telemetry.service_levels import LevelsByTier, TierServiceLevels, levels_of_all, levels_together
from gateway.telemetry.slo import Check, Quantiles, State, bucket_quantile, quantiles, tier_level
from gateway.tenancy.keys.key_use import KeyUse
from inference_core.protocol import CoreStats, ModelStats
from inference_core.transport.client import CoreClient
from quality.estimates.costs import NetSaving
from quality.estimates.traffic import Span, Traffic
from quality.estimates.verified_sample import UpgradeRate
from tiers.tier import Tier


class TierNow(msgspec.Struct, frozen=True, kw_only=True):
    """A tier, or all of them (`tier` None), over the window; queue and memory at this moment."""

    tier: int | None
    model: str | None
    core: str | None
    state: State
    healthy: bool
    requests: int
    share: float | None
    """Share of the requests."""
    requests_per_second: float
    failed: int
    below_target: int
    """Answers below their quality target because a tier was down."""
    ttft_seconds: Quantiles
    itl_seconds: Quantiles
    """Inter-token latency, by the buckets of the histogram."""
    e2e_seconds: Quantiles
    spread: float | None
    """p99 over p50 of whole answers."""
    tokens_per_second_p50: float | None
    checks: list[Check]
    cost_usd: float
    cost_per_1k_tokens_usd: float | None
    running: int
    waiting: int
    predicted_wait_seconds: float
    kv_share: float | None
    """Used share of the model's blocks."""
    prefix_hit_rate: float | None


class CoreNow(msgspec.Struct, frozen=True, kw_only=True):
    """A core's arena, or why the core does not answer."""

    name: str
    problem: str | None
    arena_bytes: int = 0
    used_bytes: int = 0
    """What the sequences under way hold."""
    reserved_bytes: int = 0
    """What the models have taken of the arena: for those sequences, and for cached prefixes, which make room when it
    is needed.
    """


class AlertNow(msgspec.Struct, frozen=True, kw_only=True):
    """A `figure` (one of `alert_figures`) that is above its limit since `since` (epoch seconds)."""

    name: str
    figure: str
    severity: Severity
    summary: str
    value: float
    above: float
    since: float


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """Everything on the overview page. Windows end `at` (epoch seconds)."""

    at: float
    window_seconds: float
    overall: TierNow
    tiers: list[TierNow]
    cores: list[CoreNow]
    upgrade: UpgradeRate | None
    """Share of the last verified answers that were worse than the strongest tier's, as of the last sample; None if
    unknown.
    """
    saved: NetSaving | None
    """The net saving of the usual days, as of one of the last samples; None if unknown."""
    alerts: list[AlertNow]


def tiers_now(
    figures: LevelsByTier, seconds: float, tiers: Iterable[Tier], cores: Mapping[str, CoreStats]
) -> tuple[TierNow, list[TierNow]]:
    """Return all tiers as one, then each. `figures` cover the last `seconds`; `cores` are those that answered."""
    every = levels_together(figures)
    models = {(name, model.name): model for name, stats in cores.items() for model in stats.models}
    shown = [
        _tier(figures.get(tier.number, TierServiceLevels()), seconds, every.requests, tier, models)
        for tier in sorted(tiers, key=lambda tier: tier.number)
    ]
    whole = _tier(every, seconds, every.requests, None, {})
    whole = msgspec.structs.replace(
        whole,
        healthy=any(tier.healthy for tier in shown),
        running=sum(tier.running for tier in shown),
        waiting=sum(tier.waiting for tier in shown),
    )
    return whole, shown


def core_now(name: str, stats: CoreStats) -> CoreNow:
    """Return the arena of a core that answered."""
    # A model's blocks are counted against an arena of its own.
    used = sum(_share(model.blocks_in_use, model.blocks_total) or 0.0 for model in stats.models)
    return CoreNow(
        name=name,
        problem=None,
        arena_bytes=stats.arena_bytes,
        used_bytes=round(used * stats.arena_bytes),
        reserved_bytes=stats.arena_bytes - stats.slabs_free * stats.slab_bytes,
    )


def over_limit(figures: AlertInputs, since: dict[str, float], now: float) -> list[AlertNow]:
    """Return the alerts whose figures have exceeded their limits for long enough.

    `since`: when each rule began to exceed its limit, updated here. An unknown figure changes nothing.
    """
    alerts = []
    for rule in RULES:
        value = figures.get(rule.figure)
        if value is None:
            continue
        if value <= rule.above:
            since.pop(rule.name, None)
        elif now - since.setdefault(rule.name, now) >= rule.for_seconds:
            alerts.append(
                AlertNow(
                    name=rule.name,
                    figure=rule.figure,
                    severity=rule.severity,
                    summary=rule.summary,
                    value=value,
                    above=rule.above,
                    since=since[rule.name],
                )
            )
    return alerts


def _tier(
    figures: TierServiceLevels,
    seconds: float,
    of_all: int,
    tier: Tier | None,
    models: Mapping[tuple[str, str], ModelStats],
) -> TierNow:
    level = tier_level(figures, None if tier is None else tier.number, None if tier is None else tier.model)
    load = None if tier is None else tier.load()
    model = None if tier is None else models.get((tier.core_name or "", tier.model))
    return TierNow(
        tier=level.tier,
        model=level.model,
        core=None if tier is None else tier.core_name,
        state=level.state,
        healthy=load is not None and load.healthy,
        requests=figures.requests,
        share=_share(figures.requests, of_all),
        requests_per_second=figures.requests / seconds if seconds > 0 else 0.0,
        failed=figures.failed,
        below_target=figures.below_target,
        ttft_seconds=level.ttft_seconds,
        itl_seconds=_gaps(figures.gaps),
        e2e_seconds=level.e2e_seconds,
        spread=_share(level.e2e_seconds.p99, level.e2e_seconds.p50),
        tokens_per_second_p50=quantiles(figures.speed).p50,
        checks=level.checks,
        cost_usd=figures.cost_usd,
        cost_per_1k_tokens_usd=_share(figures.cost_usd * 1e3, figures.tokens),
        running=0 if load is None else load.running,
        waiting=0 if load is None else load.waiting,
        predicted_wait_seconds=0.0 if load is None else load.predicted_wait_seconds,
        kv_share=None if model is None else _share(model.blocks_in_use, model.blocks_total),
        prefix_hit_rate=_share(figures.cached_tokens, figures.prompt_tokens),
    )


def _gaps(counts: dict[int, int]) -> Quantiles:
    p50, p95, p99, p999 = (bucket_quantile(counts, share) for share in (0.5, 0.95, 0.99, 0.999))
    return Quantiles(mean=None, p50=p50, p95=p95, p99=p99, p999=p999)


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


log = logging.getLogger(__name__)

SAMPLE_SECONDS = 10.0
FRESH_SECONDS = 2.0
SAVED_SHARE = 0.02
# A page does not wait for a core that is busy with a long step.
CORE_SECONDS = 0.15


class Live:
    """Figures of all gateway processes behind the port and of the cores, at this moment (SPEC OB-12).

    Everything that changes is read from memory and from the cores, with no database query, whatever the load. Answer
    quality (`quality`) and what was saved (`saved`) are queried with the samples.
    """

    def __init__(
        self,
        routing: RoutingService,
        metrics: Metrics,
        cores: Mapping[str, CoreClient],
        traffic: Readings[Span, Traffic],
        key_use: Readings[tuple[str, ...], dict[str, KeyUse]],
        peers: Peers | None = None,
        quality: Callable[[], Awaitable[UpgradeRate | None]] | None = None,
        retraining_days: Callable[[], float | None] | None = None,
        saved: Callable[[], Awaitable[NetSaving]] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._routing, self._metrics, self._cores, self._peers, self._clock = routing, metrics, cores, peers, clock
        self._quality, self._retraining_days = quality, retraining_days
        self._upgrade: UpgradeRate | None = None
        self._read_saved = saved
        self._saved: NetSaving | None = None
        self._saved_until = 0.0
        self._begun = clock()
        self.traffic, self.key_use = traffic, key_use
        self._since: dict[str, float] = {}
        self._alerts: list[AlertNow] = []
        self._stats: dict[str, CoreStats] = {}
        self._reading: asyncio.Task[tuple[dict[str, CoreStats], Mapping[str, Exception]]] | None = None
        self._problems: dict[str, str] = {}
        self._snapshot: Overview | None = None
        self._lock = asyncio.Lock()
        # The last rendered fragment of each span, and the figures that it shows.
        self.drawn: dict[Span, tuple[Overview, Traffic | None, str]] = {}
        # Tables that were seen with a row; only a new installation's page asks for them.
        self.tables_held: set[str] = set()
        # The last look at them, and until when pages wait for it (time of the event loop).
        self.tables_reading: tuple[asyncio.Future[bool], float] | None = None

    async def follow(self) -> None:
        """Read what the database says now, and take a sample every `SAMPLE_SECONDS` until cancelled."""
        step = self._read_stored
        while True:
            try:
                await step()
            except Exception:
                # A failed read is retried with the next sample.
                log.exception("the overview was not sampled")
            await asyncio.sleep(SAMPLE_SECONDS)
            step = self.sample

    async def sample(self) -> None:
        """Read what the database says, and evaluate the alerts."""
        await self._read_stored()
        async with self._lock:
            now = self._snapshot = await self._look()
        levels = await levels_of_all(self._metrics.levels, self._peers)
        days = None if self._retraining_days is None else self._retraining_days()
        tiers, gpus = self._routing.served.tiers.values(), self._metrics.gpus.readings
        figures = alert_figures(levels, self._stats, tiers, gpus, days)
        self._alerts = over_limit(figures, self._since, now.at)

    async def _read_stored(self) -> None:
        if self._quality is not None:
            self._upgrade = await self._quality()
        await self._look_at_saving()

    async def _look_at_saving(self) -> None:
        """Read what was saved, unless reading it would take more than `SAVED_SHARE` of the time."""
        began = time.monotonic()
        if self._read_saved is None or began < self._saved_until:
            return
        with suppress(SQLAlchemyError, OSError):
            self._saved = await self._read_saved()
        ended = time.monotonic()
        self._saved_until = ended + (ended - began) / SAVED_SHARE

    async def overview(self) -> Overview:
        """Return the current overview, at most `FRESH_SECONDS` old."""
        async with self._lock:
            if self._snapshot is None or not 0 <= self._clock() - self._snapshot.at < FRESH_SECONDS:
                self._snapshot = await self._look()
            return self._snapshot

    async def _look(self) -> Overview:
        await self._read_cores()
        levels = await levels_of_all(self._metrics.levels, self._peers)
        now = self._clock()
        seconds = min(self._metrics.levels.window_seconds, max(now - self._begun, 1.0))
        overall, tiers = tiers_now(levels, seconds, self._routing.served.tiers.values(), self._stats)
        return Overview(
            at=now,
            window_seconds=seconds,
            overall=overall,
            tiers=tiers,
            cores=[self._core(name) for name in self._cores],
            upgrade=self._upgrade,
            saved=self._saved,
            alerts=self._alerts,
        )

    async def _read_cores(self) -> None:
        """Ask the cores. While a core is busy its last figures stand, until it is found gone."""
        reading = self._reading
        if reading is None:
            reading = self._reading = asyncio.ensure_future(read_cores(self._cores))
        await asyncio.wait([reading], timeout=CORE_SECONDS)
        if not reading.done():
            return
        self._reading = None
        there, away = reading.result()
        self._stats = there
        self._problems = {name: str(error) for name, error in away.items()}

    def _core(self, name: str) -> CoreNow:
        stats = self._stats.get(name)
        if stats is None:
            return CoreNow(name=name, problem=self._problems.get(name, "it has not answered yet"))
        return core_now(name, stats)
