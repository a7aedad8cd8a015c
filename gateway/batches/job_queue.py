"""The interface between a batch's lines and their workers (take, keep, put back, done), and the queue in the
database: the lines' own rows record who works on them and until when."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec
from sqlalchemy import ColumnElement, exists, or_, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.base.stores.database import DatabaseTime
from migrations.tables.api_objects import batch_lines, batches
from quality.store.database import writing_first


class QueueUnavailableError(RuntimeError):
    """The queue is unreachable; its contents are not lost."""


class BatchJob(msgspec.Struct, frozen=True, kw_only=True):
    """A line that was taken."""

    batch_id: str
    number: int
    deliveries: int
    """How often it was taken, this time included."""
    deaths: int = 0
    """How many processes died while working on the line."""
    redelivered: bool = False
    """Whether the previous delivery ended with the death of its process."""
    token: str = ""
    """The queue's identifier of this delivery."""


class JobQueue(ABC):
    """Lines of batches that wait for an answer, in order, each given to one worker at a time.

    A job that is not done, put back or kept within the queue's lease is assumed to have lost its process. It becomes a
    suspect: only `take_suspect` hands it out, one per batch at a time, so that a worker can answer it alone. A line may
    thus be answered twice; the queue does not decide which answer counts. All methods raise `QueueUnavailableError`.
    """

    @abstractmethod
    async def take(self, batch_id: str, most: int) -> list[BatchJob]:
        """Return up to `most` due lines that no worker has, without suspects. Does not wait."""

    @abstractmethod
    async def has_suspect(self, batch_id: str) -> bool:
        """Return whether `take_suspect` would return one now."""

    @abstractmethod
    async def take_suspect(self, batch_id: str) -> BatchJob | None:
        """Return a due suspect that no worker has; None while another suspect of the batch is being answered."""

    @abstractmethod
    async def keep(self, jobs: Sequence[BatchJob]) -> list[BatchJob]:
        """Renew the leases of `jobs`; return those that other workers have taken over."""

    @abstractmethod
    async def put_back(self, job: BatchJob, seconds: float, deliveries: int, deaths: int) -> None:
        """Hand the job to any worker after `seconds`, with this count of deliveries; suspect if it has `deaths`."""

    @abstractmethod
    async def done(self, jobs: Sequence[BatchJob]) -> None:
        """Their answers are stored: never deliver them again."""

    @abstractmethod
    async def forget(self, batch_id: str) -> None:
        """Delete the queue's data of an ended batch."""


# No line waits longer. One that seems to was written before the machine's monotonic clock restarted.
LONGEST_WAIT_SECONDS = 3600.0

_LINE = batch_lines.c


