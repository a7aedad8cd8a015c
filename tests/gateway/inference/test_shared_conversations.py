"""Conversations over several processes, and very many of them in one."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from gateway.base.inference_request import Caller, ClientTurn
from gateway.base.settings import Settings
from gateway.base.stores.redis_store import open_redis
from gateway.inference.agent_session import CachedPrefix, Session
from gateway.inference.conversations import MOST, REPEAT_SECONDS, Conversations, SharedTurns
from gateway.inference.router import RoutingService
from tests.gateway.inference.test_conversations import ANSWER, CATALOG, HELLO, MORE, ask
from tests.polling import eventually
from tests.support.app import RunningGateway, running_gateway
from tests.support.clock import Clock
from tests.support.database import RedisServer
from tests.support.scripted_classifier import ScriptedClassifier

SESSIONS = 150_000
TURNS = [HELLO, ANSWER, MORE]


def resident() -> int:
    """Bytes of this process in memory."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * 4096


async def test_another_process_goes_on_with_a_conversation(redis_url: str) -> None:
    async with open_redis(redis_url) as redis:
        assert redis is not None
        turns = SharedTurns(redis)
        one, other, alone = Conversations(shared=turns), Conversations(shared=turns), Conversations()
        one.remember(ask(HELLO), 3)
        one.remember(ask(HELLO, conversation="c1"), 4)
        await turns.flush()
        for known in (other, alone):
            await known.fetch(ask(*TURNS))
            await known.fetch(ask(MORE, conversation="c1"))
        assert other.history(ask(*TURNS)).tiers == (4,)
        assert other.history(ask(MORE, conversation="c1")).tiers == (4,)
        assert alone.history(ask(*TURNS)).tiers == ()
        other.remember(ask(MORE, conversation="c1"), 1)
        await turns.flush()
        await one.fetch(ask(MORE, conversation="c1"))
        assert one.history(ask(MORE, conversation="c1")).tiers == (4, 1), "an id continued elsewhere"


async def test_another_process_knows_that_a_session_is_private(redis_url: str) -> None:
    async with open_redis(redis_url) as redis:
        assert redis is not None
        turns = SharedTurns(redis)
        one, other, alone = Conversations(shared=turns), Conversations(shared=turns), Conversations()
        one.note_private(ask(HELLO))
        one.note_private(ask(HELLO, conversation="c1"))
        await turns.flush()
        for going_on in (ask(*TURNS), ask(MORE, conversation="c1")):
            assert await other.is_private(going_on)
            assert not await alone.is_private(going_on)
        assert not await other.is_private(ask(MORE, conversation="c2"))
        assert not await other.is_private(ask(*TURNS, caller=Caller(key_id="bob")))
        await other.fetch(ask(*TURNS))
        assert other.history(ask(*TURNS)).tiers == (), "which tiers answered is another matter"


async def test_a_session_is_forgotten_as_private_after_an_hour_without_a_private_request(clock: Clock) -> None:
    known = Conversations(clock=clock)
    known.note_private(ask(HELLO, conversation="c1"))
    clock.now += known.seconds - 1
    assert await known.is_private(ask(MORE, conversation="c1"))
    clock.now += 2
    assert not await known.is_private(ask(MORE, conversation="c1"))


async def test_redis_forgets_a_conversation_after_its_time_and_keeps_no_text(redis_url: str) -> None:
    async with open_redis(redis_url) as redis:
        assert redis is not None
        known = Conversations(shared=(turns := SharedTurns(redis)))
        known.remember(ask(HELLO), 2, seconds=60)
        await turns.flush()
        (key,) = await redis.redis.keys("aio:turns:*")
        assert b"sea" not in key
        assert await redis.redis.get(key) == b"2"
        assert 59_000 < await redis.redis.pttl(key) <= 60_000


async def test_another_process_knows_how_a_session_stands(redis_url: str) -> None:
    async with open_redis(redis_url) as redis:
        assert redis is not None
        turns = SharedTurns(redis)
        one, other = Conversations(shared=turns), Conversations(shared=turns)
        client = ClientTurn(client="opencode", session="s1")
        stands = Session(id=b"0123456789abcdef", at=5.0, loop_steps=3, errors=2, caches=(CachedPrefix(2, 900, 5.0),))
        one.remember(ask(HELLO, client=client), 2, session=lambda before: stands)
        await turns.flush()
        rewritten = ask(("user", "Summary."), ANSWER, MORE, client=client)
        await other.fetch(rewritten, agents=True)
        assert other.history(rewritten, agents=True).session == stands
        assert other.history(rewritten).tiers == (), "an id of a client is none of the caller's"
        stranger = ask(MORE, client=client, caller=Caller(key_id="bob"))
        await other.fetch(stranger, agents=True)
        assert other.history(stranger, agents=True).session is None


