"""Tiers of a core are healthy while it answers and advances."""

import asyncio
import threading

import pytest

from inference_core.errors import CoreGoneError
from inference_core.transport.core_thread import ThreadCoreClient
from tests.inference_core.hash_model import hash_core
from tiers.local.local_tier import CoreWatch


class Watched(ThreadCoreClient):
    """A core that can be made to look stuck or gone."""

    said: str | None = None
    silent = False

    @property
    def stuck(self) -> str | None:
        return self.said

    async def stats(self):
        if self.silent:
            raise CoreGoneError("gone")
        return await super().stats()


@pytest.fixture
async def core():
    client = Watched(lambda: hash_core("m"))
    await client.start()
    yield client
    await client.close()


async def test_a_core_that_its_watchdog_calls_stuck_is_not_healthy_until_it_goes_on(core: Watched) -> None:
    """A stuck core answers nothing, so its last answer must not count."""
    watch = CoreWatch(core)
    await watch.open()
    assert watch.healthy
    core.said = "no step has finished for 61 s"
    assert not watch.healthy
    core.said = None
    assert watch.healthy
    await watch.close()


async def test_a_core_that_is_gone_is_not_healthy(core: Watched) -> None:
    watch = CoreWatch(core)
    core.silent = True
    with pytest.raises(CoreGoneError):
        await watch.open()
    assert not watch.healthy


async def test_a_core_whose_connection_is_lost_is_unhealthy_before_any_request() -> None:
    loading = threading.Event()
    loading.set()
    client = ThreadCoreClient(lambda: hash_core("m") if loading.wait(30) else None)
    await client.start()
    watch = CoreWatch(client, interval=3600)
    await watch.open()
    assert watch.healthy
    await client.close()
    assert not watch.healthy
    loading.clear()
    again = asyncio.create_task(client.start())
    await asyncio.sleep(0)
    assert not watch.healthy, "a connection that is being made is none yet"
    loading.set()
    await again
    assert watch.healthy
    await watch.close()
    await client.close()
