"""What every queue of lines promises: in order, to one worker at a time, to another once that is gone, then no more."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import pytest_asyncio
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.jobs.batch import Batch, NewBatch
from gateway.jobs.batch_book import BatchBook
from gateway.jobs.batch_input import InputLine
from gateway.jobs.database_queue import DatabaseQueue
from gateway.jobs.file_store import Owner
from gateway.jobs.job_queue import Job, JobQueue, QueueAwayError
from gateway.jobs.line_book import LineAnswer, LineBook
from gateway.jobs.redis_queue import RedisQueue
from gateway.stores.redis_store import RedisStore
from gateway.tenancy.database_time import DatabaseTime
from quality.database import migrate, open_database
from tests.conftest import RedisServer
from tests.polling import eventually

# Of leases that shall run out while a test waits for just that; others outlast every test.
SHORT, LONG = 0.05, 600.0


@dataclass
class Bench:
    """A batch of `lines`, and workers of either kind of queue."""

    engine: AsyncEngine
    lines: LineBook
    redis: RedisServer | None
    stores: list[RedisStore]
    batch_id: str = ""

    def worker(self, name: str, lease: float = LONG) -> JobQueue:
        if self.redis is None:
            return DatabaseQueue(self.engine, DatabaseTime(), name, lease)
        store = RedisStore(self.redis.url)
        self.stores.append(store)
        return RedisQueue(store, self.lines, name, lease)

    async def make(self, count: int) -> str:
        book = BatchBook(self.engine, DatabaseTime(), "p")
        new = NewBatch(endpoint="/v1/chat/completions", input_file_id="f", completion_window="24h", seconds=86_400.0)
        batch: Batch = await book.create(Owner("", None), new)
        await self.lines.add(batch.batch_id, [InputLine(n, f"c{n}", "{}") for n in range(1, count + 1)])
        self.batch_id = batch.batch_id
        return batch.batch_id

    async def answer(self, jobs: Sequence[Job]) -> list[bool]:
        answers = [LineAnswer(batch_id=j.batch_id, number=j.number, status="done", text="{}") for j in jobs]
        return await self.lines.answer(answers)


@asynccontextmanager
async def bench(url: str, redis: RedisServer | None) -> AsyncIterator[Bench]:
    await migrate(url)
    engine = open_database(url)
    made = Bench(engine, LineBook(engine), redis, [])
    yield made
    for store in made.stores:
        await store.redis.aclose()
    await engine.dispose()


@pytest_asyncio.fixture(params=["sqlite", "postgresql", "redis"])
async def queues(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    if request.param == "postgresql":
        # Its fixture runs a loop of its own.
        url = await asyncio.to_thread(request.getfixturevalue("postgres_server").emptied_database)
    else:
        url = request.getfixturevalue("sqlite_url")
    redis = request.getfixturevalue("redis_server") if request.param == "redis" else None
    async with bench(url, redis) as made:
        yield made


def numbers(jobs: Sequence[Job]) -> list[int]:
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
    again = await eventually(lambda: other.take(batch_id, 5))
    assert [(job.number, job.deliveries, job.redelivered) for job in again] == [(two.number, 2, True)]


async def test_a_kept_line_stays_and_its_keeper_is_told_when_it_is_anothers(queues: Bench) -> None:
    batch_id = await queues.make(1)
    slow, keeper = queues.worker("ada", SHORT), queues.worker("ada", LONG)
    bob = queues.worker("bob", SHORT)
    jobs = await slow.take(batch_id, 1)
    assert await keeper.keep(jobs) == []
    if queues.redis is None:
        assert await bob.take(batch_id, 1) == []
    await slow.keep(jobs)
    taken = await eventually(lambda: bob.take(batch_id, 1))
    assert numbers(taken) == [1]
    assert await slow.keep(jobs) == jobs
    assert await bob.keep(taken) == []


async def test_what_is_put_back_is_anyones_again_at_once_or_later(queues: Bench) -> None:
    batch_id = await queues.make(2)
    ada, bob = queues.worker("ada"), queues.worker("bob")
    one, two = await ada.take(batch_id, 2)
    await ada.put_back(one, 0.0, 0)
    assert [(job.number, job.deliveries) for job in await bob.take(batch_id, 2)] == [(1, 1)]
    await ada.put_back(two, SHORT, two.deliveries)
    later = await eventually(lambda: bob.take(batch_id, 2))
    assert [(job.number, job.deliveries, job.redelivered) for job in later] == [(2, 2, False)]


async def test_a_line_put_back_for_long_is_not_given_now(queues: Bench) -> None:
    batch_id = await queues.make(1)
    worker = queues.worker("ada")
    (job,) = await worker.take(batch_id, 1)
    await worker.put_back(job, 300.0, 1)
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
    again = await eventually(lambda: bob.take(batch_id, 1))
    assert await queues.answer(again) == [True]
    assert await queues.answer(jobs) == [False]


async def test_redis_that_forgot_is_told_of_what_waits_still(redis_server: RedisServer, sqlite_url: str) -> None:
    async with bench(sqlite_url, redis_server) as queues:
        batch_id = await queues.make(5)
        worker = queues.worker("ada")
        jobs = await worker.take(batch_id, 3)
        await queues.answer(jobs[:2])
        redis_server.kill()
        with pytest.raises(QueueAwayError):
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
        await worker.put_back(jobs[0], 0.0, 0)
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