async def test_without_redis_a_process_still_knows_its_own(redis_server: RedisServer) -> None:
    async with open_redis(redis_server.url) as redis:
        assert redis is not None
        known = Conversations(shared=(turns := SharedTurns(redis)))
        redis_server.kill()
        known.remember(ask(HELLO), 2)
        await turns.flush()
        await known.fetch(ask(*TURNS))
        await known.fetch(ask(MORE, conversation="c1"))
        assert known.history(ask(*TURNS)).tiers == (2,)


async def test_routing_asks_what_other_processes_know(redis_url: str) -> None:
    async with open_redis(redis_url) as redis:
        assert redis is not None
        turns = SharedTurns(redis)
        Conversations(shared=turns).remember(ask(HELLO), 3)
        await turns.flush()
        known = Conversations(shared=turns)
        await RoutingService(CATALOG, {}, ScriptedClassifier(), None, conversations=known).prepare(ask(*TURNS))
        assert known.history(ask(*TURNS)).tiers == (3,)


async def test_a_gateway_keeps_the_tool_loop_of_another_gateway_on_its_tier(
    settings: Settings, tmp_path: Path, redis_url: str
) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": "{}"}}
    first = [{"role": "user", "content": "Look it up."}]
    looped = [
        *first,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    ]

    async def tier_of(gateway: RunningGateway, messages: object) -> str:
        answer = await gateway.http.post("/v1/chat/completions", json={"model": "auto", "messages": messages})
        return str(answer.headers["x-aio-tier"])

    def at(name: str) -> Settings:
        return msgspec.structs.replace(settings, redis_url=redis_url, data_dir=str(tmp_path / name))

    async with running_gateway(at("a")) as one, running_gateway(at("b")) as other, open_redis(redis_url) as redis:
        assert redis is not None
        one.classifier.p_ok, other.classifier.p_ok = (0.1, 0.2, 0.3, 1.0), (0.999, 0.999, 0.999, 1.0)
        assert await tier_of(one, first) == "4"
        store = redis.redis
        await eventually(lambda: store.keys("aio:turns:*"))
        assert await tier_of(other, looped) == "4"


def test_an_earlier_turn_is_soon_forgotten_and_makes_room_before_idle_conversations(clock: Clock) -> None:
    known = Conversations(most=3, seconds=3600, clock=clock)
    known.remember(ask(HELLO), 2)
    idle = [ask(("user", f"Idle {number}.")) for number in range(2)]
    for one in idle:
        clock.now += 1
        known.remember(one, 3)
    clock.now += 1
    assert known.history(ask(*TURNS)).tiers == (2,)
    known.remember(ask(*TURNS), 2)
    clock.now += 1
    known.remember(ask(*TURNS, ANSWER, MORE), 2)
    found = [known.history(ask(("user", f"Idle {number}."), ANSWER, MORE)).tiers for number in range(2)]
    assert found == [(), (3,)], "the longest idle made room for the second turn, the second turn for the third"
    again = Conversations(seconds=3600, clock=clock)
    again.remember(ask(HELLO), 2)
    again.remember(ask(*TURNS), 2)
    clock.now += REPEAT_SECONDS
    assert again.history(ask(*TURNS)).tiers == (2,), "asked for once more"
    clock.now += 1
    assert again.history(ask(*TURNS)).tiers == ()


@pytest.mark.slow
def test_150_000_idle_conversations_with_ids_are_all_known_in_less_than_128_bytes_each(
    record_property: Callable[[str, object], None], clock: Clock
) -> None:
    known, before = Conversations(clock=clock), resident()
    for turn in range(3):
        for number in range(SESSIONS):
            clock.now += 0.001
            turns = [("user", f"Session {number}."), *(ANSWER, MORE) * turn]
            known.remember(ask(*turns, conversation=f"session-{number}"), 1 + number % 4)
    each = (resident() - before) / SESSIONS
    record_property("bytes per conversation", each)
    print(f"{each:.0f} bytes per conversation, {len(known):,} of {MOST:,} places")
    assert each < 128
    for number in range(SESSIONS):
        tier = 1 + number % 4
        turns = [("user", f"Session {number}."), *(ANSWER, MORE) * 3]
        assert known.history(ask(*turns)).tiers == (tier,) * 3
        assert known.history(ask(MORE, conversation=f"session-{number}")).tiers == (tier,) * 3
