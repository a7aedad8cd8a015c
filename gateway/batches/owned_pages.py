"""Pages of one tenant's rows, ordered by time-sorted ids, as OpenAI lists them: `after` an id, `limit`, `order`."""

from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Table, select
from sqlalchemy.ext.asyncio import AsyncEngine


class OwnedPage(msgspec.Struct, frozen=True):
    """`rows` by column; `has_more`: more rows follow."""

    rows: list[dict[str, Any]]
    has_more: bool


async def owned_page(
    engine: AsyncEngine,
    table: Table,
    conditions: list[ColumnElement[bool]],
    *,
    after: str | None,
    limit: int,
    ascending: bool,
) -> OwnedPage:
    """Return the rows after the id `after` that meet `conditions`, which the index puts before the table's only key."""
    key = next(iter(table.primary_key.columns))
    if after is not None:
        conditions = [*conditions, key > after if ascending else key < after]
    query = select(table).where(*conditions).order_by(key if ascending else key.desc()).limit(limit + 1)
    async with engine.connect() as connection:
        found = [dict(row) for row in (await connection.execute(query)).mappings()]
    return OwnedPage(found[:limit], len(found) > limit)
