"""Several replicas as one core: started requests end or fail, others are retried elsewhere, commands reach all."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from inference_core.errors import CoreGoneError, InvalidRequestError
from tests.gateway.runtime.cluster.core_fleet import CoreFleet, answer, request, tokens_of, until_connected
from tests.polling import eventually


@pytest.fixture
async def fleet() -> AsyncIterator[CoreFleet]:
    """Replicas a and b."""
    fleet = CoreFleet()
    await fleet.add("a")
    await fleet.add("b")
    yield fleet
    await fleet.close()


@pytest.fixture
async def core(fleet: CoreFleet) -> AsyncIterator[object]:
    client = fleet.client()
    await client.start()
    await until_connected(client, "a", "b")
    yield client
    await client.close()


async def holder(core, fleet, request_id):
    """The replica that has a request."""
    await eventually(lambda: request_id in core._requests)
    return fleet.replicas[core._requests[request_id].name]


async def total(core, figure):
    return sum(getattr(model, figure) for model in (await core.stats()).models)


async def test_both_replicas_give_the_same_answer_and_share_the_load(core, fleet):
    answers = await asyncio.gather(*(answer(core, request(f"r{i}", prompt=(i, 2, 3))) for i in range(40)))

    assert all(len(tokens_of(outputs)) == 8 for outputs in answers)
    each = [replica.latest for replica in core._replicas.values() if await core.stats()]
    assert all(stats.models[0].generated_tokens > 0 for stats in each)
    assert await total(core, "generated_tokens") == 40 * 8
    assert [replica.in_flight for replica in core._replicas.values()] == [0, 0]


async def test_equal_prompts_go_where_their_blocks_are(core, fleet):
    prompt = tuple(range(100))
    for number in range(6):
        await answer(core, request(f"r{number}", prompt=prompt))

    await core.stats()
    generated = [replica.latest.models[0].generated_tokens for replica in core._replicas.values()]
    assert sorted(generated) == [0, 48]
    assert await total(core, "prefix_hit_tokens") > 0


async def test_a_conversation_stays_where_its_beginning_is_however_long_it_grows(core, fleet):
    for turn in range(6):
        await answer(core, request(f"r{turn}", prompt=tuple(range(300 + 50 * turn))))

    await core.stats()
    generated = [replica.latest.models[0].generated_tokens for replica in core._replicas.values()]
    assert sorted(generated) == [0, 48]


async def test_what_has_arrived_from_the_replica_can_be_looked_at_before_it_is_read(core):
    outputs = core.generate(request("r", tokens=8))
    first = await anext(outputs)

    unread = await eventually(lambda: (waiting := core.unread("r")) and waiting[-1].finish_reason and waiting)

    assert unread == [output async for output in outputs]
    assert len(tokens_of([first, *unread])) == 8
    assert core.unread("r") == []


async def test_requests_not_started_go_to_another_replica(core, fleet):
    for replica in fleet.replicas.values():
        replica.paused.set()
    asking = asyncio.create_task(answer(core, request("r")))
    lost = await holder(core, fleet, "r")
    (other,) = (replica for replica in fleet.replicas.values() if replica is not lost)
    other.paused.clear()

    lost.said = False
    await lost.stop()

    assert len(tokens_of(await asking)) == 8
    assert core.replicas == [other.name]


async def test_started_requests_end_with_an_error_and_are_not_repeated(core, fleet):
    outputs = core.generate(request("r", tokens=2000))
    await anext(outputs)
    lost = await holder(core, fleet, "r")
    lost.said = False
    lost.paused.set()

    await lost.stop()

    with pytest.raises(CoreGoneError):
        [output async for output in outputs]
    assert len(core.replicas) == 1
    assert (await core.stats()).models[0].running == 0


async def test_without_any_replica_requests_fail_at_once_and_say_why(core, fleet):
    for replica in fleet.replicas.values():
        replica.said = False
        await replica.stop()
    with suppress(CoreGoneError):
        while True:
            await core.stats()

    with pytest.raises(CoreGoneError, match="the core has no serving replica"):
        core.generate(request("r"))
    with pytest.raises(CoreGoneError):
        await core.stats()


async def test_a_replica_that_comes_later_takes_its_part_and_the_orders_given_before(core, fleet):
    assert (await core.set_knobs({"max_num_seqs": 7})).knobs["m"].max_num_seqs == 7
    await core.set_knobs({"max_num_seqs": 9, "max_waiting": 5}, "m")

    await fleet.add("c")
    await until_connected(core, "a", "b", "c")

    knobs = (await core._replicas["c"].client.stats()).models[0].knobs
    assert (knobs.max_num_seqs, knobs.max_waiting) == (9, 5)


async def test_knobs_that_are_refused_change_no_replica(core):
    with pytest.raises(InvalidRequestError, match="max_num_seqs"):
        await core.set_knobs({"max_num_seqs": 0})

    assert {stats.models[0].knobs.max_num_seqs for stats in await every_stats(core)} == {64}


async def every_stats(core):
    return [await replica.client.stats() for replica in core._replicas.values()]


async def test_a_leaving_replica_ends_what_it_has_and_gets_nothing_new(core, fleet):
    outputs = core.generate(request("long", tokens=400))
    await anext(outputs)
    leaving = await holder(core, fleet, "long")
    leaving.leaving = True
    await eventually(lambda: core._replicas[leaving.name].leaving)

    await asyncio.gather(*(answer(core, request(f"r{i}", prompt=(i,))) for i in range(10)))
    assert core._replicas[leaving.name].in_flight == 1
    rest = [output async for output in outputs]

    assert rest[-1].finish_reason == "length"
    assert leaving.name not in core.replicas


async def test_a_draining_replica_refuses_and_another_one_answers(core, fleet):
    outputs = core.generate(request("long", tokens=1500))
    await anext(outputs)
    draining = await holder(core, fleet, "long")
    draining.paused.set()
    stopping = asyncio.create_task(draining.stop(30))
    await eventually(lambda: draining.server._draining)

    answers = await asyncio.gather(*(answer(core, request(f"r{i}", prompt=(i,))) for i in range(10)))

    assert {outputs[-1].finish_reason for outputs in answers} == {"length"}
    draining.paused.clear()
    assert [output async for output in outputs][-1].finish_reason == "length"
    await stopping


async def test_a_registry_that_is_away_changes_nothing(core, fleet):
    fleet.away = RuntimeError("no head")

    for number in range(3):
        assert len(tokens_of(await answer(core, request(f"r{number}")))) == 8
        await asyncio.sleep(0.02)

    assert set(core.replicas) == {"a", "b"}


async def test_counts_of_a_replica_that_is_gone_stay_counted(core, fleet):
    await asyncio.gather(*(answer(core, request(f"r{i}", prompt=(i, 9))) for i in range(20)))
    before = await total(core, "generated_tokens")

    gone = fleet.replicas["a"]
    gone.said = False
    await gone.stop()
    while "a" in core.replicas:
        await core.stats()

    assert before == 160
    assert await total(core, "generated_tokens") == before
    assert await total(core, "blocks_total") == (await every_stats(core))[0].models[0].blocks_total


async def test_closing_an_iterator_early_frees_its_request(core):
    outputs = core.generate(request("r", tokens=2000))
    await anext(outputs)

    await outputs.aclose()

    assert await total(core, "running") == 0
    assert not core._requests


async def test_a_choice_is_aborted_at_the_replica_that_has_it(core):
    outputs = core.generate(request("r", tokens=1000, n=2))
    await anext(outputs)

    core.abort_choice("r", 0)
    core.abort_choice("r", 1)
    reasons = {output.index: output.finish_reason async for output in outputs if output.finish_reason}

    assert reasons == {0: "abort", 1: "abort"}


async def test_a_client_without_replicas_says_so_and_starts_once_there_is_one(fleet):
    for replica in fleet.replicas.values():
        replica.said = False
    client = fleet.client()
    with pytest.raises(CoreGoneError, match="no replica serves yet"):
        await client.start()

    fleet.replicas["b"].said = True
    await client.start()

    assert client.replicas == ["b"]
    await client.close()


async def test_a_stuck_replica_is_passed_over(core, fleet):
    core._replicas["a"].client._stuck = "a step takes longer than 60 s"

    await asyncio.gather(*(answer(core, request(f"r{i}", prompt=(i,))) for i in range(10)))

    await core.stats()
    assert core._replicas["a"].latest.models[0].generated_tokens == 0
    assert core.stuck is None
