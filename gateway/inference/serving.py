"""What the endpoints of inference use, from a body to an answer; `gateway.app` makes it once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.base.errors import request_id_of
from gateway.base.requests.caller import CALLER, KEYLESS, Caller
from gateway.base.settings import Settings
from gateway.edge.asgi import Connection
from gateway.inference.embedding.embedder import Embedder
from gateway.inference.routing.router import RoutingService
from gateway.inference.service import Service
from gateway.runtime.cores.adapters import CoreAdapters
from quality.records.record import Recorded
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


class CountRefused(Protocol):
    """Counts a failure that is answered with an error; one that a record tells of is not counted again."""

    def __call__(self, error: Exception, caller: Caller, path: str, request_id: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Serving:
    """What an answer is made with. `created`: Unix seconds of the start. `count_ignored`: called with the endpoint of
    a body with fields that were ignored; `count_refused`: with each failure that is answered with an error. `passed`:
    the clients of servers whose endpoints are passed through, by the entry's name, and those that a reload has
    `replaced`."""

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
    count_refused: CountRefused
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


def count_refused(connection: Connection, error: Exception) -> None:
    """Count a request, or a message on a WebSocket, that is answered with `error`."""
    serving: Serving | None = connection.app.state.get(SERVING)
    if serving is not None:
        caller, path = connection.scope["state"].get(CALLER, KEYLESS), connection.scope.get("path_template", "")
        serving.count_refused(error, caller, path, request_id_of(connection))
