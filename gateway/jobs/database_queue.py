"""The queue in the database: the lines' own rows say who works on them and until when."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from sqlalchemy import or_, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.jobs.job_queue import Job, JobQueue, QueueAwayError
from gateway.tenancy.database_time import DatabaseTime
from migrations.tables import batch_lines

# No line waits for longer. One that seems to is from before the machine's monotonic clock began anew.
LONGEST_WAIT_SECONDS = 3600.0

_LINE = batch_lines.c


class DatabaseQueue(JobQueue):
    """See `JobQueue`. On PostgreSQL workers skip the rows that others are taking; on SQLite they take turns.

    `worker`: this one's name.
    """

    def __init__(self, engine: AsyncEngine, clock: DatabaseTime, worker: str, lease_seconds: float) -> None:
        self._engine, self._clock, self._worker, self._lease = engine, clock, worker, lease_seconds

    async def take(self, batch_id: str, most: int) -> list[Job]:
        """See `JobQueue`."""
        async with self._transaction() as connection:
            now = await self._clock.lease_clock(connection)
            due = or_(_LINE.visible_at <= now, _LINE.visible_at > now + LONGEST_WAIT_SECONDS)
            query = (
                select(_LINE.number, _LINE.deliveries, _LINE.taken_by)
                .where(_LINE.batch_id == batch_id, _LINE.status == "pending", due)
                .order_by(_LINE.visible_at, _LINE.number)
                .limit(most)
                .with_for_update(skip_locked=True)
            )
            rows = (await connection.execute(query)).all()
            jobs = [
                Job(batch_id=batch_id, number=row[0], deliveries=row[1] + 1, redelivered=row[2] is not None)
                for row in rows
            ]
            if jobs:
                taken = {"visible_at": now + self._lease, "taken_by": self._worker, "deliveries": _LINE.deliveries + 1}
                mine = update(batch_lines).where(_LINE.batch_id == batch_id, _LINE.number.in_([j.number for j in jobs]))
                await connection.execute(mine.values(taken))
            return jobs

    async def keep(self, jobs: Sequence[Job]) -> list[Job]:
        """See `JobQueue`."""
        async with self._transaction() as connection:
            until = await self._clock.lease_clock(connection) + self._lease
            return [job for job in jobs if not await self._set(connection, job, {"visible_at": until})]

    async def put_back(self, job: Job, seconds: float, deliveries: int) -> None:
        """See `JobQueue`."""
        async with self._transaction() as connection:
            due = await self._clock.lease_clock(connection) + min(seconds, LONGEST_WAIT_SECONDS) if seconds else 0.0
            await self._set(connection, job, {"visible_at": due, "taken_by": None, "deliveries": deliveries})

    async def done(self, jobs: Sequence[Job]) -> None:
        """Nothing: a line with an answer is not given to anyone."""

    async def forget(self, batch_id: str) -> None:
        """Nothing: the lines go with their batch."""

    async def _set(self, connection: AsyncConnection, job: Job, values: dict[str, object]) -> bool:
        mine = (
            _LINE.batch_id == job.batch_id,
            _LINE.number == job.number,
            _LINE.status == "pending",
            _LINE.taken_by == self._worker,
            _LINE.deliveries == job.deliveries,
        )
        return bool((await connection.execute(update(batch_lines).where(*mine).values(values))).rowcount)

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[AsyncConnection]:
        engine = self._engine
        if engine.dialect.name == "sqlite":
            engine = engine.execution_options(sqlite_begin="BEGIN IMMEDIATE")
        try:
            async with engine.begin() as connection:
                yield connection
        except (SQLAlchemyError, OSError) as error:
            raise QueueAwayError(f"the database is away: {type(error).__name__}") from error
