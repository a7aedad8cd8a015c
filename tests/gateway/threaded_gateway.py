"""A gateway with scripted tiers that serves from a thread, for synchronous clients."""

from collections.abc import Iterator
from contextlib import contextmanager

from gateway.base.settings import Settings
from inference_core.transport.client import CoreClient
from tests.gateway.running_gateway import RunningGateway, running_gateway
from tests.loop_thread import on_a_thread


@contextmanager
def threaded_gateway(settings: Settings, core: CoreClient | None = None) -> Iterator[RunningGateway]:
    """Serve until the block ends."""
    with on_a_thread(running_gateway(settings, core=core)) as (gateway, _):
        yield gateway
