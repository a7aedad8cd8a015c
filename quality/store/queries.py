"""Queries over the store: requests and their costs, as rows and back, counts of refused ones, erasure of a user, the
reset of labels, and the audit trail, also of live knobs; and transactions that exclude each other over all processes on
one database.

Rows are inserted many at a time: the statement and the conversion of each column are prepared once per database.
SQLAlchemy prepares the values of each row again, which costs more than the rest of storing it."""

import hashlib
import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Dialect, Float, Row, Select, Table, delete, func, select, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from migrations.tables.api_objects import batches, files, stored_responses, stored_turns
from migrations.tables.audit import audit_events, audited, erasures, knob_changes
from migrations.tables.quality import tool_definitions, training_rows, verifications
from migrations.tables.requests import refused_requests, requests, routing_decisions, session_steps
from quality.records.record import (
    Attempt,
    EmbeddingRecord,
    Record,
    Recorded,
    Timings,
    consent_of,
    inputs_reader,
    read_decision,
)
from quality.store.database import checkpoint, writing_first
from tiers.catalog.consent import ALL

MINUTE = 60.0
"""Refusals are counted by the minute in which they happened."""


@asynccontextmanager
async def exclusive(engine: AsyncEngine, lock: int) -> AsyncIterator[AsyncConnection]:
    """Open one transaction at a time over all replicas. `lock`: the number of PostgreSQL's advisory lock; SQLite has
    one writer at a time."""
    if engine.dialect.name == "postgresql":
        async with engine.begin() as connection:
            await connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": lock})
            yield connection
    else:
        async with writing_first(engine).begin() as connection:
            yield connection


class _Prepared(NamedTuple):
    """A statement with the values of its rows."""

    statement: str
    values: Callable[[Mapping[str, Any]], tuple[Any, ...]]
    """The values of a row in the order of the statement's parameters."""
    converted: Sequence[tuple[int, Callable[[Any], Any]]]
    """The places of those that the database gets in another form, with what makes it."""


async def insert_if_absent(connection: AsyncConnection, table: Table, rows: Iterable[Mapping[str, Any]]) -> None:
    """Insert `rows`, at least one, each with a value for every column that is not computed, None for NULL; those whose
    key is there already stay unchanged."""
    statement, values, converted = _prepared(connection.dialect, table)
    # By columns: many of them have no value in any row, and all rows of one are converted in one call.
    columns = [*zip(*map(values, rows), strict=True)]
    for index, convert in converted:
        column = columns[index]
        if (missing := column.count(None)) == 0:
            columns[index] = tuple(map(convert, column))
        elif missing < len(column):
            columns[index] = tuple([None if value is None else convert(value) for value in column])
    await connection.exec_driver_sql(statement, [*zip(*columns, strict=True)])


def insert_into(table: Table, dialect: Dialect) -> postgresql.Insert | sqlite.Insert:
    """Return an insert that can say what becomes of conflicts, in the database's own words."""
    return postgresql.insert(table) if dialect.name == "postgresql" else sqlite.insert(table)


@lru_cache(maxsize=16)
def _prepared(dialect: Dialect, table: Table) -> _Prepared:
    column_names = [column.name for column in table.c if column.computed is None]
    compiled = insert_into(table, dialect).on_conflict_do_nothing().compile(dialect=dialect, column_keys=column_names)
    names = compiled.positiontup or []
    converted = [
        (index, convert)
        for index, kind in enumerate(table.c[name].type for name in names)
        # Rows have numbers where such columns have.
        if not isinstance(kind, Float) and (convert := kind.dialect_impl(dialect).bind_processor(dialect)) is not None
    ]
    return _Prepared(str(compiled), itemgetter(*names), converted)


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
    records = await _records(engine, _select_records().where(requests.c.request_id == request_id))
    return records[0] if records else None


async def newest_answers(engine: AsyncEngine, tier: int, limit: int) -> list[Record]:
    """Return the `limit` newest stored chats that `tier` answered and whose texts are there, newest first."""
    r = requests.c
    answered = (r.messages.is_not(None), r.tier == tier, r.api == "chat", r.status == "ok")
    records = await _records(engine, _select_records().where(*answered).order_by(r.created_at.desc()).limit(limit))
    return [record for record in records if isinstance(record, Record)]


