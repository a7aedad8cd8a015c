"""What the overview shows, in memory: a sample every few seconds, and one snapshot shared by all viewers."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from sqlalchemy.exc import SQLAlchemyError

from gateway.inference.routing.router import RoutingService
from gateway.runtime.cores.reading import read_cores
from gateway.runtime.peers.peers import Peers
from gateway.telemetry.metrics.metrics import Metrics
from gateway.telemetry.objectives.alert_figures import alert_figures
from gateway.telemetry.objectives.service_levels import levels_of_all
from gateway.telemetry.overview.figures import AlertNow, CoreNow, Overview, Point, over_limit, tiers_now
from inference_core.protocol import CoreStats
from inference_core.transport.client import CoreClient
from quality.estimates.upgrade_rate import UpgradeRate

log = logging.getLogger(__name__)

SAMPLE_SECONDS = 10.0
SAMPLES = 360
FRESH_SECONDS = 2.0
REFUSED_SECONDS = 3600.0
# A page does not wait for a core that is busy with a long step.
CORE_SECONDS = 0.15


class Live:
    """Figures of all gateway processes behind the port, of the cores, and an hour of samples (SPEC OB-12).

    Everything that changes is read from memory and from the cores, with no database query, however many requests there
    are. Answer quality (`quality`) and the number of refused requests since a time (`refused`) are queried with each
    sample.
    """

    def __init__(
        self,
        routing: RoutingService,
        metrics: Metrics,
        cores: Mapping[str, CoreClient],
        peers: Peers | None = None,
        quality: Callable[[], Awaitable[UpgradeRate | None]] | None = None,
        retraining_days: Callable[[], float | None] | None = None,
        refused: Callable[[float], Awaitable[int]] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._routing, self._metrics, self._cores, self._peers, self._clock = routing, metrics, cores, peers, clock
        self._quality, self._retraining_days = quality, retraining_days
        self._count_refused = refused
        self._upgrade: UpgradeRate | None = None
        self._refused: int | None = None
        self._begun = clock()
        self._history: deque[Point] = deque(maxlen=SAMPLES)
        self._since: dict[str, float] = {}
        self._alerts: list[AlertNow] = []
        self._stats: dict[str, CoreStats] = {}
        self._reading: asyncio.Task[tuple[dict[str, CoreStats], Mapping[str, Exception]]] | None = None
        self._problems: dict[str, str] = {}
        self._snapshot: Overview | None = None
        self._lock = asyncio.Lock()
        # The last rendered fragment, and the figures that it shows.
        self.drawn: tuple[Overview, str] | None = None
        # Tables that were seen with a row; only a new installation's page asks for them.
        self.tables_held: set[str] = set()
        # The last look at them, and until when pages wait for it (time of the event loop).
        self.tables_reading: tuple[asyncio.Future[bool], float] | None = None

    async def follow(self) -> None:
        """Take a sample every `SAMPLE_SECONDS` until cancelled."""
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            try:
                await self.sample()
            except Exception:
                # A failed read is retried with the next sample.
                log.exception("the overview was not sampled")

    async def sample(self) -> None:
        """Add a point to the history, and evaluate the alerts."""
        if self._quality is not None:
            self._upgrade = await self._quality()
        if self._count_refused is not None:
            with suppress(SQLAlchemyError, OSError):
                self._refused = await self._count_refused(self._clock() - REFUSED_SECONDS)
        async with self._lock:
            now = self._snapshot = await self._look()
        levels = await levels_of_all(self._metrics.levels, self._peers)
        days = None if self._retraining_days is None else self._retraining_days()
        tiers, gpus = self._routing.served.tiers.values(), self._metrics.gpus.readings
        figures = alert_figures(levels, self._stats, tiers, gpus, days)
        self._alerts = over_limit(figures, self._since, now.at)
        self._history.append(
            Point(
                at=now.at,
                requests_per_second={tier.tier or 0: tier.requests_per_second for tier in now.tiers},
                ttft_p50=now.overall.ttft_seconds.p50,
                ttft_p95=now.overall.ttft_seconds.p95,
                ttft_p99=now.overall.ttft_seconds.p99,
                waiting=now.overall.waiting,
            )
        )

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
            refused=self._refused,
            alerts=self._alerts,
            history=list(self._history),
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
        used = stats.arena_bytes - stats.slabs_free * stats.slab_bytes
        return CoreNow(name=name, problem=None, arena_bytes=stats.arena_bytes, used_bytes=used)
