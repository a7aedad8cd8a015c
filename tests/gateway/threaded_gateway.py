"""A gateway with scripted tiers that serves from a thread, for synchronous clients."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.base.settings import Settings
from inference_core.transport.client import CoreClient
from tests.gateway.running_gateway import RunningGateway, running_gateway


@contextmanager
def threaded_gateway(settings: Settings, core: CoreClient | None = None) -> Iterator[RunningGateway]:
    """Serve until the block ends."""
    started, stopped = threading.Event(), asyncio.Event()
    found: list[tuple[RunningGateway, asyncio.AbstractEventLoop]] = []

    async def serve() -> None:
        async with running_gateway(settings, core=core) as gateway:
            found.append((gateway, asyncio.get_running_loop()))
            started.set()
            await stopped.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(60)
    gateway, loop = found[0]
    try:
        yield gateway
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join()
