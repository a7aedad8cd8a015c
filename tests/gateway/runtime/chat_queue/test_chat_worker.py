"""A worker with scripted tiers, against a gateway that the test plays by hand: what it takes, answers and gives up."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Protocol

import pytest
import pytest_asyncio

from gateway.base.stores.redis_store import RedisStore
from gateway.runtime.chat_queue import redis_chats
from gateway.runtime.chat_queue.chat_worker import ChatWorker
from gateway.runtime.chat_queue.redis_chats import MOST_DELIVERIES, RedisChats, result_of, results_of
from gateway.runtime.chat_queue.wire import Piece, decoded_facts, decoded_piece, encoded_request
from inference_core.protocol import SamplingParams
from tests.polling import eventually
from tests.support.scripted_tier import WORDS, ScriptedTier
from tiers.conversation import Turn
from tiers.errors import TierLostError, TierUnavailableError
from tiers.tier import GenerationRequest

LEASE = 30.0


class Gateway:
    """Puts chats and reads their results."""

    def __init__(self, store: RedisStore) -> None:
        self.chats, self._redis = RedisChats(store, LEASE), store.redis
        self._put = 0

    async def put(self, tier: str = "tier-1", **fields: Any) -> str:
        self._put += 1
        usual: dict[str, Any] = {"request_id": "r", "messages": [Turn.of("user", "hi")], "sampling": SamplingParams()}
        body = encoded_request(GenerationRequest(**usual | fields))
        assert await self.chats.put("gw", str(self._put), tier, 1, body, 1000)
        return str(self._put)

    async def pieces(self, chat: str) -> list[Piece]:
        results = [result_of(fields) for _, fields in await self._redis.xrange(results_of("gw"))]
        return [decoded_piece(piece) for number, _, _, piece in results if number == chat]

    async def answer(self, chat: str) -> list[Piece]:
        """The pieces of a chat that has ended."""

        async def ended() -> list[Piece] | None:
            pieces = await self.pieces(chat)
            return pieces if pieces and (pieces[-1].ended or pieces[-1].left) else None

        pieces: list[Piece] = await eventually(ended)
        return pieces


class StartWorker(Protocol):
    async def __call__(self, *tiers: ScriptedTier, concurrency: int = 8) -> ChatWorker: ...


@pytest_asyncio.fixture
async def start(redis_store: RedisStore, redis_url: str) -> AsyncIterator[StartWorker]:
    async with AsyncExitStack() as stack:

        async def started(*tiers: ScriptedTier, concurrency: int = 8) -> ChatWorker:
            worker = ChatWorker(redis_store, redis_url, LEASE, lambda: tiers, {}, concurrency, lambda: None)
            await stack.enter_async_context(worker.working())
            return worker

        yield started


@pytest_asyncio.fixture
async def gateway(redis_store: RedisStore) -> Gateway:
    made = Gateway(redis_store)
    await made.chats.look("gw")
    return made


def said(pieces: list[Piece]) -> str:
    return "".join(delta.text for piece in pieces for delta in piece.deltas)


async def test_a_stream_is_sent_as_it_is_made_and_ends_with_its_usage(gateway: Gateway, start: StartWorker) -> None:
    tier = ScriptedTier(1)
    tier.hold_at = 2
    await start(tier)
    chat = await gateway.put()
    await tier.holding.wait()
    pieces = await eventually(lambda: _that_say(gateway, chat, "".join(WORDS[:2])))
    assert not pieces[-1].ended
    tier.go.set()
    pieces = await gateway.answer(chat)
    assert said(pieces) == "".join(WORDS)
    assert pieces[-1].deltas[-1].end is not None
    assert pieces[-1].usage.completion_tokens == len(WORDS)


async def _that_say(gateway: Gateway, chat: str, text: str) -> list[Piece] | None:
    pieces = await gateway.pieces(chat)
    return pieces if said(pieces) == text else None


async def test_a_whole_answer_is_one_piece(gateway: Gateway, start: StartWorker) -> None:
    await start(ScriptedTier(1))
    pieces = await gateway.answer(await gateway.put(whole=True))
    assert (len(pieces), said(pieces)) == (1, "".join(WORDS))


async def test_a_worker_that_ends_hands_back_what_has_not_ended(gateway: Gateway, start: StartWorker) -> None:
    tier = ScriptedTier(1)
    tier.hold_at = 1
    worker = await start(tier)
    chat = await gateway.put(whole=True)
    await tier.holding.wait()
    await worker.drain(0.0)
    assert (tier.closed_early, worker.running) == (1, 0)
    assert (await gateway.chats.look("gw")).workers == []
    (taken,) = await gateway.chats.take("another", ["tier-1"], 1)
    assert (taken.chat, taken.deliveries) == (chat, 2)


async def test_a_withdrawn_chat_is_closed_at_once_and_its_counts_are_sent(gateway: Gateway, start: StartWorker) -> None:
    tier = ScriptedTier(1)
    tier.hold_at = 3
    await start(tier)
    chat = await gateway.put(whole=True)
    await tier.holding.wait()
    assert await gateway.chats.withdraw("gw", chat)
    await tier.ended.wait()
    (last,) = await gateway.answer(chat)
    assert (last.left, last.ended, last.usage.completion_tokens) == (True, False, 3)


async def test_a_chat_that_has_ended_several_workers_fails(gateway: Gateway, start: StartWorker) -> None:
    chat = await gateway.put()
    for number in range(MOST_DELIVERIES):
        (taken,) = await gateway.chats.take(f"dead-{number}", ["tier-1"], 1)
        await gateway.chats.hand_back(f"dead-{number}", taken)
    tier = ScriptedTier(1)
    await start(tier)
    (last,) = await gateway.answer(chat)
    assert last.failure is not None
    assert isinstance(last.failure.error(), TierLostError)
    assert tier.requests == []


async def test_a_chat_that_was_taken_over_begins_with_a_sign_of_it(gateway: Gateway, start: StartWorker) -> None:
    chat = await gateway.put(whole=True)
    (taken,) = await gateway.chats.take("dead", ["tier-1"], 1)
    await gateway.chats.hand_back("dead", taken)
    await start(ScriptedTier(1))
    first, last = await gateway.answer(chat)
    assert (first.deltas, first.ended, said([last])) == ([], False, "".join(WORDS))


async def test_a_strict_deadline_that_passed_in_the_queue_is_refused(gateway: Gateway, start: StartWorker) -> None:
    chat = await gateway.put(deadline=time.monotonic() + 0.05, strict_deadline=True)
    await asyncio.sleep(0.1)
    tier = ScriptedTier(1)
    await start(tier)
    (last,) = await gateway.answer(chat)
    assert last.failure is not None
    assert isinstance(last.failure.error(), TierUnavailableError)
    assert tier.requests == []


async def test_a_bug_of_a_tier_fails_its_chat_alone_and_says_nothing_of_it(
    gateway: Gateway, start: StartWorker
) -> None:
    tier = ScriptedTier(1)
    tier.fail_at, tier.error = 2, RuntimeError("secret")
    await start(tier)
    pieces = await gateway.answer(await gateway.put())
    assert said(pieces) == "".join(WORDS[:2])
    assert pieces[-1].failure is not None
    assert "secret" not in str(pieces[-1].failure)
    tier.fail_at = None
    assert said(await gateway.answer(await gateway.put())) == "".join(WORDS)


async def test_no_more_chats_are_taken_than_are_answered_at_once_and_tiers_take_turns(
    gateway: Gateway, start: StartWorker
) -> None:
    chats = [await gateway.put(f"tier-{number}") for number in (1, 1, 1, 2, 2, 2)]
    tiers = [ScriptedTier(1), ScriptedTier(2)]
    for tier in tiers:
        tier.hold_at = 0
    worker = await start(*tiers, concurrency=2)
    await eventually(lambda: tiers[0].requests)
    assert worker.running == 2
    for tier in tiers:
        tier.go.set()
    for chat in chats:
        await gateway.answer(chat)
    assert [len(tier.requests) for tier in tiers] == [3, 3]


async def test_a_tier_waits_for_a_gateway_that_reads_nothing(
    gateway: Gateway, start: StartWorker, monkeypatch: pytest.MonkeyPatch, redis_store: RedisStore
) -> None:
    monkeypatch.setattr(redis_chats, "MOST_RESULTS", 2)
    tier = ScriptedTier(1)
    tier.words = tuple(f"{n} " for n in range(1000))
    await start(tier)
    await gateway.put()
    await eventually(lambda: _results(redis_store, 2))
    await asyncio.sleep(0.3)
    assert await _results(redis_store, 2)
    made = tier.requests[0].meter.usage().completion_tokens
    assert made < 300
    texts: list[str] = []
    while not await _is_over(gateway):
        texts += await _read(redis_store)
        await asyncio.sleep(0.01)
    texts += await _read(redis_store)
    assert "".join(texts) == "".join(tier.words)


async def _read(store: RedisStore) -> list[str]:
    """Take what is among the results."""
    entries = await store.redis.xrange(results_of("gw"))
    for entry, _ in entries:
        await store.redis.xdel(results_of("gw"), entry)
    return [said([decoded_piece(result_of(fields)[3])]) for _, fields in entries]


async def _results(store: RedisStore, number: int) -> bool:
    return int(await store.redis.xlen(results_of("gw"))) == number


async def _is_over(gateway: Gateway) -> bool:
    return not (await gateway.chats.look("gw")).open_chats


async def test_it_tells_what_it_has(gateway: Gateway, start: StartWorker) -> None:
    tier = ScriptedTier(3, model="mine", max_context=99)
    await start(tier)
    (facts,) = (await gateway.chats.look("gw")).workers
    told = decoded_facts(facts).tiers["tier-3"]
    assert (told.model, told.max_context, told.healthy) == ("mine", 99, True)
