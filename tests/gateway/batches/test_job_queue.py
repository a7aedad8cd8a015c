"""The contract of every queue of lines: in order, to one worker at a time, to another after its death, then no more."""

import asyncio
from collections.abc import Sequence

import pytest

from gateway.batches.job_queue import BatchJob, QueueUnavailableError
from tests.gateway.batches.queue_bench import LONG, SHORT, Bench, bench
from tests.polling import eventually
from tests.support.database import RedisServer

pytestmark = pytest.mark.processes


def numbers(jobs: Sequence[BatchJob]) -> list[int]:
    return [job.number for job in jobs]


async def test_lines_come_in_order_and_each_to_one_worker(queues: Bench) -> None:
    batch_id = await queues.make(7)
    ada, bob = queues.worker("ada"), queues.worker("bob")
    assert numbers(await ada.take(batch_id, 3)) == [1, 2, 3]
    assert numbers(await bob.take(batch_id, 3)) == [4, 5, 6]
    last = await ada.take(batch_id, 3)
    assert [(job.number, job.deliveries, job.redelivered) for job in last] == [(7, 1, False)]
    assert await bob.take(batch_id, 3) == []


async def test_workers_at_once_take_every_line_and_none_twice(queues: Bench) -> None:
    batch_id = await queues.make(200)

    async def taking(name: str) -> list[int]:
        worker, mine = queues.worker(name), list[int]()
        while jobs := await worker.take(batch_id, 7):
            mine += numbers(jobs)
        return mine

    first = numbers(await queues.worker("first").take(batch_id, 4))
    taken = await asyncio.gather(*(taking(f"w{n}") for n in range(4)))
    assert sorted(first + [number for mine in taken for number in mine]) == list(range(1, 201))


async def test_what_is_done_never_comes_again_though_its_lease_is_over(queues: Bench) -> None:
    batch_id = await queues.make(2)
    worker, other = queues.worker("ada", SHORT), queues.worker("bob", SHORT)
    one, two = await worker.take(batch_id, 2)
    await queues.answer([one])
    await worker.done([one])
    again = await eventually(lambda: other.take_suspect(batch_id))
    assert (again.number, again.deliveries, again.deaths, again.redelivered) == (two.number, 2, 1, True)
    await queues.answer([again])
    await other.done([again])
    assert not await other.has_suspect(batch_id)
    assert await other.take(batch_id, 5) == []


async def test_a_kept_line_stays_and_its_keeper_learns_when_it_is_lost(queues: Bench) -> None:
    batch_id = await queues.make(1)
    slow, keeper = queues.worker("ada", SHORT), queues.worker("ada", LONG)
    bob = queues.worker("bob", SHORT)
    jobs = await slow.take(batch_id, 1)
    assert await keeper.keep(jobs) == []
    if queues.redis is None:
        assert await bob.take_suspect(batch_id) is None
    await slow.keep(jobs)
    taken = await eventually(lambda: bob.take_suspect(batch_id))
    assert taken.number == 1
    assert await slow.keep(jobs) == jobs
    assert await bob.keep([taken]) == []


async def test_what_is_put_back_is_anyones_again_at_once_or_later(queues: Bench) -> None:
    batch_id = await queues.make(2)
    ada, bob = queues.worker("ada"), queues.worker("bob")
    one, two = await ada.take(batch_id, 2)
    await ada.put_back(one, 0.0, 0, one.deaths)
    assert [(job.number, job.deliveries) for job in await bob.take(batch_id, 2)] == [(1, 1)]
    await ada.put_back(two, SHORT, two.deliveries, two.deaths)
    later = await eventually(lambda: bob.take(batch_id, 2))
    assert [(job.number, job.deliveries, job.redelivered) for job in later] == [(2, 2, False)]


async def test_a_line_put_back_for_long_is_not_given_now(queues: Bench) -> None:
    batch_id = await queues.make(1)
    worker = queues.worker("ada")
    (job,) = await worker.take(batch_id, 1)
    await worker.put_back(job, 300.0, 1, job.deaths)
    assert await worker.take(batch_id, 1) == []


async def test_each_batch_has_lines_of_its_own(queues: Bench) -> None:
    first, second = await queues.make(2), await queues.make(2)
    worker = queues.worker("ada")
    jobs = await worker.take(first, 9) + await worker.take(second, 9)
    assert [job.batch_id for job in jobs] == [first] * 2 + [second] * 2
    await worker.forget(first)
    await worker.keep(jobs[2:])


async def test_the_second_answer_of_a_line_is_dropped(queues: Bench) -> None:
    batch_id = await queues.make(1)
    jobs = await queues.worker("ada", SHORT).take(batch_id, 1)
    bob = queues.worker("bob", SHORT)
    again = await eventually(lambda: bob.take_suspect(batch_id))
    assert await queues.answer([again]) == [True]
    assert await queues.answer(jobs) == [False]