async def delete_key_data(engine: AsyncEngine, key_id: str, *, now: float) -> ErasedRows:
    """Delete everything stored of a user up to `now`, and drop the user's records that still arrive from journals.

    Call `Ledger.flush` first, so that no text remains in this process's journal files.
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
        counts = {}
        # Decisions are deleted with their requests, contents with their files, and lines with their batches.
        for table in (training_rows, verifications, requests, files, batches, stored_responses):
            mine = delete(table).where(table.c.key_id == key_id, table.c.created_at <= now)
            counts[table.name] = (await connection.execute(mine)).rowcount
        await connection.execute(
            delete(stored_turns).where(stored_turns.c.key_id == key_id, stored_turns.c.created_at <= now)
        )
        refused = delete(refused_requests)
        await connection.execute(
            refused.where(refused_requests.c.key_id == key_id, refused_requests.c.created_at <= now)
        )
        unused = tool_definitions.c.used_at <= now
        await connection.execute(delete(tool_definitions).where(tool_definitions.c.key_id == key_id, unused))
    await checkpoint(engine)
    return ErasedRows(**counts)


async def record_audit(
    engine: AsyncEngine, *, at: float, actor: str, action: str, subject: str, reason: str | None = None,
    details: Any = None,
) -> None:  # fmt: skip
    """Store an audit row: `actor` did `action` to `subject`; `details` is any JSON value or struct."""
    async with engine.begin() as connection:
        await connection.execute(audited(at, actor, action, subject, reason, details))


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


# The audit action of a reset, which outlives restarts: audit events are kept.
RESET = "promotions.reset"


async def labels_count_from(connection: AsyncConnection) -> float:
    """Return the epoch seconds of the last reset; labels up to then are forgotten. 0 without one."""
    last = select(func.max(audit_events.c.created_at)).where(audit_events.c.action == RESET)
    reset_at: float | None = await connection.scalar(last)
    return reset_at or 0.0


async def reset_labels(engine: AsyncEngine, *, actor: str, reason: str, now: float) -> None:
    """Forget all labels up to `now` (epoch seconds): every replica stops following them at its next poll, and no later
    retraining reads them."""
    await record_audit(engine, at=now, actor=actor, action=RESET, subject="own labels", reason=reason)


class KnobChange(msgspec.Struct, frozen=True, kw_only=True):
    """An actor's change of a knob, or a refused one. Values are JSON."""

    created_at: float
    """Epoch seconds."""
    actor: str
    """The one who set `knob` from `old_value` to `new_value`."""
    part: str
    """The part whose knob it is."""
    model: str | None
    """The model whose knob it is; None for all models."""
    knob: str
    old_value: Any
    new_value: Any
    reason: str | None = None
    kept: bool = False
    """Whether the change survives a restart."""
    refused: str | None = None
    """Why nothing was changed, None if it was."""
    knob_change_id: int | None = None
    """Assigned by the store."""


async def record_knob_changes(engine: AsyncEngine, changes: Sequence[KnobChange]) -> None:
    """Store `changes`, all or none."""
    rows = [msgspec.structs.asdict(change) for change in changes]
    for row in rows:
        del row["knob_change_id"]
    if rows:
        async with engine.begin() as connection:
            await connection.execute(knob_changes.insert(), rows)


async def list_knob_changes(
    engine: AsyncEngine, *, limit: int = 100, before: int | None = None, knob: str | None = None
) -> list[KnobChange]:
    """List changes, newest first; `before` is the id of the last one of the previous page."""
    columns = knob_changes.c
    query = select(*columns).order_by(columns.knob_change_id.desc()).limit(limit)
    if before is not None:
        query = query.where(columns.knob_change_id < before)
    if knob is not None:
        query = query.where(columns.knob == knob)
    async with engine.connect() as connection:
        return [KnobChange(**row._mapping) for row in (await connection.execute(query)).all()]


async def strongest_prices(engine: AsyncEngine, tiers: int, before: float, most: int) -> list[tuple[str, str, float]]:
    """Return the key, the hash of the system prompt ("" without one) and the US dollars of the newest `most` requests
    routed `before` (epoch seconds) among so many `tiers`, oldest first."""
    newest = (
        select(requests.c.key_id, routing_decisions.c.decision)
        .join(requests, requests.c.request_id == routing_decisions.c.request_id)
        .where(requests.c.created_at < before)
        .order_by(requests.c.created_at.desc())
        .limit(most)
    )
    async with engine.connect() as connection:
        rows = (await connection.execute(newest)).all()
    prices = [(key or "", _read_prices(decision)) for key, decision in reversed(rows)]
    return [(key, priced.app, priced.costs[-1]) for key, priced in prices if len(priced.costs) == tiers]


class _Priced(msgspec.Struct):
    costs: list[float]
    app: str = ""  # records of earlier releases have no system prompt


_read_prices = inputs_reader(_Priced)


class RefusalKind(msgspec.Struct, frozen=True):
    """What is counted together."""

    key_id: str | None
    """None without a known key."""
    status: int
    code: str
    reason: str
    """Which limit was reached, and whose; "" where the message says all."""
    path: str
    """Path of the endpoint; "" for none."""


class RefusalCount(msgspec.Struct):
    """How often within a minute, and the last one."""

    count: int = 0
    last_at: float = 0.0
    last_request_id: str = ""
    last_message: str | None = None


