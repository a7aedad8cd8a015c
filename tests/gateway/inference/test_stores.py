"""What the stores keep, for how long, within which bounds, and what becomes of a Redis that goes away."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from gateway.base.knobs import KnobFile
from gateway.base.stores.redis_store import REST_SECONDS, RedisStore
from gateway.inference.answer_stores import ENTRY_BYTES, AgedAnswer, CacheKnobs, MemoryStore, SharedStore
from tests.support.clock import Clock
from tests.support.database import RedisServer


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
    clock = Clock(100.0)
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


async def test_the_bounds_are_kept_to_the_byte_the_entry_and_the_second() -> None:
    clock, file = Clock(100.0), knobs(max_bytes=2 * (10 + ENTRY_BYTES), max_entries=2)
    store = MemoryStore(file, clock)
    for key in (b"a", b"b"):
        await store.put(key, b"x" * 10)
    assert await kept(store, b"a", b"b") == [b"a", b"b"], "they just fit"
    await store.put(b"b", b"y" * 10)
    assert (await store.get(b"b"), store.bytes, len(store)) == (b"y" * 10, 2 * (10 + ENTRY_BYTES), 2)
    await store.put(b"b", b"x" * 11)
    assert (await kept(store, b"a", b"b"), store.bytes) == ([b"b"], 11 + ENTRY_BYTES)
    clock.now += 29.5
    assert [(answer.key, answer.age_seconds) for answer in store.answers()] == [(b"b", 29.5)]
    await store.put(b"c", b"")
    clock.now += 0.5
    assert [answer.key for answer in store.answers()] == [b"c"]
    await store.put(b"d", b"")
    assert (len(store), store.bytes) == (2, 2 * ENTRY_BYTES), "what is stale makes room"
    store.clear()
    assert (len(store), store.bytes) == (0, 0)
    await store.put(b"e", b"")
    clock.now += 30
    assert (await store.get(b"e"), len(store), store.bytes) == (None, 0, 0)


async def test_answers_of_an_earlier_process_are_kept_for_the_rest_of_their_time() -> None:
    clock = Clock(100.0)
    store = MemoryStore(knobs(), clock)
    await store.put(b"own", b"1")
    store.adopt([AgedAnswer(b"own", 0.0, b"22"), AgedAnswer(b"old", 29.0, b"22"), AgedAnswer(b"stale", 30.0, b"22")])
    assert (await kept(store, b"own", b"old", b"stale"), await store.get(b"own")) == ([b"own", b"old"], b"1")
    assert store.bytes == 1 + 2 + 2 * ENTRY_BYTES
    clock.now += 1
    assert await kept(store, b"own", b"old") == [b"own"]


def test_the_usual_bounds() -> None:
    assert msgspec.structs.asdict(CacheKnobs()) == {
        "enabled": True, "ttl_seconds": 30.0, "max_entries": 10_000, "max_bytes": 67_108_864,
    }  # fmt: skip


class Asked:
    """In the place of Redis: whose answers are no bytes, and which keeps for how long it was asked to keep."""

    def __init__(self) -> None:
        self.milliseconds: list[int] = []

    async def ask(self, action: Any) -> Any:
        return action(self)

    def get(self, key: bytes) -> str:
        return f"of {key!r}"

    def set(self, key: bytes, value: bytes, *, px: int) -> None:
        self.milliseconds.append(px)


async def test_redis_keeps_an_answer_for_whole_milliseconds_and_at_least_one() -> None:
    redis: Any = Asked()
    for seconds in (0.0001, 0.0016, 30.0):
        await SharedStore(knobs(ttl_seconds=seconds), redis, pytest.fail).put(b"k", b"v")
    assert redis.milliseconds == [1, 2, 30_000]
    assert await SharedStore(knobs(), redis, pytest.fail).get(b"k") is None


@pytest_asyncio.fixture
async def redis(redis_server: RedisServer) -> AsyncIterator[RedisStore]:
    clock = Clock(100.0)
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
