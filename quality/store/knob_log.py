"""The audit trail of live knobs: every change and every refusal, with who, when, from what, to what and why."""

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.audit import knob_changes


class KnobChange(msgspec.Struct, frozen=True, kw_only=True):
    """`actor` set `knob` of `part` (and of its `model`; None is all models) from `old_value` to `new_value`.

    Values are JSON. `kept`: whether the change survives a restart. `refused`: why nothing was changed, None if it was.
    `created_at`: epoch seconds. `knob_change_id` is assigned by the store.
    """

    created_at: float
    actor: str
    part: str
    model: str | None
    knob: str
    old_value: Any
    new_value: Any
    reason: str | None = None
    kept: bool = False
    refused: str | None = None
    knob_change_id: int | None = None


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