class DatabaseQueue(JobQueue):
    """See `JobQueue`. On PostgreSQL workers skip rows that others are taking; on SQLite they take turns.

    `worker`: this worker's name.
    """

    def __init__(self, engine: AsyncEngine, clock: DatabaseTime, worker: str, lease_seconds: float) -> None:
        self._engine, self._clock, self._worker, self._lease = engine, clock, worker, lease_seconds

    async def take(self, batch_id: str, most: int) -> list[BatchJob]:
        async with self._transaction() as connection:
            now = await self._clock.lease_clock(connection)
            query = (
                select(_LINE.number, _LINE.deliveries)
                .where(_LINE.batch_id == batch_id, _LINE.status == "pending", _due(now))
                # A suspect has one or both of these.
                .where(_LINE.taken_by.is_(None), _LINE.deaths == 0)
                .order_by(_LINE.visible_at, _LINE.number)
                .limit(most)
                .with_for_update(skip_locked=True)
            )
            rows = (await connection.execute(query)).all()
            jobs = [BatchJob(batch_id=batch_id, number=row.number, deliveries=row.deliveries + 1) for row in rows]
            if jobs:
                taken = {"visible_at": now + self._lease, "taken_by": self._worker, "deliveries": _LINE.deliveries + 1}
                mine = update(batch_lines).where(_LINE.batch_id == batch_id, _LINE.number.in_([j.number for j in jobs]))
                await connection.execute(mine.values(taken))
            return jobs

    async def has_suspect(self, batch_id: str) -> bool:
        async with self._transaction(writing=False) as connection:
            now = await self._clock.lease_clock(connection)
            suspect = await connection.scalar(select(_LINE.number).where(*_suspects(batch_id, now)).limit(1))
            return suspect is not None

    async def take_suspect(self, batch_id: str) -> BatchJob | None:
        async with self._transaction() as connection:
            # One worker at a time, or two would each take one.
            batch = select(batches.c.batch_id).where(batches.c.batch_id == batch_id).with_for_update(key_share=True)
            await connection.execute(batch)
            now = await self._clock.lease_clock(connection)
            query = (
                select(_LINE.number, _LINE.deliveries, _LINE.deaths, _LINE.taken_by)
                .where(*_suspects(batch_id, now))
                .order_by(_LINE.visible_at, _LINE.number)
                .limit(1)
                .with_for_update(skip_locked=True)
            )
            row = (await connection.execute(query)).first()
            if row is None:
                return None
            # A worker that takes over its own line is alive: it has only lost track of it.
            died = row.taken_by not in (None, self._worker)
            job = BatchJob(
                batch_id=batch_id,
                number=row.number,
                deliveries=row.deliveries + 1,
                deaths=row.deaths + died,
                redelivered=died,
            )
            mine = update(batch_lines).where(_LINE.batch_id == batch_id, _LINE.number == job.number)
            taken = {"visible_at": now + self._lease, "taken_by": self._worker}
            await connection.execute(mine.values(taken | {"deliveries": job.deliveries, "deaths": job.deaths}))
            return job

    async def keep(self, jobs: Sequence[BatchJob]) -> list[BatchJob]:
        async with self._transaction() as connection:
            until = await self._clock.lease_clock(connection) + self._lease
            return [job for job in jobs if not await self._set(connection, job, {"visible_at": until})]

    async def put_back(self, job: BatchJob, seconds: float, deliveries: int, deaths: int) -> None:
        async with self._transaction() as connection:
            now = await self._clock.lease_clock(connection)
            # Lines never delayed come first, in order. Suspects are searched among the delayed ones.
            due = now + min(seconds, LONGEST_WAIT_SECONDS) if seconds or deaths else 0.0
            values: dict[str, object] = {
                "visible_at": due,
                "taken_by": None,
                "deliveries": deliveries,
                "deaths": deaths,
            }
            await self._set(connection, job, values)

    async def done(self, jobs: Sequence[BatchJob]) -> None:
        """Does nothing: a line with an answer is not handed out."""

    async def forget(self, batch_id: str) -> None:
        """Does nothing: the lines are deleted with their batch."""

    async def _set(self, connection: AsyncConnection, job: BatchJob, values: dict[str, object]) -> bool:
        mine = (
            _LINE.batch_id == job.batch_id,
            _LINE.number == job.number,
            _LINE.status == "pending",
            _LINE.taken_by == self._worker,
            _LINE.deliveries == job.deliveries,
        )
        return bool((await connection.execute(update(batch_lines).where(*mine).values(values))).rowcount)

    @asynccontextmanager
    async def _transaction(self, *, writing: bool = True) -> AsyncIterator[AsyncConnection]:
        engine = writing_first(self._engine) if writing else self._engine
        try:
            async with engine.begin() as connection:
                yield connection
        except (SQLAlchemyError, OSError) as error:
            raise QueueUnavailableError(f"the database is down: {type(error).__name__}") from error


def _due(now: float) -> ColumnElement[bool]:
    return or_(_LINE.visible_at <= now, _LINE.visible_at > now + LONGEST_WAIT_SECONDS)


def _suspects(batch_id: str, now: float) -> tuple[ColumnElement[bool], ...]:
    """Waiting suspects, while none is being answered. The index skips lines that were never taken, at 0."""
    other = batch_lines.alias().c
    in_work = exists().where(
        other.batch_id == batch_id,
        other.status == "pending",
        other.visible_at > now,
        other.visible_at <= now + LONGEST_WAIT_SECONDS,
        other.taken_by.is_not(None),
        other.deaths > 0,
    )
    waits = (_LINE.batch_id == batch_id, _LINE.status == "pending", _LINE.visible_at > 0.0, _due(now))
    return *waits, or_(_LINE.taken_by.is_not(None), _LINE.deaths > 0), ~in_work
