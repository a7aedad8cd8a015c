"""What the endpoints of inference use, from a body to an answer; `gateway.app` makes it once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.base.settings import Settings
from gateway.edge.http_request import Connection
from gateway.inference.embedding.embedder import Embedder
from gateway.inference.routing.router import RoutingService
from gateway.inference.service import Service
from gateway.runtime.cores.adapters import CoreAdapters
from quality.records.any_record import Recorded
from quality.verification.feedback import FeedbackDesk

if TYPE_CHECKING:
    from tiers.remote.embedding_client import EmbeddingClient
    from tiers.remote.passed_server import PassedServer

SERVING = "serving"
"""The key of the app's state."""


class RecordStore(Protocol):
    """Where requests are recorded and found."""

    def append(self, record: Recorded) -> None:
        """Record `record`; never waits."""

    async def find(self, request_id: str) -> Recorded | None:
        """The record of a request, from the moment it is durable."""


@dataclass(frozen=True, slots=True)
class Serving:
    """What an answer is made with. `created`: Unix seconds of the start. `count_ignored`: called with the endpoint of
    a body with fields that were ignored. `passed`: the clients of servers whose endpoints are passed through, by the
    entry's name, and those that a reload has `replaced`."""

    settings: Settings
    routing: RoutingService
    service: Service
    embedders: "Mapping[str, Embedder | EmbeddingClient]"
    core_adapters: CoreAdapters
    records: RecordStore
    feedback: FeedbackDesk
    database: AsyncEngine
    created: int
    count_ignored: Callable[[str], None]
    passed: "dict[str, PassedServer]" = field(default_factory=dict)
    replaced: "list[PassedServer]" = field(default_factory=list)

    async def close_passed(self) -> None:
        """Close the connections to servers whose endpoints are passed through."""
        for server in (*self.passed.values(), *self.replaced):
            await server.close()

    @property
    def fingerprint(self) -> str:
        """OpenAI's `system_fingerprint`: it changes when other models or policies answer."""
        return f"fp_{self.routing.served.fingerprint}"


def serving_of(connection: Connection) -> Serving:
    """Return what the app that serves `connection` answers with."""
    serving: Serving = connection.app.state[SERVING]
    return serving
