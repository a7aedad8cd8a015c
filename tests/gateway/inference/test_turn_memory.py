"""What is remembered of an answer belongs to one key. Any process finds it, and it is forgotten with the key."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.base.inference_request import Caller
from gateway.base.stores.redis_store import RedisStore
from gateway.inference.turn_memory import DatabaseTurns, RedisTurns, StoredTurn, TurnMemory, TurnStore
from migrations.tables.columns import metadata
from quality.store.database import open_database
from quality.store.queries import delete_key_data
from tests.gateway.chats import chat
from tiers.catalog.consent import Consent
from tiers.conversation import Call, Opaque, OpaquePiece, Thought, ToolCallDelta, Turn
from tiers.deltas import CollectedChoice
from tiers.tier import Delta

CALL = Call(id="call_1", name="weather", arguments='{"city": "Oslo"}')
AGAIN = Call(id="call_1", name="weather", arguments='{"city":"Oslo"}')
THOUGHT = OpaquePiece("messages", block=Opaque("messages", b'{"type":"thinking"}', "thinking", seal="EqQB"))
SAID = Turn.of("assistant", "I look it up.", calls=(AGAIN,))


def answered(key_id: str, answered_by: str = "deepseek", opaque: OpaquePiece | None = None, **fields: Any) -> Any:
    """An answer with thoughts and a call, as far as it is read."""
    choice = CollectedChoice()
    call = ToolCallDelta(index=0, id=CALL.id, name=CALL.name, arguments=CALL.arguments)
    choice.take(Delta(text="I look it up.", reasoning="Oslo, then.", tool_calls=[call], opaque=opaque))
    request = chat("Weather?", caller=Caller(key_id=key_id), **fields)
    return SimpleNamespace(request=request, choices=[choice], answered_by=answered_by)


def is_recalled(turn: Turn) -> bool:
    return bool(turn.recalled)


def thinking(thoughts: str) -> Turn:
    """The same turn, as a client that carries its thoughts gives it back."""
    return SAID.with_blocks([Thought(thoughts), *SAID.blocks])


async def recalled(memory: TurnMemory, key_id: str, said: Turn = SAID) -> Turn:
    """The turn as `key_id` gets it back."""
    user = Turn.of("user", "Weather?")
    return (await memory.recall(chat(messages=[user, said], caller=Caller(key_id=key_id))))[1]


async def test_reasoning_is_recalled_for_its_key_until_that_is_erased() -> None:
    memory, keys = TurnMemory(), ("ada", "bob", "eve")
    for name in keys[:2]:
        memory.remember(answered(name, opaque=THOUGHT))

    async def has() -> list[bool]:
        return [is_recalled(await recalled(memory, name)) for name in keys]

    assert await has() == [True, True, False]
    await memory.erase("ada")
    assert (await has(), len(memory)) == ([False, True, False], 1)
    await memory.erase("bob")
    assert len(memory) == 0


async def test_a_whole_turn_is_replaced_only_if_its_client_has_not_changed_it() -> None:
    memory = TurnMemory()
    memory.remember(answered("ada", opaque=THOUGHT))
    assert is_recalled(await recalled(memory, "ada"))
    other = SAID.with_text("I look nothing up.")
    assert not is_recalled(await recalled(memory, "ada", other))


async def test_thoughts_of_two_servers_with_the_same_ids_have_their_own_servers() -> None:
    memory = TurnMemory()
    memory.remember(answered("ada", "first"))
    second = answered("ada", "second")
    second.choices[0].thoughts = ["Something else."]
    memory.remember(second)
    for thought, answered_by in (("Oslo, then.", "first"), ("Something else.", "second")):
        assert (await recalled(memory, "ada", thinking(thought))).answered_by == answered_by


async def test_texts_that_may_not_be_stored_are_nowhere_but_their_server_is_known() -> None:
    store = Recorder()
    memory = TurnMemory(store=store)
    rows = memory.remember(answered("ada", own_consent=Consent(reuse=False)))
    assert rows == []
    assert not is_recalled(await recalled(memory, "ada"))
    assert (await recalled(memory, "ada", thinking("Oslo, then."))).answered_by == "deepseek"


class Recorder(TurnStore):
    """A store of which nothing is found; `asked` are the turns that were looked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    async def _get(self, turn_ids: Any) -> dict[str, bytes]:
        self.asked += turn_ids
        return {}

    async def _put(self, turn: StoredTurn) -> None:
        raise AssertionError(turn)


async def test_a_turn_of_which_nothing_is_recalled_is_looked_for_once() -> None:
    store = Recorder()
    memory = TurnMemory(store=store)
    for _ in range(2):
        await recalled(memory, "ada")
    assert len(store.asked) == 1


@pytest.fixture(params=["database", "redis"])
async def stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    """A function that opens the store of another process, bounded to 4,000 bytes, and one that erases a user."""
    if request.param == "redis":
        redis = RedisStore(request.getfixturevalue("redis_url"))
        store = RedisTurns(redis, 4000)
        yield lambda: RedisTurns(redis, 4000), lambda key_id: store.forget(key_id, time.time())
        await redis.redis.aclose()
        return
    async with database(tmp_path) as engine:
        yield lambda: DatabaseTurns(engine, 4000), lambda key_id: delete_key_data(engine, key_id, now=time.time())


@asynccontextmanager
async def database(folder: Path) -> AsyncIterator[Any]:
    engine = open_database(f"sqlite:///{folder / 'aio.sqlite3'}")
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    yield engine
    await engine.dispose()


async def test_another_process_finds_it_until_the_user_is_erased(stores: Any) -> None:
    opened, erase = stores
    first, second = TurnMemory(store=opened()), TurnMemory(store=opened())
    answer = answered("ada")
    await first.save(first.remember(answer))
    found = await recalled(second, "ada")
    assert (found.answered_by, is_recalled(found)) == ("deepseek", True)
    assert not is_recalled(await recalled(TurnMemory(store=opened()), "bob"))
    await erase("ada")
    assert not is_recalled(await recalled(TurnMemory(store=opened()), "ada"))
    # An answer to a request from before the erasure comes too late.
    await first.save(first.remember(answer))
    assert not is_recalled(await recalled(TurnMemory(store=opened()), "ada"))


async def test_the_oldest_turns_go_first(stores: Any) -> None:
    opened, _ = stores
    store, now = opened(), time.time()
    names = [f"{number:02d}" for number in range(20)]
    turns = [
        StoredTurn(turn_id=name, key_id="ada", tenant="ada", content=bytes(900), created_at=now + place)
        for place, name in enumerate(names)
    ]
    await store.put(turns)
    found = await opened().get(names)
    assert "19" in found
    assert "00" not in found
    assert sum(map(len, found.values())) <= 4000
