"""What the endpoints, pages and processes that operate a running gateway use; `gateway.app` makes it once."""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.base.stores.database import DatabaseOutages
from gateway.base.stores.redis_store import RedisStore
from gateway.batches.jobs import Jobs
from gateway.edge.asgi import HttpRequest
from gateway.inference.replica_knobs import ReplicaKnobs
from gateway.inference.response_cache import ResponseCache
from gateway.inference.router import RoutingService
from gateway.inference.service import Serving
from gateway.operations.constant_tier import ConstantFollower
from gateway.operations.labels.active_labels import ActiveLabels
from gateway.operations.labels.label_sources import labels_text
from gateway.operations.privacy import Privacy
from gateway.operations.reload.catalogue_reload import CatalogueReload
from gateway.runtime.cores.knobs import CoreKnobs
from gateway.runtime.peers import Peers
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.overview import Live
from gateway.tenancy.guard import Access
from gateway.tenancy.keys.directory import Directory
from quality.learning.learning import LearningRecord
from quality.ledger.ledger import Ledger
from quality.quality_loop import QualityLoop

if TYPE_CHECKING:
    from gateway.tenancy.users.identity_provider import IdentityProvider
    from quality.evaluation.others_models import OthersModels

OPERATIONS = "operations"
"""The key of the app's state."""


@dataclass(slots=True)
class Readiness:
    """Whether the server takes requests, and what is missing for all of them."""

    routing: RoutingService
    ledger: Ledger
    outages: DatabaseOutages
    directory: Directory
    redis: RedisStore | None
    away: Mapping[str, str]
    """What the engine lacks (`Engine.away`), without which other tiers go on."""
    not_ready: dict[str, str]
    """What keeps the whole server from serving, with the reason."""
    drain_until: float | None = None
    """Monotonic seconds until which a shutdown waits for answers; None before one."""

    def begin_shutdown(self, seconds: float) -> float:
        """Be unready from now on; answers have `seconds` from the first call to end. Return those that are left."""
        self.not_ready["shutdown"] = "the server is shutting down"
        if self.drain_until is None:
            self.drain_until = time.monotonic() + seconds
        return max(self.drain_until - time.monotonic(), 0.0)

    @property
    def takes_requests(self) -> bool:
        """Whether the server itself takes requests, whatever its tiers do."""
        return not (self.not_ready or self.ledger.is_full() or self.directory.is_unusable)

    @property
    def problems(self) -> dict[str, str]:
        """What is missing now, with the reason: cores, servers, engines, database, keys, the journal's disk, itself."""
        engines = {f"tier {tier.number}": tier.engine() for tier in self.routing.served.tiers.values()}
        waiting = {
            name: engine.detail for name, engine in engines.items() if engine is not None and engine.state != "ready"
        }
        suspended = self.ledger.status().suspended
        journal = {} if suspended is None else {"journal": suspended}
        asked = {"database": self.outages.problem, "keys": self.directory.problem}
        stored = {name: problem for name, problem in asked.items() if problem is not None}
        redis = {"redis": "it is away: limits and caches do without"} if self.redis and self.redis.is_failing else {}
        return {**self.away, **waiting, **stored, **redis, **journal, **self.not_ready}


@dataclass(slots=True)
class Operations:
    """What serves, and what it is watched and changed with."""

    serving: Serving
    readiness: Readiness
    access: Access
    jobs: Jobs
    core_knobs: CoreKnobs
    replica_knobs: ReplicaKnobs
    reload: CatalogueReload
    cache: ResponseCache
    privacy: Privacy
    identity_provider: "IdentityProvider | None"
    live: Live
    quality_loop: QualityLoop | None
    others_models: "OthersModels | None"
    """None where the catalogue has no core."""
    active_labels: ActiveLabels | None
    constant: ConstantFollower
    learning: LearningRecord
    metrics: Metrics
    refresh_metrics: Callable[[], Awaitable[None]]
    """Awaited before every scrape."""
    peers: Peers | None
    """The other gateway processes behind the same port, if this is one of several."""

    @property
    def quality_doubts(self) -> dict[str, str]:
        """By the name of a model that others quantised, why it is not known to be good enough."""
        return {} if self.others_models is None else self.others_models.doubts

    def labels(self, *, costs: bool = True) -> str | None:
        """Where quality labels come from now; None where nothing is verified. Without `costs` for everybody to read."""
        if self.quality_loop is None:
            return None
        serving = self.serving
        return labels_text(serving.settings, serving.routing.served.catalog, self.quality_loop.judge, costs=costs)


def operations_of(request: HttpRequest) -> Operations:
    operations: Operations = request.app.state[OPERATIONS]
    return operations
