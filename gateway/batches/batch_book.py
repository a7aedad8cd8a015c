"""The rows of batches and of their lines.

A batch is made, found, listed, and advanced from one status to the next under a lease. A line gets one visible
answer, even if several workers answer it.
"""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from sqlalchemy import ColumnElement, delete, exists, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.base.identity import new_request_id
from gateway.base.stores.database import DatabaseTime
from gateway.batches.batch import (
    UNDER_WAY,
    Batch,
    Counts,
    Ending,
    InputError,
    InputLine,
    NewBatch,
    NotCancellableError,
    Status,
    TooManyBatchesError,
)
from gateway.batches.file_store import Owner, owned_page
from migrations.tables.api_objects import batch_lines, batches

# One process at a time reads the input or writes the output; it renews this lease with every part.
LEASE_SECONDS = 30.0
MOST_UNDER_WAY = 50

_ROW = batches.c
_COLUMNS = [batches.c[name] for name in Batch.__struct_fields__]


class BatchBook:
    """Batches in the database. `process`: this process's name in leases."""

    def __init__(self, engine: AsyncEngine, clock: DatabaseTime, process: str) -> None:
        self._engine, self._clock, self._process = engine, clock, process

    def now(self) -> float:
        """UTC epoch seconds, by the database."""
        return self._clock.now()

    async def create(self, owner: Owner, new: NewBatch) -> Batch:
        """Make a batch, to be validated. Raises `TooManyBatchesError`."""
        batch_id = new_request_id("batch")
        open_ones = select(func.count()).where(_ROW.tenant == owner.tenant, _ROW.status.in_(UNDER_WAY))
        async with self._engine.begin() as connection:
            now = await self._clock.look(connection)
            row = {
                "batch_id": batch_id,
                "key_id": owner.key_id,
                "tenant": owner.tenant,
                "endpoint": new.endpoint,
                "input_file_id": new.input_file_id,
                "completion_window": new.completion_window,
                "metadata": new.metadata,
                "traceparent": new.traceparent,
                "output_seconds": new.output_seconds,
                "status": "validating",
                "total": 0,
                "created_at": now,
                "expires_at": now + new.seconds,
            }
            await connection.execute(insert(batches), row)
            if (await connection.scalar(open_ones) or 0) > MOST_UNDER_WAY:
                raise TooManyBatchesError(MOST_UNDER_WAY)
            return await self._read(connection, _ROW.batch_id == batch_id)

    async def find(self, tenant: str, batch_id: str) -> Batch | None:
        async with self._engine.connect() as connection:
            query = select(*_COLUMNS).where(_ROW.batch_id == batch_id, _ROW.tenant == tenant)
            row = (await connection.execute(query)).mappings().first()
        return None if row is None else Batch(**row)

    async def page(self, tenant: str, *, after: str | None, limit: int) -> tuple[list[Batch], bool]:
        """Return the tenant's batches after `after`, newest first, and whether there are more."""
        page = await owned_page(
            self._engine, batches, [_ROW.tenant == tenant], after=after, limit=limit, ascending=False
        )
        names = Batch.__struct_fields__
        return [Batch(**{name: row[name] for name in names}) for row in page.rows], page.has_more

    async def counts(self, batch: Batch) -> Counts:
        """Return the current line counts."""
        if batch.completed is not None:
            return Counts(batch.total, batch.completed, batch.failed or 0)
        async with self._engine.connect() as connection:
            return await self._counted(connection, batch.batch_id, batch.total)

    async def cancel(self, tenant: str, batch_id: str) -> Batch | None:
        """Cancel the batch; None if the tenant has none of this id. Raises `NotCancellableError`."""
        mine = (_ROW.batch_id == batch_id, _ROW.tenant == tenant)
        values = {"status": "cancelling", "cancelling_at": self.now()}
        async with self._engine.begin() as connection:
            wanted = update(batches).where(*mine, _ROW.status.in_(("validating", "in_progress"))).values(values)
            await connection.execute(wanted)
            row = (await connection.execute(select(*_COLUMNS).where(*mine))).mappings().first()
        if row is None:
            return None
        batch = Batch(**row)
        if batch.status not in ("cancelling", "cancelled"):
            raise NotCancellableError(batch.status)
        return batch

    async def under_way(self) -> list[tuple[Batch, bool]]:
        """Return open batches, oldest first, and whether any of their lines wait for an answer."""
        waiting = exists().where(batch_lines.c.batch_id == _ROW.batch_id, batch_lines.c.status == "pending")
        query = select(*_COLUMNS, waiting.label("waiting")).where(_ROW.status.in_(UNDER_WAY)).order_by(_ROW.created_at)
        async with self._engine.connect() as connection:
            rows = [dict(row) for row in (await connection.execute(query)).mappings()]
        return [(Batch(**{name: row[name] for name in Batch.__struct_fields__}), row["waiting"]) for row in rows]

    async def claim(self, batch: Batch) -> bool:
        """Lease the batch, unless it has advanced or another process holds it."""
        async with self._engine.begin() as connection:
            now = await self._clock.lease_clock(connection)
            # A lease that ends too far ahead was written before the machine's monotonic clock restarted.
            free = or_(_ROW.owner.is_(None), _ROW.lease_until <= now, _ROW.lease_until > now + 2 * LEASE_SECONDS)
            values = {"owner": self._process, "lease_until": now + LEASE_SECONDS}
            mine = update(batches).where(_ROW.batch_id == batch.batch_id, _ROW.status == batch.status, free)
            return bool((await connection.execute(mine.values(values))).rowcount)

    async def renew(self, batch: Batch, status: Status) -> bool:
        """Renew the lease; False if it is lost or the batch has advanced from `status`."""
        async with self._engine.begin() as connection:
            now = await self._clock.lease_clock(connection)
            values = {"lease_until": now + LEASE_SECONDS}
            return bool((await connection.execute(self._led(batch, status, values))).rowcount)

    async def release(self, batch: Batch) -> None:
        mine = (_ROW.batch_id == batch.batch_id, _ROW.owner == self._process)
        async with self._engine.begin() as connection:
            await connection.execute(update(batches).where(*mine).values(owner=None, lease_until=None))

    async def begin(self, batch: Batch, total: int) -> None:
        """All lines are stored: let them be answered."""
        values = {"status": "in_progress", "in_progress_at": self.now(), "total": total}
        async with self._engine.begin() as connection:
            await connection.execute(self._led(batch, "validating", values))

    async def refuse(self, batch: Batch, errors: list[InputError]) -> None:
        """Fail the batch because of its input."""
        values = {"status": "failed", "failed_at": self.now(), "errors": errors, "completed": 0, "failed": 0}
        async with self._engine.begin() as connection:
            await connection.execute(self._led(batch, "validating", values))

    async def finalize(self, batch: Batch) -> bool:
        """Answer no more lines; the files are written next. False if the batch has advanced."""
        values = {"status": "finalizing", "finalizing_at": self.now()}
        async with self._engine.begin() as connection:
            return bool((await connection.execute(self._led(batch, "in_progress", values))).rowcount)

    async def end(
        self, connection: AsyncConnection, batch: Batch, status: Status, ending: Ending, files: dict[str, str]
    ) -> bool:
        """Move the batch from `status` to its end in the caller's transaction and delete its lines. `files`: ids by
        column. False if the lease was lost: the transaction must then not be committed."""
        counts = await self._counted(connection, batch.batch_id, batch.total)
        values = {"status": ending, f"{ending}_at": self.now(), "owner": None, "lease_until": None, **files}
        values |= {"completed": counts.completed, "failed": counts.failed}
        if not (await connection.execute(self._led(batch, status, values))).rowcount:
            return False
        await connection.execute(delete(batch_lines).where(batch_lines.c.batch_id == batch.batch_id))
        return True

    async def purge(self, before: float) -> int:
        """Delete ended batches made before this time; return how many."""
        old = delete(batches).where(_ROW.created_at < before, _ROW.status.not_in(UNDER_WAY))
        async with self._engine.begin() as connection:
            return (await connection.execute(old)).rowcount

    def _led(self, batch: Batch, status: Status, values: dict[str, Any]) -> Any:
        mine = (_ROW.batch_id == batch.batch_id, _ROW.owner == self._process, _ROW.status == status)
        return update(batches).where(*mine).values(values)

    async def _read(self, connection: AsyncConnection, condition: ColumnElement[bool]) -> Batch:
        return Batch(**(await connection.execute(select(*_COLUMNS).where(condition))).mappings().one())

    async def _counted(self, connection: AsyncConnection, batch_id: str, total: int) -> Counts:
        line = batch_lines.c
        query = select(line.status, func.count()).where(line.batch_id == batch_id).group_by(line.status)
        by_status = {row[0]: row[1] for row in await connection.execute(query)}
        return Counts(total, by_status.get("done", 0), by_status.get("failed", 0))


