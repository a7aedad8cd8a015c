"""A batch's lines without a gateway, and workers of either kind of queue that take them."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.base.stores.database import DatabaseTime
from gateway.base.stores.redis_store import RedisStore
from gateway.batches.batch import Batch, InputLine, NewBatch
from gateway.batches.batch_book import BatchBook, LineAnswer, LineBook
from gateway.batches.file_store import Owner
from gateway.batches.job_queue import BatchJob, DatabaseQueue, JobQueue
from gateway.batches.redis_queue import RedisQueue
from tests.polling import eventually
from tests.support.database import RedisServer, migrated

# Of leases that shall expire while a test waits for that; others outlast every test.
SHORT, LONG = 0.05, 600.0


@dataclass
class Bench:
    """`batch`, the latest that was made, and workers of one kind of queue."""

    engine: AsyncEngine
    lines: LineBook
    redis: RedisServer | None
    stores: list[RedisStore]
    batch: Batch | None = None

    def worker(self, name: str, lease: float = LONG) -> JobQueue:
        if self.redis is None:
            return DatabaseQueue(self.engine, DatabaseTime(), name, lease)
        store = RedisStore(self.redis.url)
        self.stores.append(store)
        return RedisQueue(store, self.lines, name, lease)

    async def make(self, count: int) -> str:
        book = BatchBook(self.engine, DatabaseTime(), "p")
        new = NewBatch(endpoint="/v1/chat/completions", input_file_id="f", completion_window="24h", seconds=86_400.0)
        self.batch = await book.create(Owner("", None), new)
        await self.lines.add(self.batch.batch_id, [InputLine(n, f"c{n}", "{}") for n in range(1, count + 1)])
        return self.batch.batch_id

    async def answer(self, jobs: Sequence[BatchJob]) -> list[bool]:
        answers = [LineAnswer(batch_id=j.batch_id, number=j.number, status="done", text="{}") for j in jobs]
        return await self.lines.answer(answers)

    async def die(self, batch_id: str, count: int) -> None:
        """Have a worker take this many lines and die silently; returns once its leases have expired."""
        assert len(await self.worker("the dead one", SHORT).take(batch_id, count)) == count
        heir = self.worker("its heir", SHORT)
        await eventually(lambda: heir.has_suspect(batch_id))


@asynccontextmanager
async def bench(url: str, redis: RedisServer | None) -> AsyncIterator[Bench]:
    async with migrated(url) as engine:
        made = Bench(engine, LineBook(engine), redis, [])
        yield made
        for store in made.stores:
            await store.redis.aclose()
