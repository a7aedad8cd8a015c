"""What the stores keep, for how long, within which bounds, and what becomes of a Redis that goes away."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from gateway.base.knobs.file import KnobFile
from gateway.base.stores.redis_store import REST_SECONDS, RedisStore
from gateway.inference.cache.knobs import CacheKnobs
from gateway.inference.cache.stores import ENTRY_BYTES, MemoryStore, SharedStore
from tests.database_servers import RedisServer


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def knobs(**changes: Any) -> KnobFile[CacheKnobs]:
    file = KnobFile(CacheKnobs, "cache")
    file.change(changes)
    return file


async def kept(store: MemoryStore, *keys: bytes) -> list[bytes]:
    return [key for key in keys if await store.get(key) is not None]


async def test_the_least_recently_used_goes_first() -> None:
    store = MemoryStore(knobs(max_entries=2))
    await store.put(b"a", b"1")
    await store.put(b"b", b"2")
    assert await store.get(b"a") == b"1"
    await store.put(b"c", b"3")
    assert await kept(store, b"a", b"b", b"c") == [b"a", b"c"]


async def test_bytes_are_bounded_whatever_is_put() -> None:
    store = MemoryStore(knobs(max_bytes=10_000))
    for number in range(1000):
        await store.put(b"%d" % (number % 300), b"x" * (number % 900))
        assert store.bytes <= 10_000
    assert store.bytes == sum(len(value) + ENTRY_BYTES for _, value in store._entries.values())


async def test_bounds_and_ages_that_are_lowered_hold_at_once() -> None:
    clock = Clock()
    file = knobs()
    store = MemoryStore(file, clock)
    for key in (b"a", b"b", b"c"):
        await store.put(key, b"1")
        clock.now += 10
    file.change({"ttl_seconds": 15})
    assert await kept(store, b"a", b"b", b"c") == [b"c"]
    file.change({"max_entries": 1})
    await store.put(b"d", b"1")
    assert await kept(store, b"a", b"b", b"c", b"d") == [b"d"]


@pytest_asyncio.fixture
async def redis(redis_server: RedisServer) -> AsyncIterator[RedisStore]:
    clock = Clock()
    store = RedisStore(redis_server.url, clock)
    store.clock = clock  # type: ignore[attr-defined]
    yield store
    await store.redis.aclose()


async def test_processes_share_what_one_keeps_and_redis_forgets_it_in_time(redis: RedisStore) -> None:
    one, other = (SharedStore(knobs(ttl_seconds=30), redis, pytest.fail) for _ in range(2))
    await one.put(b"key", b"value")
    assert await other.get(b"key") == b"value"
    assert 29_000 < await redis.redis.pttl(b"aio:answer:2:key") <= 30_000


async def test_while_redis_is_away_nothing_is_found_and_nothing_fails(
    redis: RedisStore, redis_server: RedisServer
) -> None:
    failures: list[int] = []
    store = SharedStore(knobs(), redis, lambda: failures.append(1))
    await store.put(b"key", b"value")
    redis_server.kill()
    assert await store.get(b"key") is None
    await store.put(b"key", b"value")
    assert len(failures) == 2

    redis_server.start()
    redis.clock.now += REST_SECONDS  # type: ignore[attr-defined]
    assert await store.get(b"key") is None
    await store.put(b"key", b"value")
    assert await store.get(b"key") == b"value"
    assert len(failures) == 2