_LINE = batch_lines.c


class LineAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The visible answer of a line: `text` is its line in the output file, or in the error file."""

    batch_id: str
    number: int
    status: Literal["done", "failed"]
    text: str


class EndedLine(msgspec.Struct, frozen=True):
    """A line of a batch that has ended."""

    number: int
    custom_id: str
    status: Literal["done", "failed", "unanswered"]
    text: str | None
    """None if it has no answer."""


class Waiting(msgspec.Struct, frozen=True):
    """Lines that wait for an answer, and the age in seconds of the oldest open batch."""

    lines: int
    oldest_seconds: float


class LineBook:
    """Lines in the database."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def clear(self, batch_id: str) -> None:
        """Delete the lines that a dead process had read of the input."""
        async with self._engine.begin() as connection:
            await connection.execute(delete(batch_lines).where(_LINE.batch_id == batch_id))

    async def add(self, batch_id: str, lines: Sequence[InputLine]) -> None:
        """Add lines to answer."""
        rows = [
            {
                "batch_id": batch_id,
                "number": line.number,
                "custom_id": line.custom_id,
                "status": "pending",
                "body": line.body,
                "visible_at": 0.0,
                "deliveries": 0,
            }
            for line in lines
        ]
        async with self._engine.begin() as connection:
            await connection.execute(insert(batch_lines), rows)

    async def pending(self, batch_id: str, after: int, limit: int) -> list[int]:
        """Return the numbers of unanswered lines after `after`, in order."""
        query = select(_LINE.number).where(*_pending(batch_id), _LINE.number > after).order_by(_LINE.number)
        async with self._engine.connect() as connection:
            return list((await connection.execute(query.limit(limit))).scalars())

    async def requests(self, batch_id: str, numbers: Sequence[int]) -> dict[int, InputLine]:
        """Return the requests of those `numbers` that are unanswered."""
        query = select(_LINE.number, _LINE.custom_id, _LINE.body).where(*_pending(batch_id), _LINE.number.in_(numbers))
        async with self._engine.connect() as connection:
            return {row[0]: InputLine(*row) for row in await connection.execute(query)}

    async def answer(self, answers: Sequence[LineAnswer]) -> list[bool]:
        """Store answers. False for a line that already has one, or whose batch has ended: that answer is dropped."""
        async with self._engine.begin() as connection:
            return [await self._answer(connection, answer) for answer in answers]

    async def close(self, batch_id: str) -> None:
        """Close the batch's lines: answers that still arrive are dropped."""
        values = {"status": "unanswered", "body": None, "taken_by": None}
        async with self._engine.begin() as connection:
            await connection.execute(update(batch_lines).where(*_pending(batch_id)).values(values))

    async def ended(self, batch_id: str, after: int, limit: int) -> list[EndedLine]:
        """Return lines after `after`, in order."""
        query = select(_LINE.number, _LINE.custom_id, _LINE.status, _LINE.answer)
        query = query.where(_LINE.batch_id == batch_id, _LINE.number > after).order_by(_LINE.number).limit(limit)
        async with self._engine.connect() as connection:
            return [EndedLine(*row) for row in await connection.execute(query)]

    async def waiting(self, now: float) -> Waiting:
        """As of `now`, UTC epoch seconds."""
        open_ones = ("validating", "in_progress")
        lines = select(func.count()).select_from(batch_lines.join(batches)).where(
            batches.c.status == "in_progress", _LINE.status == "pending"
        )  # fmt: skip
        oldest = select(func.min(batches.c.created_at)).where(batches.c.status.in_(open_ones))
        async with self._engine.connect() as connection:
            first = await connection.scalar(oldest)
            return Waiting(await connection.scalar(lines) or 0, 0.0 if first is None else max(0.0, now - first))

    async def _answer(self, connection: AsyncConnection, answer: LineAnswer) -> bool:
        values: dict[str, Any] = {"status": answer.status, "answer": answer.text, "body": None, "taken_by": None}
        mine = update(batch_lines).where(*_pending(answer.batch_id), _LINE.number == answer.number)
        return bool((await connection.execute(mine.values(values))).rowcount)


def _pending(batch_id: str) -> tuple[Any, ...]:
    return _LINE.batch_id == batch_id, _LINE.status == "pending"
