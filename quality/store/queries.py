"""Queries over the store: requests and their costs, erasure of a user, and the audit trail."""

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from sqlalchemy import Row, Select, delete, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from classifier.registry.erasure import embedding_digest
from migrations.tables.api_objects import batches, files, kept_turns, stored_responses
from migrations.tables.audit import audit_events, erased_embeddings, erasures
from migrations.tables.quality import tool_definitions, training_rows, verifications
from migrations.tables.requests import refused_requests, requests, routing_decisions, session_steps
from quality.records.any_record import Recorded
from quality.records.record import Record
from quality.records.rows import decision_row, recorded_of, request_row, session_row
from quality.store.bulk_insert import insert_if_absent, insert_into
from quality.store.database import checkpoint

_ERASURE_LOCK = 0x41494F02  # PostgreSQL advisory lock number: "AIO", 2


class ErasedRows(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of rows deleted by erasing a user."""

    requests: int
    verifications: int
    training_rows: int
    files: int
    batches: int
    stored_responses: int


async def insert_records(connection: AsyncConnection, records: Sequence[Recorded]) -> None:
    """Store `records` in the caller's transaction; records that are already stored stay unchanged.

    Records of a user who was erased after they were made are dropped.
    """
    await exclude_erasures(connection)
    await insert_if_absent(connection, requests, map(request_row, records))
    if decisions := [decision_row(r) for r in records if isinstance(r, Record)]:
        await insert_if_absent(connection, routing_decisions, decisions)
    if steps := [row for r in records if isinstance(r, Record) and (row := session_row(r)) is not None]:
        await insert_if_absent(connection, session_steps, steps)
    # Almost always there are none. A list of ids would be a different statement for each batch size, and
    # connections keep what they have prepared.
    oldest = min((record.created_at for record in records), default=0.0)
    marks = select(erasures.c.key_id, erasures.c.erased_at).where(erasures.c.erased_at >= oldest)
    erased = {row.key_id: row.erased_at for row in await connection.execute(marks)}
    if gone := [r.request_id for r in records if r.created_at <= erased.get(r.key_id or "", -math.inf)]:
        await connection.execute(delete(requests).where(requests.c.request_id.in_(gone)))


async def exclude_erasures(connection: AsyncConnection) -> None:
    """Until the transaction's end: either an erasure sees its rows, or it sees the erasure. SQLite has one writer at a
    time anyway."""
    if connection.dialect.name == "postgresql":
        await connection.execute(text("SELECT pg_advisory_xact_lock_shared(:number)"), {"number": _ERASURE_LOCK})


async def get_request(engine: AsyncEngine, request_id: str) -> Recorded | None:
    """Return the stored record, or None (`Ledger.find` also knows records that are not stored yet)."""
    found = await _records(engine, _select_records().where(requests.c.request_id == request_id))
    return found[0] if found else None


async def newest_answers(engine: AsyncEngine, tier: int, limit: int) -> list[Record]:
    """Return the `limit` newest stored chats that `tier` answered and whose texts are there, newest first."""
    r = requests.c
    answered = (r.messages.is_not(None), r.tier == tier, r.api == "chat", r.status == "ok")
    found = await _records(engine, _select_records().where(*answered).order_by(r.created_at.desc()).limit(limit))
    return [record for record in found if isinstance(record, Record)]


async def delete_key_data(engine: AsyncEngine, key_id: str, *, now: float) -> ErasedRows:
    """Delete everything stored of a user up to `now`, and drop the user's records that still arrive from journals.

    The digests of the user's training embeddings stay for a while, to find artefacts that hold them
    (`quality.privacy.erase_user`). Call `Ledger.flush` first, so that no text remains in this process's journal files.
    SQLite overwrites the deleted content in its file and log; PostgreSQL reclaims it by its own vacuum.
    """
    async with engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            await connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": _ERASURE_LOCK})
        mark = insert_into(erasures, connection.dialect)
        await connection.execute(
            mark.on_conflict_do_update(index_elements=[erasures.c.key_id], set_={"erased_at": mark.excluded.erased_at}),
            {"key_id": key_id, "erased_at": now},
        )
        await _keep_digests(connection, key_id, now)
        counts = {}
        # Decisions are deleted with their requests, contents with their files, and lines with their batches.
        for table in (training_rows, verifications, requests, files, batches, stored_responses):
            mine = delete(table).where(table.c.key_id == key_id, table.c.created_at <= now)
            counts[table.name] = (await connection.execute(mine)).rowcount
        await connection.execute(
            delete(kept_turns).where(kept_turns.c.key_id == key_id, kept_turns.c.created_at <= now)
        )
        refused = delete(refused_requests)
        await connection.execute(
            refused.where(refused_requests.c.key_id == key_id, refused_requests.c.created_at <= now)
        )
        unused = tool_definitions.c.used_at <= now
        await connection.execute(delete(tool_definitions).where(tool_definitions.c.key_id == key_id, unused))
    await checkpoint(engine)
    return ErasedRows(**counts)


async def _keep_digests(connection: AsyncConnection, key_id: str, now: float) -> None:
    mine = select(training_rows.c.embedding).where(training_rows.c.key_id == key_id, training_rows.c.created_at <= now)
    embeddings = (await connection.execute(mine)).scalars()
    digests = {embedding_digest(np.frombuffer(blob, "<f4")) for blob in embeddings if blob}
    if digests:
        keep = insert_into(erased_embeddings, connection.dialect)
        await connection.execute(
            keep.on_conflict_do_update(
                index_elements=[erased_embeddings.c.digest], set_={"erased_at": keep.excluded.erased_at}
            ),
            [{"digest": digest, "erased_at": now} for digest in digests],
        )


async def record_audit(
    engine: AsyncEngine, *, at: float, actor: str, action: str, subject: str, reason: str | None = None,
    details: Any = None,
) -> None:  # fmt: skip
    """Store an audit row: `actor` did `action` to `subject`; `details` is any JSON value or struct."""
    row = {
        "created_at": at, "actor": actor, "action": action, "subject": subject, "reason": reason, "details": details,
    }  # fmt: skip
    async with engine.begin() as connection:
        await connection.execute(audit_events.insert(), row)


_DECISION_PREFIX = "decision_"


def _select_records() -> Select[Any]:
    decision = [column.label(_DECISION_PREFIX + column.name) for column in routing_decisions.c]
    return select(*requests.c, *decision).outerjoin_from(requests, routing_decisions)


async def _records(engine: AsyncEngine, query: Select[Any]) -> list[Recorded]:
    async with engine.connect() as connection:
        return [_record(row) for row in (await connection.execute(query)).all()]


def _record(row: Row[Any]) -> Recorded:
    mapping = dict(row._mapping)
    return recorded_of(
        mapping, {column.name: mapping[_DECISION_PREFIX + column.name] for column in routing_decisions.c}
    )
