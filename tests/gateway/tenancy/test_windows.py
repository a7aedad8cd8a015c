"""Rate limits and concurrency, counted in this process and in Redis: no minute exceeds its limit."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from gateway.base.inference_request import Allowance
from gateway.base.stores.redis_store import Call, RedisStore, RedisUnavailableError
from gateway.tenancy import windows
from gateway.tenancy import windows as redis_windows
from gateway.tenancy.windows import Entry, LocalWindows, RedisWindows, Room, Windows
from tests.polling import eventually
from tests.support.clock import Clock
from tests.support.database import RedisServer


@pytest_asyncio.fixture(params=["local", "redis"])
async def both(request: pytest.FixtureRequest) -> AsyncIterator[list[Windows]]:
    """Two counters that count together where possible: one process's own, or two processes' with one Redis."""
    if request.param == "local":
        own = LocalWindows()
        yield [own, own]
        return
    stores = [RedisStore(request.getfixturevalue("redis_url")) for _ in range(2)]
    shared = [RedisWindows(store) for store in stores]
    yield list(shared)
    for limits, store in zip(shared, stores, strict=True):
        await limits.close()
        await store.redis.aclose()


async def flushed(both: list[Windows]) -> None:
    for limits in both:
        if isinstance(limits, RedisWindows):
            await limits.close()


async def test_requests_per_minute_are_limited_and_the_remainder_is_in_the_headers(both: list[Windows]) -> None:
    allowance = Allowance(requests_per_minute=3)
    entries = [await both[n % 2].enter("ada", allowance, 0, f"r{n}") for n in range(5)]
    assert [entry.refused for entry in entries] == ["", "", "", "requests", "requests"]
    assert [entry.requests.remaining for entry in entries if entry.requests] == [2, 1, 0, 0, 0]
    assert all(entry.requests and 60 < entry.requests.reset_seconds <= 62 for entry in entries)
    assert entries[0].tokens is None
    assert entries[4].retry_seconds is not None
    assert 59 < entries[4].retry_seconds <= 62
    assert not (await both[0].enter("bob", allowance, 0, "r9")).refused


async def test_100_at_once_against_10_a_minute_let_10_through(both: list[Windows]) -> None:
    allowance = Allowance(requests_per_minute=10)
    entries = await asyncio.gather(*(both[n % 2].enter("ada", allowance, 0, f"r{n}") for n in range(100)))
    assert sum(not entry.refused for entry in entries) == 10


async def test_tokens_are_estimated_at_first_and_put_right_when_the_request_ends(both: list[Windows]) -> None:
    allowance = Allowance(tokens_per_minute=100)
    first = await both[0].enter("ada", allowance, 80, "r1")
    assert (await both[1].enter("ada", allowance, 30, "r2")).refused == "tokens"
    both[0].leave(first, 10)
    await flushed(both)
    second = await both[1].enter("ada", allowance, 30, "r3")
    assert not second.refused
    assert second.tokens is not None
    assert second.tokens.remaining == 60
    both[1].leave(second, 95)
    await flushed(both)
    third = await both[0].enter("ada", allowance, 1, "r4")
    assert (third.refused, third.tokens and third.tokens.remaining) == ("tokens", 0)


async def test_tokens_that_are_known_later_are_claimed_and_count_no_second_request(both: list[Windows]) -> None:
    allowance = Allowance(requests_per_minute=2, tokens_per_minute=100, concurrency=2)
    first = await both[0].enter("ada", allowance, 0, "r1")
    first = await both[0].claim(first, allowance, 60)
    assert (first.refused, first.tokens and first.tokens.remaining, first.requested_tokens) == ("", 40, 60)
    second = await both[1].enter("ada", allowance, 0, "r2")
    assert not second.refused
    refused = await both[1].claim(second, allowance, 41)
    assert (refused.refused, refused.retry_seconds is not None) == ("tokens", True)
    assert (await both[1].claim(second, allowance, 101)).retry_seconds is None
    both[0].leave(first, 10)
    await both[0].close() if isinstance(both[0], RedisWindows) else None
    second = await both[1].claim(second, allowance, 90)
    assert not second.refused
    both[1].leave(second, 90)


async def test_a_request_for_more_than_a_minute_holds_is_never_let_in(both: list[Windows]) -> None:
    entry = await both[0].enter("ada", Allowance(tokens_per_minute=100), 101, "r1")
    assert (entry.refused, entry.retry_seconds) == ("tokens", None)


async def test_places_in_flight_are_given_back_once(both: list[Windows]) -> None:
    allowance = Allowance(concurrency=2)
    entries = [await both[n % 2].enter("ada", allowance, 0, f"r{n}") for n in range(3)]
    assert [entry.refused for entry in entries] == ["", "", "concurrency"]
    both[0].leave(entries[0], 0)
    await flushed(both)
    again = [await both[n % 2].enter("ada", allowance, 0, f"s{n}") for n in range(2)]
    assert [entry.refused for entry in again] == ["", "concurrency"]


@given(
    arrivals=st.lists(st.tuples(st.floats(0, 30), st.integers(0, 50), st.integers(0, 60)), max_size=60),
    most=st.integers(1, 5),
    most_tokens=st.integers(1, 100),
)
def test_no_minute_holds_more_than_the_limits(
    arrivals: list[tuple[float, int, int]], most: int, most_tokens: int
) -> None:
    clock = Clock(1000.25)
    limits = LocalWindows(clock)
    allowance = Allowance(requests_per_minute=most, tokens_per_minute=most_tokens)
    accepted: list[tuple[float, int]] = []

    async def arrive() -> None:
        for wait, asked, used in arrivals:
            clock.now += wait
            entry = await limits.enter("ada", allowance, asked, "r")
            if entry.refused:
                assert entry.retry_seconds is None or entry.retry_seconds > 0
            else:
                # A request that uses fewer tokens than requested frees the rest; one that uses more is counted too
                # late.
                limits.leave(entry, min(used, asked))
                accepted.append((clock.now, min(used, asked)))

    asyncio.run(arrive())
    for begin, _ in accepted:
        minute = [tokens for at, tokens in accepted if begin <= at < begin + 60]
        assert len(minute) <= most
        assert sum(minute) <= most_tokens


async def test_a_retry_after_the_stated_time_is_admitted() -> None:
    clock = Clock(1000.25)
    limits, allowance = LocalWindows(clock), Allowance(requests_per_minute=2, tokens_per_minute=100)
    for wait in (0, 20.5):
        clock.now += wait
        await limits.enter("ada", allowance, 40, "r")
    refused = await limits.enter("ada", allowance, 90, "r")
    assert refused.refused == "requests"
    for _ in range(2):
        assert refused.retry_seconds is not None
        clock.now += refused.retry_seconds - 0.001
        assert (await limits.enter("ada", allowance, 90, "r")).refused
        clock.now += 0.001
        refused = await limits.enter("ada", allowance, 90, "r")
    assert not refused.refused


async def test_redis_slides_by_its_own_clock(redis_store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (windows, redis_windows):
        monkeypatch.setattr(module, "WINDOW_SECONDS", 1)
    limits, allowance = RedisWindows(redis_store), Allowance(requests_per_minute=1)
    assert not (await limits.enter("ada", allowance, 0, "r0")).refused
    assert (await limits.enter("ada", allowance, 0, "r1")).refused

    async def entered() -> bool:
        return not (await limits.enter("ada", allowance, 0, "r2")).refused

    # The wait is for Redis' clock.
    await eventually(entered)


async def test_requests_in_flight_of_a_dead_replica_free_their_places(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_windows, "IN_FLIGHT_SECONDS", 1)
    stores = [RedisStore(redis_url) for _ in range(2)]
    dead, other = (RedisWindows(store) for store in stores)
    allowance = Allowance(concurrency=1)
    assert not (await dead.enter("ada", allowance, 0, "r0")).refused

    async def entered() -> bool:
        return not (await other.enter("ada", allowance, 0, "r1")).refused

    await eventually(entered)
    for store in stores:
        await store.redis.aclose()


async def test_a_replica_that_lives_keeps_its_places(redis_store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    limits, allowance = RedisWindows(redis_store), Allowance(concurrency=1)
    monkeypatch.setattr(redis_windows, "IN_FLIGHT_SECONDS", 5)
    await limits.enter("ada", allowance, 0, "r0")
    monkeypatch.setattr(redis_windows, "IN_FLIGHT_SECONDS", 500)
    seconds, _ = await redis_store.redis.time()
    await redis_store.redis.zadd("aio:flying:{ada}", {"of another replica": seconds + 2})
    limits.renew()
    await limits.close()
    (_, others), (member, until) = await redis_store.redis.zrange("aio:flying:{ada}", 0, -1, withscores=True)
    assert member == b"r0"
    assert until - seconds > 400
    assert others == seconds + 2


async def test_what_many_requests_ask_at_once_goes_in_few_round_trips(redis_store: RedisStore) -> None:
    limits, allowance = RedisWindows(redis_store), Allowance(requests_per_minute=1000, concurrency=1000)
    await limits.enter("ada", allowance, 0, "first")
    before = (await redis_store.redis.info("stats"))["total_reads_processed"]
    entries = await asyncio.gather(*(limits.enter("ada", allowance, 0, f"r{n}") for n in range(100)))
    for entry in entries:
        limits.leave(entry, 0)
    await limits.close()
    reads = (await redis_store.redis.info("stats"))["total_reads_processed"] - before
    assert not any(entry.refused for entry in entries)
    # 200 calls; a pipeline of 100 may arrive in several pieces.
    assert reads < 20
    assert await redis_store.redis.zcard("aio:flying:{ada}") == 1


async def test_tokens_are_put_right_by_the_next_request_or_by_a_tick(redis_store: RedisStore) -> None:
    limits, allowance = RedisWindows(redis_store), Allowance(tokens_per_minute=100)
    limits.leave(await limits.enter("ada", allowance, 90, "r1"), 10)
    second = await limits.enter("ada", allowance, 90, "r2")
    assert (second.refused, second.tokens and second.tokens.remaining) == ("", 0)
    limits.leave(second, 20)
    await limits.close()
    assert await redis_store.redis.hget("aio:window:{ada}", "t") == b"30"


async def test_a_redis_that_lost_the_scripts_gets_them_again_and_counts_once(redis_store: RedisStore) -> None:
    limits, allowance = RedisWindows(redis_store), Allowance(requests_per_minute=4)
    await limits.enter("ada", allowance, 0, "r0")
    await redis_store.redis.script_flush()
    entries = await asyncio.gather(*(limits.enter("ada", allowance, 0, f"r{n}") for n in range(1, 5)))
    assert [entry.refused for entry in entries] == ["", "", "", "requests"]


@pytest.mark.parametrize("closed", [False, True])
async def test_while_redis_is_away_requests_are_admitted_or_refused_as_configured(
    redis_server: RedisServer, closed: bool
) -> None:
    store = RedisStore(redis_server.url)
    limits, allowance = RedisWindows(store, closed=closed), Allowance(requests_per_minute=2, concurrency=5)
    before = await limits.enter("ada", allowance, 0, "r0")
    redis_server.kill()
    if closed:
        with pytest.raises(RedisUnavailableError):
            await limits.enter("ada", allowance, 0, "r1")
    else:
        alone: list[Entry] = [await limits.enter("ada", allowance, 0, f"a{n}") for n in range(3)]
        assert [entry.refused for entry in alone] == ["", "", "requests"]
        for entry in alone[:2]:
            limits.leave(entry, 5)
    limits.leave(before, 7)
    await limits.close()
    redis_server.start()
    store._rests_until = 0.0
    assert not (await limits.enter("ada", allowance, 0, "r2")).refused
    await store.redis.aclose()


async def test_what_is_counted_leaves_the_window_after_sixty_whole_seconds_and_its_second() -> None:
    clock = Clock(1000.25)
    limits, allowance = LocalWindows(clock), Allowance(requests_per_minute=2, tokens_per_minute=100)
    clock.now = 1000.75
    first = await limits.enter("ada", allowance, 30, "r1")
    assert (first.second, first.member, first.requested_tokens) == (1000, "", 30)
    assert first.requests == Room(limit=2, remaining=1, reset_seconds=60.25)
    assert first.tokens == Room(limit=100, remaining=70, reset_seconds=60.25)
    clock.now = 1010.5
    second = await limits.enter("ada", allowance, 70, "r2")
    assert (second.requests, second.tokens) == (Room(2, 0, 60.5), Room(100, 0, 60.5))
    # The newest that is counted leaves last; the refused one is not counted.
    third = await limits.enter("ada", allowance, 1, "r3")
    assert (third.refused, third.retry_seconds) == ("requests", 1061 - 1010.5)
    assert (third.requests, third.tokens) == (Room(2, 0, 1071 - 1010.5), Room(100, 0, 1071 - 1010.5))
    clock.now = 1060.9
    assert (await limits.enter("ada", allowance, 1, "r4")).refused == "requests"
    clock.now = 1061.0
    assert (await limits.enter("ada", allowance, 30, "r5")).requests == Room(2, 0, 61.0)


async def test_tokens_wait_until_enough_of_them_have_left() -> None:
    clock = Clock(1000.25)
    limits, allowance = LocalWindows(clock), Allowance(tokens_per_minute=100)
    for now, tokens in ((1000.0, 30), (1005.0, 30), (1009.0, 40)):
        clock.now = now
        assert not (await limits.enter("ada", allowance, tokens, "r")).refused
    waits = [(await limits.enter("ada", allowance, tokens, "r")).retry_seconds for tokens in (1, 30, 31, 60, 61, 100)]
    assert waits == [52.0, 52.0, 57.0, 57.0, 61.0, 61.0]
    refused = await limits.enter("ada", allowance, 31, "r")
    assert refused.requests is None
    assert refused.tokens == Room(100, 0, 61.0)


async def test_what_was_not_used_is_free_at_once_and_what_was_used_beyond_counts_where_it_was_asked_for() -> None:
    clock = Clock(1000.25)
    limits, allowance = LocalWindows(clock), Allowance(tokens_per_minute=100, concurrency=2)
    first = await limits.enter("ada", allowance, 50, "r1")
    clock.now += 10
    second = await limits.enter("ada", allowance, 50, "r2")
    limits.leave(first, 20)
    third = await limits.enter("ada", allowance, 30, "r3")
    assert (third.refused, third.tokens and third.tokens.remaining) == ("", 0)
    limits.leave(second, 60)
    fourth = await limits.enter("ada", allowance, 1, "r4")
    # Of 20, 60 and 30 the first leave first, which is enough.
    assert (fourth.refused, fourth.retry_seconds) == ("tokens", pytest.approx(61 - 10 - 0.25))
    clock.now += 100
    limits.leave(third, 500)
    assert (await limits.enter("ada", allowance, 100, "r5")).tokens == Room(100, 0, 60.75)


async def test_a_correction_leaves_the_window_with_the_second_that_it_corrects() -> None:
    clock = Clock(1000.25)
    limits, allowance = LocalWindows(clock), Allowance(tokens_per_minute=100)
    first = await limits.enter("ada", allowance, 50, "r1")
    clock.now += 10
    await limits.enter("ada", allowance, 20, "r2")
    limits.leave(first, 30)
    assert (await limits.enter("ada", allowance, 0, "r3")).tokens == Room(100, 50, 60.75)
    clock.now += 51
    assert (await limits.enter("ada", allowance, 0, "r4")).tokens == Room(100, 80, 60.75)
    # What used more after its second is gone counts no more.
    limits.leave(first, 500)
    assert (await limits.enter("ada", allowance, 0, "r5")).tokens == Room(100, 80, 60.75)


async def test_what_came_in_one_second_leaves_the_window_together_and_an_end_is_no_request() -> None:
    clock = Clock(1000.25)
    limits, allowance = LocalWindows(clock), Allowance(requests_per_minute=5, tokens_per_minute=100)
    entries = [await limits.enter("ada", allowance, 10, f"r{number}") for number in range(3)]
    assert [entry.retry_seconds for entry in entries] == [0.0] * 3
    for entry in entries:
        limits.leave(entry, 15)
    fourth = await limits.enter("ada", allowance, 10, "r3")
    assert (fourth.requests, fourth.tokens) == (Room(5, 1, 60.75), Room(100, 45, 60.75))
    clock.now += 61
    later = await limits.enter("ada", allowance, 10, "r4")
    assert (later.requests, later.tokens) == (Room(5, 4, 60.75), Room(100, 90, 60.75))


async def test_under_a_limit_that_was_lowered_enough_requests_have_to_leave() -> None:
    clock = Clock(1000.25)
    limits = LocalWindows(clock)
    for now in (1000.0, 1010.0, 1020.0):
        clock.now = now
        await limits.enter("ada", Allowance(requests_per_minute=3), 0, "r")
    refused = await limits.enter("ada", Allowance(requests_per_minute=2), 0, "r")
    assert (refused.refused, refused.retry_seconds) == ("requests", 1010 + 61 - 1020)


async def test_requests_in_flight_are_counted_apart_from_the_minute() -> None:
    clock = Clock(1000.25)
    limits, allowance = LocalWindows(clock), Allowance(concurrency=1)
    first = await limits.enter("ada", allowance, 5, "r1")
    refused = await limits.enter("ada", allowance, 5, "r2")
    assert (refused.refused, refused.retry_seconds, refused.requests, refused.tokens) == (
        "concurrency",
        1.0,
        None,
        None,
    )
    limits.leave(first, 5)
    # Its second is still in the window.
    assert limits._windows
    clock.now += 61
    again = await limits.enter("ada", allowance, 5, "r3")
    assert not again.refused
    clock.now += 61
    limits.leave(again, 5)
    assert not limits._windows


class Scripts:
    """In the place of Redis: `answers` the calls that wait, and keeps all calls."""

    def __init__(self, _: object) -> None:
        self.answers: list[Any] = []
        self.asked: list[tuple[list[str], list[Any]]] = []
        self.put_: list[tuple[list[str], list[Any], bool]] = []
        self.flushes = 0

    async def run(self, call: Call) -> Any:
        self.asked.append((list(call.keys), list(call.arguments)))
        return self.answers.pop(0)

    def put(self, call: Call, *, at_once: bool = True) -> None:
        self.put_.append((list(call.keys), list(call.arguments), at_once))

    async def flush(self) -> None:
        self.flushes += 1


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> tuple[RedisWindows, Scripts]:
    monkeypatch.setattr(redis_windows, "RedisScripts", Scripts)
    limits = RedisWindows(RedisStore("redis://127.0.0.1:1"))
    scripts: Any = limits._scripts
    return limits, scripts


KEYS = ["aio:window:{ada}", "aio:flying:{ada}"]


async def test_redis_is_asked_with_the_limits_and_judged_by_its_clock(scripted: tuple[RedisWindows, Scripts]) -> None:
    limits, scripts = scripted
    counted = [b"r", b"4", b"t", b"60", b"first", b"990", b"t1000", b"5", b"r995", b"1", b"t995", b"55", b"r1000", b"3"]
    scripts.answers = [[b"1007.25", 4, 60, 1, counted], [b"1007.25", 1, 30, 0, []], [b"1007.25", 1, 30, 0, []]]
    bounded = Allowance(requests_per_minute=4, tokens_per_minute=100, concurrency=2)
    refused = await limits.enter("ada", bounded, 40, "r1")
    assert scripts.asked == [(KEYS, [4, 100, 2, 40, "r1", 60, 60])]
    assert refused.refused == "requests"
    assert (refused.requested_tokens, refused.second, refused.member) == (40, 1007, "r1")
    # The oldest second that is counted is 995; the newest, 1000, leaves last.
    assert refused.retry_seconds == 995 + 61 - 1007.25
    assert (refused.requests, refused.tokens) == (Room(4, 0, 1061 - 1007.25), Room(100, 40, 1061 - 1007.25))
    scripts.answers[:0] = [[b"1007.25", 4, 60, 1, counted]] * 2
    # Of the oldest second's one request and 55 tokens there is one too few.
    for lowered, asked in ((Allowance(requests_per_minute=3), 0), (Allowance(tokens_per_minute=100), 96)):
        assert (await limits.enter("ada", lowered, asked, "r")).retry_seconds == 1000 + 61 - 1007.25
    scripts.asked[1:] = []
    admitted = await limits.enter("ada", Allowance(tokens_per_minute=100), 40, "r2")
    assert scripts.asked[1] == (KEYS, [-1, 100, -1, 40, "r2", 60, 60])
    assert (admitted.requests, admitted.tokens) == (None, Room(100, 30, 1007 + 61 - 1007.25))


async def test_redis_learns_of_an_end_that_frees_a_place_or_corrects_the_tokens(
    scripted: tuple[RedisWindows, Scripts],
) -> None:
    limits, scripts = scripted

    async def entered(member: str, **bounds: int) -> Entry:
        scripts.answers.append([b"1000.5", 0, 0, 0, []])
        return await limits.enter("ada", Allowance(**bounds), 30, member)

    first, second = [await entered(member, concurrency=3) for member in ("r1", "r2")]
    limits.renew()
    ((keys, (seconds, *members), at_once),) = scripts.put_
    assert (keys, seconds, sorted(members), at_once) == (KEYS[1:], 60, ["r1", "r2"], True)
    scripts.put_.clear()
    limits.leave(first, 30)
    limits.leave(second, 20)
    assert scripts.put_ == [(KEYS, [1000, 0, "r1"], True), (KEYS, [1000, -10, "r2"], True)]
    assert not limits._in_flight
    scripts.put_.clear()
    only_requests = await entered("r3", requests_per_minute=9)
    limits.leave(only_requests, 500)
    limits.leave(await entered("r4", tokens_per_minute=90), 30)
    assert scripts.put_ == [], "nothing that it counts has changed"
    limits.leave(await entered("r5", tokens_per_minute=90), 31)
    assert scripts.put_ == [(KEYS, [1000, 1, "r5"], False)]
    assert not limits._in_flight


async def test_without_redis_a_place_that_this_process_gave_is_given_back_here(
    scripted: tuple[RedisWindows, Scripts], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits, scripts = scripted

    async def away(_: Call) -> Any:
        raise RedisUnavailableError

    monkeypatch.setattr(scripts, "run", away)
    for _ in range(2):
        entry = await limits.enter("ada", Allowance(concurrency=1), 0, "r")
        assert (entry.refused, entry.member) == ("", "")
        limits.leave(entry, 0)
    assert scripts.put_ == []


async def test_places_are_renewed_every_20_seconds_and_what_waits_is_sent_every_second(
    scripted: tuple[RedisWindows, Scripts], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits, scripts = scripted
    scripts.answers = [[b"1000.5", 0, 0, 0, []]]
    await limits.enter("ada", Allowance(concurrency=3), 0, "r1")
    slept, renewals = 0.0, []

    async def sleep(seconds: float) -> None:
        nonlocal slept
        slept += seconds
        if slept > 45:
            raise asyncio.CancelledError

    monkeypatch.setattr(scripts, "put", lambda *_, **__: renewals.append(slept))
    with monkeypatch.context() as patch:
        patch.setattr(redis_windows.asyncio, "sleep", sleep)
        with pytest.raises(asyncio.CancelledError):
            await limits.follow()
    assert (renewals, scripts.flushes) == ([20.0, 40.0], 45)
