"""Failed sign-ins are counted over all processes that share a Redis, and by each alone while it is down."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from gateway.base.settings import Settings
from gateway.base.stores.redis_store import RedisStore
from gateway.operations.dashboard.sign_in.login_limit import MOST_FAILURES, WINDOW_SECONDS, SharedLoginLimits, Subject
from tests.gateway.operations.dashboard.browsing import browser, sign_in
from tests.polling import eventually
from tests.support.app import running_gateway
from tests.support.database import RedisServer

ADA: Subject = ("account", "ada")
HOME: Subject = ("network", "192.0.2.1")
OFFICE: Subject = ("network", "192.0.2.2")


@pytest_asyncio.fixture
async def processes(redis_url: str) -> AsyncIterator[list[SharedLoginLimits]]:
    """The limits of two processes with one Redis."""
    stores = [RedisStore(redis_url) for _ in range(2)]
    yield [SharedLoginLimits(store) for store in stores]
    for store in stores:
        await store.redis.aclose()


async def test_failures_at_all_processes_count_together_and_a_success_takes_back_its_own(
    processes: list[SharedLoginLimits],
) -> None:
    one, other = processes
    for number in range(MOST_FAILURES - 1):
        assert (await processes[number % 2].begin(ADA, HOME)).wait_seconds == 0
    right = await one.begin(ADA, HOME)
    assert right.wait_seconds == 0
    refused = [await process.begin(ADA, OFFICE) for process in (other, one)]
    assert all(0 < attempt.wait_seconds <= WINDOW_SECONDS for attempt in refused)
    assert [attempt.is_news for attempt in refused] == [True, False]
    assert (await other.begin(("account", "bob"), HOME)).wait_seconds == 0
    one.take_back(right)

    async def allowed() -> bool:
        return not (await one.begin(ADA, OFFICE)).wait_seconds

    await eventually(allowed)
    again = await other.begin(ADA, OFFICE)
    assert (again.wait_seconds > 0, again.is_news) == (True, True)


async def test_without_redis_a_process_goes_on_with_what_it_counted(
    processes: list[SharedLoginLimits], redis_server: RedisServer
) -> None:
    one, other = processes
    for _ in range(MOST_FAILURES):
        assert (await one.begin(ADA, HOME)).wait_seconds == 0
    redis_server.kill()
    assert (await one.begin(ADA, OFFICE)).wait_seconds > 0
    assert (await other.begin(ADA, OFFICE)).wait_seconds == 0


async def test_redis_holds_no_name_that_was_typed(processes: list[SharedLoginLimits], redis_url: str) -> None:
    await processes[0].begin(("account", "a password in the wrong field"), HOME)
    store = RedisStore(redis_url)
    kept = [key async for key in store.redis.scan_iter("*")]
    await store.redis.aclose()
    assert len(kept) == 2
    assert not [key for key in kept if b"password" in key or b"192.0.2.1" in key]


async def test_an_account_that_fails_at_one_gateway_waits_at_the_other(redis_url: str, tmp_path: Path) -> None:
    async def tried(folder: str, attempts: int) -> list[int]:
        settings = Settings(data_dir=str(tmp_path / folder), redis_url=redis_url, monitor=False)
        async with running_gateway(settings) as aio, browser(aio) as client:
            return [(await sign_in(client, "wrong", "ada")).status_code for _ in range(attempts)]

    assert await tried("one", MOST_FAILURES) == [401] * MOST_FAILURES
    assert await tried("other", 1) == [429]
