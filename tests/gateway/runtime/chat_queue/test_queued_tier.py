"""A tier behind the queue, against a worker that the test plays by hand: what is passed on, and what is never."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from gateway.base.stores.redis_store import RedisStore
from gateway.runtime.chat_queue.queued_tier import ChatQueue
from gateway.runtime.chat_queue.redis_chats import RedisChats, TakenChat
from gateway.runtime.chat_queue.wire import TierFacts, WorkerFacts, decoded_request, encoded_facts, piece_of
from inference_core.protocol import SamplingParams
from tests.polling import eventually
from tests.support.scripted_tier import ScriptedTier
from tiers.conversation import Turn
from tiers.errors import CallerCredential, TierCapabilityError, TierLostError, TierRequestError, TierUnavailableError
from tiers.tier import AnswerEnd, Delta, GenerationRequest, Tier, Usage

LONG = 1000.0


class Worker:
    """Takes chats and sends pieces of them, step by step."""

    def __init__(self, store: RedisStore, name: str) -> None:
        self.chats, self.name = RedisChats(store, LONG), name
        self.numbers: dict[tuple[str, int], int] = {}

    async def tell(self, tier: Tier) -> None:
        facts = WorkerFacts(tiers={tier.name: TierFacts.of(tier)}, cores={})
        await self.chats.keep(self.name, encoded_facts(facts), [])

    async def take(self) -> TakenChat:
        (taken,) = await eventually(lambda: self.chats.take(self.name, ["tier-1"], 1))
        chat: TakenChat = taken
        return chat

    async def say(self, taken: TakenChat, *words: str, used: int = 0, last: bool = False, **more: Any) -> int:
        """Write a piece with these words, and at the end what ends an answer."""
        request = decoded_request(taken.body, 0.0)
        request.meter.add(lambda: Usage(completion_tokens=used))
        deltas = [Delta(text=word) for word in words]
        if last and "failure" not in more:
            deltas += [Delta(finish_reason="stop"), Delta(end=AnswerEnd(usage=Usage(completion_tokens=used)))]
        place = (taken.chat, taken.deliveries)
        number = self.numbers[place] = more.pop("number", self.numbers.get(place, 0) + 1)
        piece = piece_of(request, deltas, ended=last, **more)
        return await self.chats.write(self.name, taken, number, piece, last=last)


class Answer:
    """What a caller of the tier has got so far."""

    def __init__(self, tier: Tier, **fields: Any) -> None:
        usual: dict[str, Any] = {"request_id": "r", "messages": [Turn.of("user", "hi")], "sampling": SamplingParams()}
        self.request = GenerationRequest(**usual | fields)
        self.words: list[str] = []
        self.end: AnswerEnd | None = None
        self.task = asyncio.create_task(self._read(tier))

    async def _read(self, tier: Tier) -> None:
        async with aclosing(tier.generate(self.request)) as deltas:  # type: ignore[type-var]
            async for delta in deltas:
                self.words += [delta.text] if delta.text else []
                self.end = delta.end or self.end


@pytest_asyncio.fixture
async def queue(redis_store: RedisStore, redis_url: str) -> AsyncIterator[ChatQueue]:
    made = ChatQueue(redis_store, redis_url, 1.5, 10)
    async with made.running():
        yield made


@pytest_asyncio.fixture
async def tier(queue: ChatQueue, redis_store: RedisStore) -> Tier:
    inner = ScriptedTier(1)
    queued = queue.queued(inner)
    await Worker(redis_store, "ada").tell(inner)
    return queued


@pytest.fixture
def ada(redis_store: RedisStore) -> Worker:
    return Worker(redis_store, "ada")


@pytest.fixture
def bob(redis_store: RedisStore) -> Worker:
    return Worker(redis_store, "bob")


async def test_words_come_in_order_and_each_piece_once(tier: Tier, ada: Worker) -> None:
    answer = Answer(tier)
    taken = await ada.take()
    await ada.say(taken, "a ", "b ", used=2)
    await ada.say(taken, "c", used=3)
    # A write that was repeated because its answer was lost.
    await ada.say(taken, "c", used=3, number=2)
    await ada.say(taken, used=3, last=True)
    await answer.task
    assert answer.words == ["a ", "b ", "c"]
    assert answer.request.meter.usage().completion_tokens == 3


async def test_a_chat_that_another_worker_starts_again_is_lost_to_a_stream_with_words(
    tier: Tier, ada: Worker, bob: Worker
) -> None:
    answer = Answer(tier)
    taken = await ada.take()
    await ada.say(taken, "a ", "b ", used=2)
    await eventually(lambda: answer.words)
    await ada.chats.hand_back(ada.name, taken)
    again = await bob.take()
    assert again.deliveries == 2
    await bob.say(again, "a ", "b ", "c")
    with pytest.raises(TierLostError):
        await answer.task
    assert answer.words == ["a ", "b "]
    # It is withdrawn, so that no worker computes it in vain.
    await eventually(lambda: _is_withdrawn(bob, again))
    assert answer.request.meter.usage().completion_tokens == 2


async def test_before_a_word_is_passed_on_the_next_worker_answers_instead(tier: Tier, ada: Worker, bob: Worker) -> None:
    answer = Answer(tier)
    taken = await ada.take()
    await ada.say(taken)
    await ada.chats.hand_back(ada.name, taken)
    again = await bob.take()
    assert await ada.say(taken, "late") == -1
    await bob.say(again, "all", used=1, last=True)
    await answer.task
    assert answer.words == ["all"]


async def test_a_whole_answer_is_one_workers_alone(tier: Tier, ada: Worker, bob: Worker) -> None:
    answer = Answer(tier, whole=True)
    taken = await ada.take()
    await ada.say(taken, "half of ", used=7)
    await ada.chats.hand_back(ada.name, taken)
    again = await bob.take()
    await bob.say(again, "all", used=1, last=True)
    await answer.task
    assert answer.words == ["all"]
    assert answer.end is not None
    assert answer.request.meter.usage() == answer.end.usage == Usage(completion_tokens=1)


async def test_an_error_comes_after_what_was_said_before(tier: Tier, ada: Worker) -> None:
    answer = Answer(tier)
    taken = await ada.take()
    await ada.say(taken, "a")
    await ada.say(taken, failure=TierRequestError("bad", "messages"), last=True)
    with pytest.raises(TierRequestError) as raised:
        await answer.task
    assert (answer.words, raised.value.param) == (["a"], "messages")


async def test_a_caller_that_leaves_gets_the_last_counts_of_its_worker(
    tier: Tier, ada: Worker, redis_store: RedisStore
) -> None:
    answer = Answer(tier)
    taken = await ada.take()
    await ada.say(taken, "a", used=1)
    await eventually(lambda: answer.words)
    answer.task.cancel()
    await asyncio.wait([answer.task])
    assert answer.request.meter.unsettled
    request = decoded_request(taken.body, 0.0)
    request.meter.add(lambda: Usage(completion_tokens=9))
    await eventually(lambda: _is_withdrawn(ada, taken))
    await ada.chats.settle(taken, 2, piece_of(request, [], left=True))
    await asyncio.wait(answer.request.meter.unsettled)
    assert answer.request.meter.usage().completion_tokens == 9


async def test_what_was_used_for_unread_words_counts(tier: Tier, queue: ChatQueue, ada: Worker) -> None:
    request = GenerationRequest(request_id="r", messages=[Turn.of("user", "hi")], sampling=SamplingParams())
    deltas: Any = tier.generate(request)
    first = asyncio.ensure_future(anext(deltas))
    taken = await ada.take()
    await ada.say(taken, "a", used=1)
    await first
    await ada.say(taken, "b", used=2)
    await ada.say(taken, used=5, last=True)
    await eventually(lambda: all(chat.has_ended for chat in queue._open.values()))
    assert request.meter.usage().completion_tokens == 1
    await deltas.aclose()
    assert (request.meter.usage().completion_tokens, request.meter.unsettled) == (5, [])


async def _is_withdrawn(worker: Worker, taken: TakenChat) -> bool:
    return bool(await worker.chats.keep(worker.name, b"", [taken]))


async def test_the_counts_of_a_worker_that_lost_its_chat_end_nothing(tier: Tier, ada: Worker, bob: Worker) -> None:
    answer = Answer(tier)
    taken = await ada.take()
    await ada.say(taken)
    await ada.chats.hand_back(ada.name, taken)
    again = await bob.take()
    request = decoded_request(taken.body, 0.0)
    await ada.chats.settle(taken, 5, piece_of(request, [], left=True))
    await bob.say(again, "all", last=True)
    await answer.task
    assert answer.words == ["all"]


async def test_a_chat_that_redis_forgot_is_queued_again(tier: Tier, ada: Worker, redis_store: RedisStore) -> None:
    answer = Answer(tier)
    await ada.take()
    await redis_store.redis.flushall()
    await ada.tell(ScriptedTier(1))
    taken = await ada.take()
    await ada.say(taken, "all", last=True)
    await answer.task
    assert answer.words == ["all"]


async def test_a_chat_of_a_tier_that_no_worker_has_any_more_fails(
    redis_store: RedisStore, redis_url: str, ada: Worker
) -> None:
    queue = ChatQueue(redis_store, redis_url, 0.1, 10)
    async with queue.running():
        answer = Answer(queue.queued(ScriptedTier(1)))
        with pytest.raises(TierUnavailableError, match="no worker"):
            await answer.task
    assert await ada.chats.take("ada", ["tier-1"], 1) == []


async def test_a_callers_credential_enters_no_queue(tier: Tier, redis_store: RedisStore) -> None:
    answer = Answer(tier, credential=CallerCredential("Bearer secret-of-the-caller"))
    with pytest.raises(TierCapabilityError):
        await answer.task
    assert await redis_store.redis.keys("*requests*") == []


async def test_the_tier_is_what_its_workers_say(tier: Tier, queue: ChatQueue, ada: Worker) -> None:
    told = ScriptedTier(1, model="theirs", max_context=77)
    told.health = msgspec.structs.replace(told.health, predicted_wait_seconds=2.5)
    await ada.tell(told)
    await eventually(lambda: queue.facts("tier-1") is not None and queue.load("tier-1").predicted_wait_seconds == 2.5)
    await tier.start()
    assert (tier.model, tier.max_context, tier.load().healthy) == ("theirs", 77, True)
    assert tier.load().predicted_wait_seconds == 2.5
