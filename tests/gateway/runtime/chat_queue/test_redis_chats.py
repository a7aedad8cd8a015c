"""The queue over a real Redis, step by step against a model: each chat to one worker at a time, and ended once."""

import asyncio
from typing import Any, TypeVar

import pytest
import redis
from hypothesis import settings, strategies
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from gateway.base.stores.redis_store import RedisStore
from gateway.runtime.chat_queue import redis_chats
from gateway.runtime.chat_queue.redis_chats import Depth, RedisChats, TakenChat, result_of, results_of
from tests.support.database import RedisServer

T = TypeVar("T")
LONG, SHORT = 1000.0, 0.2
MOST = 4
TIERS = ("one", "two words")
WORKERS = ("ada", "bob")
_SERVERS: list[RedisServer] = []


class QueueMachine(RuleBasedStateMachine):
    """A lease ends where a chat is handed back: both leave the entry to the worker that takes next."""

    held = Bundle("held")
    """Chats with the worker that took them, and the delivery that it is."""

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        _SERVERS[0].flush()
        self.plain = redis.Redis(port=_SERVERS[0].port)
        self.loop.run_until_complete(self._begin())
        self.waiting: dict[tuple[str, int], list[str]] = {}
        self.released: dict[str, int] = {}
        self.holder: dict[str, tuple[str, int]] = {}
        self.ended: set[str] = set()
        self.results: dict[str, list[tuple[int, bytes]]] = {}
        self.number = 0

    async def _begin(self) -> None:
        self.store = RedisStore(_SERVERS[0].url)
        self.chats = RedisChats(self.store, LONG)
        await self.chats.look("gw")

    def do(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.do(self.store.redis.aclose())
            self.plain.close()
            self.loop.close()

    @rule(tier=strategies.sampled_from(TIERS), priority=strategies.integers(0, 2))
    def put(self, tier: str, priority: int) -> None:
        self.number += 1
        chat = str(self.number)
        queue = self.waiting.setdefault((tier, priority), [])
        took = self.do(self.chats.put("gw", chat, tier, priority, chat.encode(), MOST))
        assert took == (len(queue) < MOST)
        if took:
            queue.append(chat)
            # A repeated call, after a lost answer.
            assert self.do(self.chats.put("gw", chat, tier, priority, chat.encode(), MOST))

    @rule(target=held, worker=strategies.sampled_from(WORKERS), most=strategies.integers(1, 3))
    def take(self, worker: str, most: int) -> Any:
        taken: list[TakenChat] = self.do(self.chats.take(worker, TIERS, most))
        expected = self._next(most)
        assert [chat.chat for chat in taken] == [chat for chat, _ in expected]
        assert [chat.deliveries for chat in taken] == [deliveries for _, deliveries in expected]
        assert all(chat.body == chat.chat.encode() and chat.tier in TIERS for chat in taken)
        for chat in taken:
            self.holder[chat.chat] = (worker, chat.deliveries)
        return multiple(*((chat, worker) for chat in taken))

    def _next(self, most: int) -> list[tuple[str, int]]:
        """What a worker gets next, with its deliveries: by priority, by tier; those of the dead first."""
        found: list[tuple[str, int]] = []
        for priority in redis_chats.PRIORITIES:
            for tier in TIERS:
                queue = self.waiting.get((tier, priority), [])
                left = [chat for chat in queue if chat in self.released]
                new = [chat for chat in queue if chat not in self.released]
                for chat in [*left, *new][: most - len(found)]:
                    queue.remove(chat)
                    found.append((chat, self.released.pop(chat, 0) + 1))
        return found

    @rule(pair=held, piece=strategies.binary(max_size=9), last=strategies.booleans())
    def write(self, pair: tuple[TakenChat, str], piece: bytes, last: bool) -> None:
        chat, worker = pair
        holds = self.holder.get(chat.chat) == (worker, chat.deliveries) or (
            # The same worker has taken it again: one task of it replaces the other.
            self.holder.get(chat.chat, ("", 0))[0] == worker
        )
        number = len(self.results.get(chat.chat, [])) + 1
        written = self.do(self.chats.write(worker, chat, number, piece, last=last))
        assert written == (1 if holds else -1)
        if holds:
            self.results.setdefault(chat.chat, []).append((chat.deliveries, piece))
            if last:
                self.ended.add(chat.chat)
                del self.holder[chat.chat]

    @rule(pair=consumes(held))
    def lease_ends(self, pair: tuple[TakenChat, str]) -> None:
        chat, worker = pair
        self.do(self.chats.hand_back(worker, chat))
        if self.holder.get(chat.chat, ("", 0))[0] == worker:
            _, deliveries = self.holder.pop(chat.chat)
            self.released[chat.chat] = deliveries
            tier, priority = chat.stream.removeprefix("aio:{chats}:requests:").rsplit(":", 1)
            queue = self.waiting.setdefault((tier, int(priority)), [])
            queue.append(chat.chat)
            queue.sort(key=int)

    @rule(pair=held)
    def leave(self, pair: tuple[TakenChat, str]) -> None:
        chat, _ = pair
        held = self.do(self.chats.withdraw("gw", chat.chat))
        assert held == (chat.chat in self.holder or chat.chat in self.released)
        self.holder.pop(chat.chat, None)
        self.released.pop(chat.chat, None)
        for queue in self.waiting.values():
            if chat.chat in queue:
                queue.remove(chat.chat)

    @rule(pair=held)
    def keep(self, pair: tuple[TakenChat, str]) -> None:
        chat, worker = pair
        lost = self.do(self.chats.keep(worker, b"facts", [chat]))
        assert bool(lost) == (self.holder.get(chat.chat, ("", 0))[0] != worker)

    @invariant()
    def the_gateway_sees_what_there_is(self) -> None:
        if not hasattr(self, "number"):
            return
        seen = self.do(self.chats.look("gw"))
        waiting = {chat for queue in self.waiting.values() for chat in queue}
        assert seen.open_chats == waiting | set(self.holder)
        # A chat whose lease is over is still pending.
        depths = self.do(self.chats.depths(TIERS)).values()
        assert sum(depth.waiting for depth in depths) == len(waiting) - len(self.released)
        assert sum(depth.running for depth in depths) == len(self.holder) + len(self.released)

    @invariant()
    def results_are_in_order_and_nothing_follows_an_end(self) -> None:
        if not hasattr(self, "number"):
            return
        by_chat: dict[str, list[tuple[int, bytes]]] = {}
        for _, fields in self.plain.xrange(results_of("gw")):
            chat, delivery, _, piece = result_of(fields)
            by_chat.setdefault(chat, []).append((delivery, piece))
        assert by_chat == self.results
        assert all([d for d, _ in pieces] == sorted(d for d, _ in pieces) for pieces in by_chat.values())


@pytest.fixture(autouse=True)
def _server(redis_server: RedisServer) -> Any:
    _SERVERS[:] = [redis_server]
    yield
    _SERVERS.clear()


QueueMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30)
TestQueue = QueueMachine.TestCase


