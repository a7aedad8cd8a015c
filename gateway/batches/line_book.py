"""The rows of a batch's lines: each gets one visible answer, even if several workers answer it."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.batches.batch_input import InputLine
from migrations.tables.api_objects import batch_lines, batches

_LINE = batch_lines.c


class LineAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The visible answer of a line: `text` is its line in the output file, or in the error file."""

    batch_id: str
    number: int
    status: Literal["done", "failed"]
    text: str


class EndedLine(msgspec.Struct, frozen=True):
    """A line of a batch that has ended; `text` is None if it has no answer."""

    number: int
    custom_id: str
    status: Literal["done", "failed", "unanswered"]
    text: str | None


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