async def add_refused(engine: AsyncEngine, counts: Iterable[tuple[float, RefusalKind, RefusalCount]]) -> None:
    """Add `counts`, at least one, each with the start of its minute (epoch seconds), to the stored ones."""
    # In one order in all processes, which otherwise could wait for each other.
    rows = sorted((_row(*refusal) for refusal in counts), key=lambda row: str(row["refusal_id"]))
    async with engine.begin() as connection:
        insert = insert_into(refused_requests, connection.dialect)
        await connection.execute(
            insert.on_conflict_do_update(
                index_elements=[refused_requests.c.refusal_id],
                set_={
                    "count": refused_requests.c.count + insert.excluded.count,
                    **{name: insert.excluded[name] for name in ("last_at", "last_request_id", "last_message")},
                },
            ),
            rows,
        )


def _row(minute: float, kind: RefusalKind, count: RefusalCount) -> dict[str, object]:
    digest = hashlib.blake2b(msgspec.msgpack.encode((minute, kind)), digest_size=16).hexdigest()
    return {"refusal_id": digest, "created_at": minute, **msgspec.structs.asdict(kind), **msgspec.structs.asdict(count)}


# Embeddings have no generation, no decision and no saving.
_NO_ANSWER: dict[str, Any] = {
    "stream": False, "tier": None, "messages": None, "answer": None, "reasoning": None,
    "response_format": None, "consent": None, "finish_reason": None,
    "completion_tokens": 0, "cached_tokens": 0, "reasoning_tokens": 0, "compared": None,
    "estimated_usd": None,
    "route_ms": 0.0, "ttft_ms": None, "queue_ms": None, "prefill_ms": None, "decode_ms": None, "cache": None,
}  # fmt: skip
# Fields of a record that are columns of `requests`, as they are.
_PLAIN = tuple(name for name in Record.__struct_fields__ if name not in ("decision", "timings"))
_plain_of = attrgetter(*_PLAIN)


def request_row(record: Recorded) -> dict[str, Any]:
    if isinstance(record, EmbeddingRecord):
        return msgspec.structs.asdict(record) | _NO_ANSWER | {"baseline_cost_usd": record.cost_usd}
    row = dict(zip(_PLAIN, _plain_of(record), strict=True)) | msgspec.structs.asdict(record.timings)
    if record.consent == ALL:
        # As a row without any: most are, and each value of JSON has its price.
        row["consent"] = None
    # Nearly all requests have one attempt.
    comparison = record.comparison if len(record.attempts) > 1 and record.is_made else None
    row["compared"] = None if comparison is None else comparison.compared_as.kind
    row["estimated_usd"] = sum([attempt.cost_usd for attempt in record.attempts if attempt.estimated]) or None
    return row


def decision_row(record: Record) -> dict[str, Any]:
    """Return the row of `routing_decisions`: the whole decision, with the filtered values in their own columns."""
    decision = record.decision
    prediction = decision.inputs.prediction
    return {
        "request_id": record.request_id,
        "created_at": record.created_at,
        "tier": decision.tier,
        "would_be_tier": decision.would_be,
        "classifier_version": prediction.classifier_version,
        "prediction_kind": prediction.kind,
        "novelty": prediction.novelty,
        "decision": decision,
        "experiment_id": decision.inputs.experiment_id,
        "arm": decision.inputs.arm,
        "unit": decision.inputs.unit if decision.inputs.experiment_id is not None else None,
    }


def session_row(record: Record) -> dict[str, Any] | None:
    """Return the row of `session_steps`; None for a request that is no step of an agent's session."""
    inputs = record.decision.inputs
    step = inputs.session
    if step is None:
        return None
    same = ("session", "client", "step", "loop_step", "at", "rule", "gap_seconds", "errors", "repeats", "bad_calls")
    row = {name: getattr(step, name) for name in (*same, "last_exit", "end_sign", "trouble")}
    answered = {name: getattr(record, name) for name in ("request_id", "created_at", "key_id", "tier", "cost_usd")}
    tokens = {name: getattr(record, name) for name in ("prompt_tokens", "cached_tokens", "completion_tokens")}
    return (row | answered | tokens) | {
        "purpose": inputs.purpose or "main",
        "previous": step.previous or None,
        "reason": step.because,
        "written_tokens": record.attempts[-1].cache_write_tokens if record.attempts else 0,
        "strongest_usd": record.baseline_cost_usd,
        "ended": step.end,
        "end_weight": step.end_weight or None,
    }


def recorded_of(request: Mapping[str, Any], decision: Mapping[str, Any]) -> Recorded:
    """Rebuild the record from its `request_row` and `decision_row`; an embedding ignores `decision`."""
    if request["api"] not in ("chat", "completion"):
        fields = {name: request[name] for name in EmbeddingRecord.__struct_fields__}
        return EmbeddingRecord(**fields | {"attempts": msgspec.convert(request["attempts"], list[Attempt])})
    timings = Timings(**{name: request[name] for name in Timings.__struct_fields__})
    plain = {name: request[name] for name in _PLAIN}
    plain["attempts"] = msgspec.convert(request["attempts"], list[Attempt])
    plain["consent"] = consent_of(request["consent"])
    return Record(**plain, timings=timings, decision=read_decision(decision["decision"]))
