"""What is deleted: a user's rows; and texts and rows by age and number, one batch at a time."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Table, and_, delete, exists, func, null, select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.api_objects import files, stored_responses
from migrations.tables.quality import tool_definitions, training_rows, verifications
from migrations.tables.requests import refused_requests, requests
from quality.store.database import checkpoint
from quality.store.queries import ErasedRows, delete_key_data, record_audit


async def erase_user(engine: AsyncEngine, key_id: str, *, actor: str, reason: str, now: float) -> ErasedRows:
    """Delete all data of the user with this key up to `now`, and audit who requested it."""
    rows = await delete_key_data(engine, key_id, now=now)
    await record_audit(
        engine, at=now, actor=actor, action="user.erased", subject=key_id, reason=reason, details={"rows": rows}
    )
    return rows


_DAY = 86_400.0
# A request may be sampled for verification this long after it was stored, so its text is needed until then.
_GRACE_SECONDS = 60.0
# The verification budget counts the spending of the last day.
_LEAST_VERIFICATION_SECONDS = _DAY
MOST_REFUSED = 200_000
"""Rows of refused requests, the newest of which are kept."""
_LOCK = 0x41494F08  # PostgreSQL advisory lock number: "AIO", 8


class RetentionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept; None sets no limit. Days may be fractions. Raises `ValueError`."""

    text_days: float | None = 30.0
    """Days of messages, answers, stored responses, verifiers' answers and judges' reasons. With 0 they are kept until
    the request is verified or passed over (stored responses for a minute), so that only embedding and label remain.
    """
    days: float | None = 400.0
    """Days of requests with their routing and verifications."""
    rows: int | None = None
    """Number of requests with their routing and verifications."""
    gigabytes: float | None = None
    """Size of SQLite's file without free pages and of callers' files. Beyond it the oldest requests go, those without
    labels first.
    """
    training_days: float | None = None
    """Days of embeddings with labels."""
    training_rows: int | None = None
    """Number of embeddings with labels."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            limit = getattr(self, name)
            if limit is not None and limit < 0:
                raise ValueError(f"{name} is {limit}; it must not be negative")


class Purged(msgspec.Struct, frozen=True, kw_only=True):
    """The number of rows that lost their texts, and of rows deleted."""

    texts: int = 0
    requests: int = 0
    verifications: int = 0
    training_rows: int = 0
    stored_responses: int = 0


class Retention:
    """Keeps the store of `engine` within `limits`; call `purge` regularly.

    Replicas take turns by batch. A batch is one short transaction that finds its rows by an index on time.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        limits: RetentionLimits,
        *,
        batch: int = 500,
        pause_seconds: float = 0.02,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._engine = engine
        self.limits = limits
        self._batch = batch
        self._pause_seconds = pause_seconds
        self._clock = clock

    async def purge(self) -> Purged:
        """Delete everything beyond the limits."""
        now, limits = self._clock(), self.limits
        texts, old = 0, None
        if limits.text_days is not None:
            old = now - max(limits.text_days * _DAY, _GRACE_SECONDS)
            texts = await self._purge_texts(old)
        before = await self._limit(requests, limits.days, limits.rows, now)
        learned_before = await self._limit(training_rows, limits.training_days, limits.training_rows, now)
        until = max((t for t in (old, before) if t is not None), default=None)
        purged = Purged(
            texts=texts,
            requests=await self._delete(requests, "request_id", before, _not_waiting()) + await self._shrink(),
            verifications=await self._delete(
                verifications,
                "verification_id",
                None if before is None else min(before, now - _LEAST_VERIFICATION_SECONDS),
                verifications.c.status != "pending",
            ),
            training_rows=await self._delete(training_rows, "training_row_id", learned_before),
            # Texts through and through, and no longer kept than their request.
            stored_responses=await self._delete(stored_responses, "response_id", until),
        )
        await self._delete(tool_definitions, "digest", until, _not_waited_with(), at="used_at")
        refused_before = await self._limit(refused_requests, limits.days, MOST_REFUSED, now)
        await self._delete(refused_requests, "refusal_id", refused_before)
        if any(msgspec.structs.astuple(purged)):
            await checkpoint(self._engine)
        return purged

    async def _purge_texts(self, before: float) -> int:
        r, v = requests.c, verifications.c
        asked = self._oldest(
            requests, r.request_id, and_(r.messages.is_not(None), r.created_at < before, _not_waiting())
        )
        judged = self._oldest(
            verifications, v.verification_id, and_(v.reason.is_not(None), v.created_at < before, v.status != "pending")
        )
        emptied = dict.fromkeys(("messages", "answer", "reasoning", "response_format"), null())
        return await self._in_batches(
            update(requests).where(r.request_id.in_(asked)).values(**emptied)
        ) + await self._in_batches(
            update(verifications)
            .where(v.verification_id.in_(judged))
            .values(verifier_answer=null(), judged_answer=null(), reason=null(), error=null())
        )

    async def _delete(
        self,
        table: Table,
        key: str,
        before: float | None,
        condition: ColumnElement[bool] | None = None,
        at: str = "created_at",
    ) -> int:
        if before is None:
            return 0
        conditions = [table.c[at] < before, *([] if condition is None else [condition])]
        oldest = self._oldest(table, table.c[key], and_(*conditions), at)
        return await self._in_batches(delete(table).where(table.c[key].in_(oldest)))

    def _oldest(self, table: Table, key: Any, condition: ColumnElement[bool], at: str = "created_at") -> Any:
        return select(key).where(condition).order_by(table.c[at]).limit(self._batch).scalar_subquery()

    async def _limit(self, table: Table, days: float | None, rows: int | None, now: float) -> float | None:
        """Return the time before which rows are deleted, by age and so that at most `rows` of them remain."""
        limits = [] if days is None else [now - days * _DAY]
        if rows is not None:
            newest = select(table.c.created_at).order_by(table.c.created_at.desc())
            async with self._engine.connect() as connection:
                # Count first, because most of the time nothing is beyond the limit.
                if (await connection.execute(select(func.count()).select_from(table))).scalar_one() > rows:
                    first_kept = newest.offset(max(rows - 1, 0)).limit(1)
                    limits.append((await connection.execute(first_kept)).scalar_one())
        return max(limits, default=None)

    async def _shrink(self) -> int:
        """Delete the oldest requests while the database has more bytes than are allowed; return their number."""
        if self.limits.gigabytes is None or self._engine.dialect.name != "sqlite":
            return 0
        most, done, r = self.limits.gigabytes * 1e9, 0, requests.c
        for condition in (and_(_not_waiting(), _unlabelled()), _not_waiting()):
            oldest = select(r.request_id).where(condition).order_by(r.created_at).limit(self._batch)
            while await self._used_bytes() > most:
                async with self._engine.begin() as connection:
                    gone = list(await connection.scalars(oldest))
                    for key in (stored_responses.c.response_id, r.request_id):
                        await connection.execute(delete(key.table).where(key.in_(gone)))
                done += len(gone)
                if len(gone) < self._batch:
                    break
                await asyncio.sleep(self._pause_seconds)
        return done

    async def _used_bytes(self) -> int:
        async with self._engine.connect() as connection:
            pages, free, size = [
                (await connection.execute(text(f"PRAGMA {name}"))).scalar_one()
                for name in ("page_count", "freelist_count", "page_size")
            ]
            kept = await connection.scalar(select(func.sum(files.c.bytes)))
        return int((pages - free) * size - (kept or 0))

    async def _in_batches(self, statement: Any) -> int:
        """Run `statement` until it finds no more rows; return their number."""
        done = 0
        while True:
            async with self._engine.begin() as connection:
                if connection.dialect.name == "postgresql":
                    mine = await connection.scalar(text("SELECT pg_try_advisory_xact_lock(:number)"), {"number": _LOCK})
                    if not mine:
                        return done  # another replica is purging
                count = (await connection.execute(statement)).rowcount
            done += count
            if count < self._batch:
                return done
            # Let the serving processes write in between.
            await asyncio.sleep(self._pause_seconds)


def _not_waiting() -> ColumnElement[bool]:
    """No verification waits for this request's texts."""
    waiting = and_(verifications.c.request_id == requests.c.request_id, verifications.c.status == "pending")
    return ~exists().where(waiting)


def _unlabelled() -> ColumnElement[bool]:
    """No verification and no row of training has a label of this request."""
    judged = and_(verifications.c.request_id == requests.c.request_id, verifications.c.label.is_not(None))
    return and_(~exists().where(judged), ~exists().where(training_rows.c.request_id == requests.c.request_id))


def _not_waited_with() -> ColumnElement[bool]:
    """No verification waits with these definitions of tools."""
    waiting = and_(verifications.c.tools_digest == tool_definitions.c.digest, verifications.c.status == "pending")
    return ~exists().where(waiting)