async def idle_ms(store: RedisStore, taken: TakenChat) -> int:
    """How long nothing was heard of the worker of a chat."""
    (pending,) = await store.redis.xpending_range(taken.stream, "workers", "-", "+", 1)
    return int(pending["time_since_delivered"])


async def test_a_silent_worker_loses_its_chat_after_its_lease_and_not_before(redis_store: RedisStore) -> None:
    patient, hasty = RedisChats(redis_store, LONG), RedisChats(redis_store, SHORT)
    await patient.look("gw")
    await patient.put("gw", "1", "t", 1, b"", MOST)
    (mine,) = await patient.take("ada", ["t"], 5)
    await asyncio.sleep(SHORT)
    assert await patient.take("bob", ["t"], 5) == []
    (theirs,) = await hasty.take("bob", ["t"], 5)
    assert (theirs.chat, theirs.deliveries) == ("1", 2)
    assert await patient.keep("ada", b"", [mine]) == [mine]
    assert await patient.write("ada", mine, 1, b"late", last=True) == -1
    assert await patient.write("bob", theirs, 1, b"said", last=True) == 1


async def test_a_write_and_a_sign_of_life_renew_the_lease(redis_store: RedisStore) -> None:
    chats = RedisChats(redis_store, LONG)
    await chats.look("gw")
    await chats.put("gw", "1", "t", 1, b"", MOST)
    (mine,) = await chats.take("ada", ["t"], 5)
    for renew in (chats.write("ada", mine, 1, b"", last=False), chats.keep("ada", b"", [mine])):
        await asyncio.sleep(SHORT)
        before = await idle_ms(redis_store, mine)
        await renew
        assert await idle_ms(redis_store, mine) < before


async def test_chats_of_a_gateway_that_is_gone_are_dropped_not_answered(redis_store: RedisStore) -> None:
    chats = RedisChats(redis_store, SHORT)
    await RedisChats(redis_store, LONG).look("gw")
    await chats.put("gw", "1", "t", 1, b"", MOST)
    await chats.put("gw", "2", "t", 1, b"", MOST)
    (held,) = await chats.take("ada", ["t"], 1)
    await chats.look("gw")
    await asyncio.sleep(3 * SHORT)
    assert await chats.write("ada", held, 1, b"", last=False) == -1
    assert await chats.take("ada", ["t"], 5) == []
    assert (await chats.depths(["t"]))["t"] == Depth()
    assert await redis_store.redis.exists(results_of("gw")) == 0


async def test_unread_results_make_workers_wait(redis_store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_chats, "MOST_RESULTS", 3)
    chats = RedisChats(redis_store, LONG)
    await chats.look("gw")
    await chats.put("gw", "1", "t", 1, b"", MOST)
    (held,) = await chats.take("ada", ["t"], 1)
    written = [await chats.write("ada", held, number, b"", last=False) for number in range(1, 6)]
    assert written == [1, 1, 1, 0, 0]
    await redis_store.redis.xtrim(results_of("gw"), maxlen=1, approximate=False)
    assert await chats.write("ada", held, 4, b"", last=True) == 1


async def test_the_gateway_sees_the_age_of_the_oldest_that_waits(redis_store: RedisStore) -> None:
    chats = RedisChats(redis_store, LONG)
    await chats.look("gw")
    await chats.put("gw", "1", "t", 1, b"", MOST)
    await asyncio.sleep(0.1)
    await chats.put("gw", "2", "t", 2, b"", MOST)
    assert 0.1 <= (await chats.depths(["t"]))["t"].oldest_seconds < 5
    assert [taken.chat for taken in await chats.take("ada", ["t"], 1)] == ["1"]
    assert (await chats.depths(["t"]))["t"].oldest_seconds < 0.1


async def test_a_worker_that_tells_nothing_for_a_lease_is_gone(redis_store: RedisStore) -> None:
    patient, hasty = RedisChats(redis_store, LONG), RedisChats(redis_store, SHORT)
    await patient.keep("ada", b"\x00 binary\n facts", [])
    await asyncio.sleep(2 * SHORT)
    assert (await patient.look("gw")).workers == [b"\x00 binary\n facts"]
    assert (await hasty.look("gw")).workers == []
