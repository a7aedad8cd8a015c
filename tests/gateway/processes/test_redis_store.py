"""A Redis that is down costs a caller only the first wait, and is used again when it is back."""

import asyncio

import pytest

from gateway.base.settings import SettingsError
from gateway.base.stores.redis_store import (
    REST_SECONDS,
    Call,
    RedisScripts,
    RedisStore,
    RedisUnavailableError,
    open_redis,
    redis_client,
    script,
)
from tests.polling import eventually
from tests.support.app import StartApp
from tests.support.clock import Clock
from tests.support.database import RedisServer


async def test_without_an_url_there_is_no_store() -> None:
    async with open_redis("") as store:
        assert store is None


@pytest.mark.parametrize(
    "url", ["redis://:6379", "redis://:secret@:6379", "localhost:6379", "redis://h:secret", "http://h", "unix:"]
)
def test_what_is_no_address_of_a_redis_is_refused_in_words_without_a_password(url: str) -> None:
    with pytest.raises(SettingsError, match=r"AIO_REDIS_URL is not the address .* give redis://") as refused:
        RedisStore(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    ["redis://h", "rediss://user:secret@h:6380/2", "unix:///run/redis.sock", "redis://[::1]:6379", "redis://:p@h"],
)
def test_the_address_of_a_redis_is_taken(url: str) -> None:
    assert not RedisStore(url).away


async def test_a_killed_redis_is_not_asked_again_before_a_rest_and_is_found_when_it_is_back(
    redis_server: RedisServer,
) -> None:
    clock = Clock(100.0)
    store = RedisStore(redis_server.url, clock)
    asked = 0

    async def put() -> bytes | None:
        async def command(redis):  # type: ignore[no-untyped-def]
            nonlocal asked
            asked += 1
            await redis.set("a", "1")
            return await redis.get("a")

        return await store.ask(command)

    assert await put() == b"1"
    redis_server.kill()
    for _ in range(3):
        with pytest.raises(RedisUnavailableError):
            await put()
    assert (asked, store.away) == (2, True)

    redis_server.start()
    clock.now += REST_SECONDS
    assert await put() == b"1"
    assert not store.away
    await store.redis.aclose()


async def test_an_address_without_a_listener_is_down() -> None:
    store = RedisStore("redis://127.0.0.1:1/0")
    with pytest.raises(RedisUnavailableError):
        await store.ask(lambda redis: redis.ping())
    await store.redis.aclose()


@pytest.mark.parametrize("turns", range(6))
async def test_who_is_cancelled_while_redis_hangs_ends(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    assert redis_client.__kwdefaults__ is not None
    monkeypatch.setitem(redis_client.__kwdefaults__, "timeout_seconds", 1.0)
    store = RedisStore(redis_server.url)
    await store.ask(lambda redis: redis.ping())
    with redis_server.suspended():
        asking = asyncio.create_task(store.ask(lambda redis: redis.get("a")))
        for _ in range(turns):
            await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    assert not store.away
    await store.redis.aclose()


@pytest.mark.parametrize("turns", range(4))
async def test_scripts_are_sent_after_who_waited_for_earlier_ones_is_cancelled(
    redis_server: RedisServer, turns: int
) -> None:
    store = RedisStore(redis_server.url)
    scripts, call = RedisScripts(store), Call(script("return ARGV[1]"), [], ["1"])
    scripts.put(call, at_once=False)
    flushing = asyncio.create_task(scripts.flush())
    for _ in range(turns):
        await asyncio.sleep(0)
    flushing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await flushing
    assert await scripts.run(call) == b"1"
    await scripts.flush()
    await store.redis.aclose()


async def test_readiness_names_a_redis_that_is_away_and_stays(redis_server: RedisServer, app: StartApp) -> None:
    gateway = await app(redis_url=redis_server.url)

    async def problems() -> dict[str, str]:
        answer = await gateway.http.get("/health/ready")
        assert answer.status_code == 200
        found: dict[str, str] = answer.json().get("problems", {})
        return found

    async def gone() -> bool:
        return "redis" not in await problems()

    assert await gone()
    redis_server.kill()
    assert "away" in (await problems())["redis"]
    redis_server.start()
    # It is asked again after a rest, whether or not requests come.
    assert await eventually(gone, every=0.1)