async def test_lines_of_a_dead_worker_are_given_one_at_a_time_and_others_as_before(queues: Bench) -> None:
    batch_id = await queues.make(5)
    await queues.die(batch_id, 3)
    ada, bob = queues.worker("ada"), queues.worker("bob")
    assert numbers(await ada.take(batch_id, 9)) == [4, 5]
    given: list[BatchJob] = []
    while job := await ada.take_suspect(batch_id):
        assert not await bob.has_suspect(batch_id)
        assert await bob.take_suspect(batch_id) is None
        assert await bob.take(batch_id, 9) == []
        await queues.answer([job])
        await ada.done([job])
        given.append(job)
    assert [(job.number, job.deliveries, job.deaths, job.redelivered) for job in given] == [
        (number, 2, 1, True) for number in (1, 2, 3)
    ]


async def test_every_death_of_a_lines_worker_is_counted_and_its_neighbours_are_spared(queues: Bench) -> None:
    batch_id = await queues.make(3)
    await queues.die(batch_id, 3)
    for deaths in (1, 2):
        taken = await eventually(lambda: queues.worker(f"w{deaths}", SHORT).take_suspect(batch_id))  # noqa: B023
        assert (taken.number, taken.deaths) == (deaths, 1)
    heir = queues.worker("heir", SHORT)
    seen = dict[int, int]()
    while len(seen) < 3:
        job = await eventually(lambda: heir.take_suspect(batch_id))
        seen[job.number] = job.deaths
        await queues.answer([job])
        await heir.done([job])
    assert seen == {1: 2, 2: 2, 3: 1}


async def test_a_suspect_that_is_put_back_stays_one_and_no_death_is_added(queues: Bench) -> None:
    batch_id = await queues.make(1)
    await queues.die(batch_id, 1)
    ada, bob = queues.worker("ada"), queues.worker("bob")
    for seconds in (0.0, SHORT):
        job = await eventually(lambda: ada.take_suspect(batch_id))
        await ada.put_back(job, seconds, job.deliveries - 1, job.deaths)
    assert await bob.take(batch_id, 1) == []
    again = await eventually(lambda: bob.take_suspect(batch_id))
    assert (again.number, again.deliveries, again.deaths, again.redelivered) == (1, 2, 1, False)
    await bob.put_back(again, 300.0, again.deliveries, again.deaths)
    assert not await ada.has_suspect(batch_id)
    assert await ada.keep([again]) == [again]


async def test_a_line_put_back_after_a_death_is_a_suspect(queues: Bench) -> None:
    batch_id = await queues.make(3)
    ada, bob = queues.worker("ada"), queues.worker("bob")
    one, two, _ = await ada.take(batch_id, 3)
    await ada.put_back(one, 0.0, 1, 1)
    await ada.put_back(two, 300.0, 1, 1)
    assert await bob.take(batch_id, 9) == []
    again = await bob.take_suspect(batch_id)
    assert again is not None
    assert (again.number, again.deliveries, again.deaths, again.redelivered) == (1, 2, 1, False)


async def test_a_line_that_its_worker_lost_track_of_met_no_death(queues: Bench) -> None:
    batch_id = await queues.make(1)
    forgetful = queues.worker("ada", SHORT)
    await forgetful.take(batch_id, 1)

    async def anything() -> list[BatchJob]:
        suspect = await forgetful.take_suspect(batch_id)
        return await forgetful.take(batch_id, 1) if suspect is None else [suspect]

    (again,) = await eventually(anything)
    assert (again.number, again.deliveries, again.deaths, again.redelivered) == (1, 2, 0, False)


async def test_a_redis_that_lost_the_queue_gets_the_waiting_lines_again(
    redis_server: RedisServer, sqlite_url: str
) -> None:
    async with bench(sqlite_url, redis_server) as queues:
        batch_id = await queues.make(5)
        worker = queues.worker("ada")
        jobs = await worker.take(batch_id, 3)
        await queues.answer(jobs[:2])
        redis_server.kill()
        with pytest.raises(QueueUnavailableError):
            await worker.take(batch_id, 1)
        redis_server.start()
        assert numbers(await queues.worker("bob").take(batch_id, 9)) == [3, 4, 5]


async def test_work_goes_on_while_redis_knows_nothing_of_it(redis_server: RedisServer, sqlite_url: str) -> None:
    async with bench(sqlite_url, redis_server) as queues:
        batch_id = await queues.make(2)
        worker = queues.worker("ada")
        jobs = await worker.take(batch_id, 2)
        redis_server.flush()
        assert await worker.keep(jobs) == []
        await worker.put_back(jobs[0], 0.0, 0, jobs[0].deaths)
        await worker.done(jobs)
        assert not queues.stores[0].away


async def test_an_announcement_that_was_cut_off_is_not_taken_for_all_of_it(
    redis_server: RedisServer, sqlite_url: str
) -> None:
    async with bench(sqlite_url, redis_server) as queues:
        batch_id = await queues.make(5)
        ada, bob = queues.worker("ada"), queues.worker("bob")
        await ada.take(batch_id, 1)
        name = f"aio:batch:{{{batch_id}}}:"
        redis = queues.stores[0].redis
        await redis.delete(f"{name}announced")
        await redis.set(f"{name}announcing", "ada")
        assert await bob.take(batch_id, 9) == []
        await redis.delete(f"{name}announcing")
        assert numbers(await bob.take(batch_id, 9)) == [1, 2, 3, 4, 5]
