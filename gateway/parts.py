"""The parts of a running gateway that endpoints use, assembled once by `gateway.app`."""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from litestar.connection import Request
from litestar.datastructures import State
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.cache.response_cache import ResponseCache
from gateway.composition.active_labels import ActiveLabels
from gateway.composition.catalogue_reload import CatalogueReload
from gateway.composition.privacy import Privacy
from gateway.composition.quality_loop import QualityLoop
from gateway.cores.adapters import CoreAdapters
from gateway.cores.knobs import CoreKnobs
from gateway.embedding.embedder import Embedder
from gateway.jobs.jobs import Jobs
from gateway.knobs.replicas import ReplicaKnobs
from gateway.peers.peers import Peers
from gateway.protocols.trusted_proxies import TrustedProxies
from gateway.routing.router import RoutingService
from gateway.service import Service
from gateway.settings import Settings
from gateway.stores.redis_store import RedisStore
from gateway.telemetry.metrics_export.metrics import Metrics
from gateway.telemetry.overview.live import Live
from gateway.tenancy.dashboard_users.identity_provider import IdentityProvider
from gateway.tenancy.dashboard_users.sessions import Sessions
from gateway.tenancy.tenancy import Tenancy
from quality.comparison.cost_quality_curve import CostQualityCurves
from quality.learning.kind_names import KindNames
from quality.learning.learning import LearningRecord
from quality.records.any_record import Recorded
from quality.verification.feedback import FeedbackDesk

HttpRequest = Request[Any, Any, State]
PARTS = "parts"


class RecordStore(Protocol):
    """Where requests are recorded and found."""

    def append(self, record: Recorded) -> None:
        """Record `record`; never waits."""

    async def find(self, request_id: str) -> Recorded | None:
        """The record of a request, from the moment it is durable."""


async def _nothing_to_refresh() -> None:
    """Without a core and a monitor there is nothing to refresh before a scrape."""


@dataclass(slots=True)
class Parts:
    """Everything that an endpoint may use.

    `not_ready` names what keeps the whole server from serving, with the reason; `away` names what else is missing
    (`Engine.away`), without which other tiers go on. `refresh_metrics` is awaited before every scrape. `peers`: the
    other gateway processes behind the same port, if this is one of several. `proxies`: those whose headers are
    believed. `drain_until`: monotonic seconds until which a
    shutdown waits for answers; None before one.
    """

    settings: Settings
    tenancy: Tenancy
    core_knobs: CoreKnobs
    core_adapters: CoreAdapters
    replica_knobs: ReplicaKnobs
    reload: CatalogueReload
    routing: RoutingService
    embedders: Mapping[str, Embedder]
    service: Service
    cache: ResponseCache
    records: RecordStore
    feedback: FeedbackDesk
    privacy: Privacy
    jobs: Jobs
    sessions: Sessions
    identity_provider: IdentityProvider | None
    live: Live
    database: AsyncEngine
    quality_loop: QualityLoop | None
    active_labels: ActiveLabels | None
    cost_quality_curves: CostQualityCurves
    learning: LearningRecord
    kind_names: KindNames
    redis: RedisStore | None
    metrics: Metrics
    created: int
    not_ready: dict[str, str] = field(default_factory=dict)
    away: Mapping[str, str] = field(default_factory=dict)
    refresh_metrics: Callable[[], Awaitable[None]] = _nothing_to_refresh
    peers: Peers | None = None
    proxies: TrustedProxies = field(default_factory=partial(TrustedProxies, ""))
    drain_until: float | None = None

    def begin_shutdown(self, seconds: float) -> float:
        """Be unready from now on; answers have `seconds` from the first call to end. Return those that are left."""
        self.not_ready["shutdown"] = "the server is shutting down"
        if self.drain_until is None:
            self.drain_until = time.monotonic() + seconds
        return max(self.drain_until - time.monotonic(), 0.0)

    @property
    def fingerprint(self) -> str:
        """OpenAI's `system_fingerprint`: it changes when other models or policies answer."""
        return f"fp_{self.routing.fingerprint}"

    @property
    def problems(self) -> dict[str, str]:
        """What is missing now, with the reason: cores, servers, engines that AIO starts, the server itself."""
        engines = {f"tier {tier.number}": tier.engine() for tier in self.routing.tiers.values()}
        waiting = {name: one.detail for name, one in engines.items() if one is not None and one.state != "ready"}
        return {**self.away, **waiting, **self.not_ready}

    def put_into(self, state: State) -> None:
        """Make them available to requests."""
        state[PARTS] = self


def parts_of(request: HttpRequest) -> Parts:
    """Return the parts of the app that serves `request`."""
    parts: Parts = request.app.state[PARTS]
    return parts
