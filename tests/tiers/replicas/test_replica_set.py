"""A set of replicas over real servers, some of which hang, disconnect, are busy or send nonsense."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any

import msgspec
import pytest

from tests.polling import eventually
from tests.support.clock import Clock
from tests.support.upstream import Call, LoopbackServer
from tests.tiers.tier_world import chat, collect, remote_spec
from tiers.catalog.replica_spec import BalancingSpec, ReplicaSpec
from tiers.errors import ReplicaStatus, ReplicaTry, TierBusyError, TierError, TierRequestError, TierUnavailableError
from tiers.replicas.replica_set import ReplicaSet
from tiers.tier import GenerationRequest, Usage

Handler = Callable[[Call], Coroutine[Any, Any, None]]


async def well(call: Call) -> None:
    await call.say("Hello", usage={"prompt_tokens": 7, "completion_tokens": 2})


async def hang(call: Call) -> None:
    await asyncio.Event().wait()


async def begin_and_hang(call: Call) -> None:
    await call.begin()
    await call.event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 1}})
    await asyncio.Event().wait()


async def keep_alive_for_ever(call: Call) -> None:
    await call.begin()
    while True:
        await call.send(b": wait\n\n")
        await asyncio.sleep(0.001)


async def reset(call: Call) -> None:
    call.writer.transport.abort()


async def break_off(call: Call) -> None:
    await call.begin()
    await call.chunk("Hel")


async def babble(call: Call) -> None:
    await call.begin()
    await call.send(b"data: {nonsense\n\n")


async def end_at_once(call: Call) -> None:
    await call.begin()
    await call.send(b"data: [DONE]\n\n")


async def broken(call: Call) -> None:
    await call.reply(500, {"error": {"message": "out of memory"}})


async def wrong_request(call: Call) -> None:
    await call.reply(400, {"error": {"message": "too hot", "param": "temperature"}})


def busy(seconds: str, status: int = 429) -> Handler:
    async def later(call: Call) -> None:
        await call.send(f"HTTP/1.1 {status} X\r\nretry-after: {seconds}\r\ncontent-length: 2\r\n\r\n{{}}".encode())

    return later


@asynccontextmanager
async def replicas(
    *handlers: Handler, clock: Clock | None = None, remote: dict[str, Any] | None = None, **balancing: Any
) -> AsyncIterator[tuple[ReplicaSet, list[LoopbackServer]]]:
    """A set over one server per handler; without affinity, and the first attempt goes to the first server."""
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(LoopbackServer(handler)) for handler in handlers]
        spec = BalancingSpec(**{"affinity_bytes": 0, "first_token_timeout_seconds": 20.0} | balancing)
        urls = [server.base_url for server in servers]
        tier = ReplicaSet(
            remote_spec(base_urls=urls, balancing=spec, **remote or {}), clock=clock or Clock(), rng=InOrder()
        )
        yield tier, servers
        await tier.close()
        assert [replica.outstanding for replica in tier.replicas()] == [0] * len(servers)


class InOrder(random.Random):
    """Always draws the first item."""

    def choices(self, population: Any, *_: Any, **__: Any) -> list[Any]:
        return [population[0]]


async def tries_of(tier: ReplicaSet, request: GenerationRequest | None = None) -> list[ReplicaTry]:
    """Who was asked for an answer that came to its end."""
    deltas = [delta async for delta in tier.generate(request or chat())]
    assert "".join(delta.text for delta in deltas) == "Hello"
    assert all(not delta.tries for delta in deltas[1:])
    return deltas[0].tries


async def failure(tier: ReplicaSet) -> TierError:
    with pytest.raises(TierError) as error:
        await collect(tier, chat())
    return error.value


def status(tier: ReplicaSet, index: int = 0) -> ReplicaStatus:
    return tier.replicas()[index]


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (hang, "gave no token within 0.05 s"),
        (begin_and_hang, "gave no token within 0.05 s"),
        (keep_alive_for_ever, "gave no token within 0.05 s"),
        (reset, "cannot be reached"),
        (broken, "out of memory"),
        (babble, "not a chunk"),
        (end_at_once, "before its choices were finished"),
    ],
)
async def test_a_server_that_fails_before_its_first_delta_is_replaced_and_the_answer_says_so(
    handler: Handler, said: str
) -> None:
    async with replicas(hang, well) as (tier, servers):
        patient = tier.balancing
        is_slow = handler in (hang, begin_and_hang, keep_alive_for_ever)

        async def fail(call: Call) -> None:
            tier.balancing = patient
            await handler(call)

        servers[0].handler = fail
        tier.balancing = msgspec.structs.replace(patient, first_token_timeout_seconds=0.05 if is_slow else 20.0)
        first, second = await tries_of(tier)
        assert (first.replica, first.outcome) == (servers[0].base_url, "failed")
        assert said in str(first.error)
        assert (second.replica, second.outcome, second.error) == (servers[1].base_url, "answered", None)
        assert (status(tier).failures, status(tier, 1).failures) == (1, 0)
        assert tier.load().healthy


async def test_a_started_answer_is_not_retried(clock: Clock) -> None:
    async with replicas(break_off, well, clock=clock) as (tier, servers):
        deltas = tier.generate(chat())
        first = await anext(deltas)
        assert (first.text, [attempt.outcome for attempt in first.tries]) == ("Hel", ["answered"])
        with pytest.raises(TierError, match="before its choices were finished"):
            await anext(deltas)
        assert servers[1].calls == []
        assert (status(tier).consecutive_failures, status(tier).failures) == (1, 1)
        servers[0].handler = well
        clock.now += 10
        assert (await tries_of(tier))[0].replica == servers[0].base_url
        assert (status(tier).consecutive_failures, status(tier).failures) == (0, 1)


async def test_a_callers_error_is_not_retried_on_another_replica() -> None:
    async with replicas(wrong_request, well) as (tier, servers):
        error = await failure(tier)
        assert isinstance(error, TierRequestError)
        assert error.param == "temperature"
        assert servers[1].calls == []
        assert status(tier).failures == 0


@pytest.mark.parametrize("http_status", [429, 503])
async def test_a_busy_server_is_left_alone_for_as_long_as_it_says(http_status: int, clock: Clock) -> None:
    async with replicas(busy("7", http_status), well, clock=clock) as (tier, servers):
        assert [attempt.outcome for attempt in await tries_of(tier)] == ["failed", "answered"]
        assert (status(tier).condition, status(tier).failures) == ("paused", 0)
        clock.now += 6.9
        assert [attempt.outcome for attempt in await tries_of(tier)] == ["answered"]
        assert len(servers[0].calls) == 1
        clock.now += 0.1
        await tries_of(tier)
        assert len(servers[0].calls) == 2


async def test_if_all_are_busy_the_caller_hears_when_the_first_is_free() -> None:
    async with replicas(busy("30"), busy("7")) as (tier, servers):
        assert (await failure(tier)).retry_after_seconds == 7
        error = await failure(tier)
        assert isinstance(error, TierUnavailableError)
        assert error.retry_after_seconds == 7
        assert "none of its replicas takes requests" in str(error)
        assert not tier.load().healthy
        assert [len(server.calls) for server in servers] == [1, 1]


@pytest.mark.parametrize("stated", ["soon", "-3", "Fri, 99 Nov 2026 00:00:00 GMT", "1e999"])
async def test_a_retry_after_that_cannot_be_read_does_no_harm(stated: str) -> None:
    async with replicas(busy(stated)) as (tier, _):
        error = await failure(tier)
        assert isinstance(error, TierBusyError)
        assert 0 <= error.retry_after_seconds <= 300


async def test_an_outage_of_all_replicas_is_reported_once_with_every_error() -> None:
    async with replicas(*[broken] * 4, retry_share=0.1, retry_burst=5, max_attempts=4) as (tier, servers):
        first = await failure(tier)
        assert isinstance(first, TierUnavailableError)
        assert [attempt.outcome for attempt in first.tries] == ["failed"] * 4
        assert str(first).count("out of memory") == 4
        assert not tier.load().healthy
        for _ in range(39):
            await failure(tier)
        assert sum(len(server.calls) for server in servers) <= 40 + 5 + 0.1 * 40


async def test_a_dead_server_is_ejected_and_comes_back_through_a_probe(clock: Clock) -> None:
    async with replicas(broken, well, clock=clock, consecutive_failures=1) as (tier, servers):
        assert [attempt.outcome for attempt in await tries_of(tier)] == ["failed", "answered"]
        assert status(tier).condition == "ejected"
        assert (status(tier).available_in_seconds, status(tier).consecutive_failures) == (5, 1)
        assert [attempt.replica for attempt in await tries_of(tier)] == [servers[1].base_url]
        clock.now += 5
        assert [attempt.outcome for attempt in await tries_of(tier)] == ["failed", "answered"]
        assert status(tier).available_in_seconds == 10
        servers[0].handler = well
        clock.now += 10
        assert [attempt.replica for attempt in await tries_of(tier)] == [servers[0].base_url]
        assert (status(tier).condition, status(tier).consecutive_failures) == ("serving", 0)


async def test_no_attempt_begins_after_a_deadline(clock: Clock) -> None:

    async def fail_late(call: Call) -> None:
        clock.now += 5
        await broken(call)

    async with replicas(fail_late, well, clock=clock) as (tier, servers):
        with pytest.raises(TierUnavailableError, match="out of memory"):
            await collect(tier, chat(deadline=clock.now + 5, strict_deadline=True))
        assert servers[1].calls == []
        assert await tries_of(tier, chat(deadline=clock.now + 5)), "an objective is no deadline"
    async with replicas(
        fail_late, well, clock=clock, remote={"total_timeout_seconds": 5.0, "read_timeout_seconds": 5.0}
    ) as (
        tier,
        servers,
    ):
        await failure(tier)
        assert status(tier, 1).requests == 0


async def test_prompts_with_the_same_beginning_go_to_the_same_server() -> None:
    async with replicas(well, well, well, affinity_bytes=64) as (tier, servers):
        for prompt in range(10, 30):
            homes = {(await tries_of(tier, chat(f"{prompt}" * 64 + str(tail))))[0].replica for tail in range(2)}
            assert len(homes) == 1
        assert sum(bool(server.calls) for server in servers) > 1


async def hedging_set(tier: ReplicaSet, servers: list[LoopbackServer], handler: Handler) -> None:
    """Teach the set how long first tokens take, then let the first server behave as `handler`."""
    for _ in range(20):
        await tries_of(tier)
    assert servers[1].calls == []
    servers[0].handler = handler


async def test_a_late_answer_is_hedged_and_the_loser_closed_while_the_winner_speaks() -> None:
    async with replicas(well, well, hedging=True) as (tier, servers):
        await hedging_set(tier, servers, begin_and_hang)

        async def speak_until_the_other_is_closed(call: Call) -> None:
            await call.begin()
            await call.chunk("Hel")
            await servers[0].disconnected.wait()
            await call.chunk("lo", finish="stop")

        servers[1].handler = speak_until_the_other_is_closed
        assert [attempt.outcome for attempt in await tries_of(tier)] == ["overtaken", "answered"]
        assert status(tier).failures == 0


async def test_what_another_server_says_it_has_used_is_billed_too() -> None:
    async def use_and_fail(call: Call) -> None:
        await call.begin()
        await call.event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 1}})

    async with replicas(use_and_fail, well) as (tier, _):
        _, usage = await collect(tier, chat())
    assert usage == Usage(prompt_tokens=14, completion_tokens=3, estimated=True)


async def test_of_an_answer_that_is_left_the_failed_and_the_answering_replica_are_metered() -> None:
    async def use_and_fail(call: Call) -> None:
        await call.begin()
        await call.event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 1}})

    async def speak_and_hang(call: Call) -> None:
        await call.begin()
        await call.chunk("Hello there")
        await asyncio.Event().wait()

    async with replicas(use_and_fail, speak_and_hang) as (tier, _):
        request = chat("y" * 80)
        async with aclosing(tier.generate(request)) as deltas:
            await anext(deltas)
        assert request.meter.usage() == Usage(prompt_tokens=7 + 24, completion_tokens=1 + 3, estimated=True)


@pytest.mark.parametrize(
    ("loser", "racing", "billed"),
    [
        (
            begin_and_hang,
            Usage(prompt_tokens=7, completion_tokens=1, estimated=True),
            Usage(prompt_tokens=14, completion_tokens=3, estimated=True),
        ),
        (hang, Usage(prompt_tokens=24, estimated=True), Usage(prompt_tokens=7, completion_tokens=2)),
    ],
    ids=["reported", "silent"],
)
async def test_a_replica_that_lost_the_race_is_billed_for_what_it_reported_and_not_if_it_was_silent(
    loser: Handler, racing: Usage, billed: Usage
) -> None:
    go = asyncio.Event()

    async def speak(call: Call) -> None:
        await go.wait()
        await well(call)

    async with replicas(well, well, hedging=True) as (tier, servers):
        await hedging_set(tier, servers, loser)
        servers[1].handler = speak
        request = chat("y" * 80)
        asking = asyncio.create_task(collect(tier, request))
        await eventually(lambda: servers[1].calls and request.meter.usage() == racing)
        go.set()
        _, usage = await asking
    assert usage == billed == request.meter.usage()


async def test_a_caller_who_leaves_closes_both_hedged_requests() -> None:
    async with replicas(well, well, hedging=True) as (tier, servers):
        await hedging_set(tier, servers, hang)
        asked = asyncio.Event()

        async def notice_and_hang(call: Call) -> None:
            asked.set()
            await hang(call)

        servers[1].handler = notice_and_hang
        waiting = asyncio.create_task(collect(tier, chat()))
        await asked.wait()
        assert tier.load().running == 2
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        for server in servers:
            await server.disconnected.wait()
        assert tier.load().running == 0


async def test_hedges_are_paid_from_the_retry_budget() -> None:
    async with replicas(well, well, hedging=True, retry_share=0.0, retry_burst=0) as (tier, servers):
        await hedging_set(tier, servers, hang)
        tier.balancing = msgspec.structs.replace(tier.balancing, first_token_timeout_seconds=0.05)
        assert "gave no token" in str(await failure(tier))
        assert servers[1].calls == []


async def test_without_hedging_no_second_replica_is_asked() -> None:
    async with replicas(well, well) as (tier, servers):
        await hedging_set(tier, servers, well)
        await tries_of(tier)
        assert servers[1].calls == []


async def test_closing_the_iterator_closes_the_connection_at_once() -> None:
    async def begin(call: Call) -> None:
        await call.begin()
        await call.chunk("Hel")
        await asyncio.Event().wait()

    async with replicas(begin, well) as (tier, servers):
        async with aclosing(tier.generate(chat())) as deltas:
            await anext(deltas)
            assert (tier.load().running, status(tier).outstanding) == (1, 1)
        await servers[0].disconnected.wait()
        assert status(tier).failures == 0


async def test_one_server_that_answers_is_enough_to_start() -> None:
    async with replicas(well, well) as (tier, servers):
        await servers[0].stop()
        await tier.start()
        await servers[1].stop()
        with pytest.raises(TierUnavailableError, match="cannot be reached"):
            await tier.start()


async def test_the_next_request_obeys_new_knobs() -> None:
    async with replicas(broken, well) as (tier, _):
        tier.balancing = BalancingSpec(affinity_bytes=0, max_attempts=1)
        assert isinstance(await failure(tier), TierUnavailableError)


async def test_each_server_gets_its_own_key() -> None:
    async with LoopbackServer(well) as first, LoopbackServer(well) as second:
        servers = [ReplicaSpec(base_url=first.base_url, api_key_env="ITS_OWN"), ReplicaSpec(base_url=second.base_url)]
        spec = remote_spec(replicas=servers, api_key_env="THE_TIERS")
        tier = ReplicaSet(spec, environ={"ITS_OWN": "a", "THE_TIERS": "b"})
        for prompt in range(20):
            _, usage = await collect(tier, chat(str(prompt)))
            assert usage == Usage(prompt_tokens=7, completion_tokens=2)
        await tier.close()
        assert {call.headers["authorization"] for call in first.calls} == {"Bearer a"}
        assert {call.headers["authorization"] for call in second.calls} == {"Bearer b"}
