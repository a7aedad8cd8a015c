"""Stored counts of refused requests: a row per minute, key, endpoint and kind of refusal, which processes share."""

import hashlib
from collections.abc import Iterable

import msgspec
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.requests import refused_requests
from quality.store.queries import insert_into

MINUTE = 60.0


class RefusalKind(msgspec.Struct, frozen=True):
    """What is counted together. `key_id`: None without a known key; `reason`: which limit was reached, and whose, ""
    where the message says all; `path`: of the endpoint, "" for none."""

    key_id: str | None
    status: int
    code: str
    reason: str
    path: str


class RefusalCount(msgspec.Struct):
    """How often within a minute, and the last one."""

    count: int = 0
    last_at: float = 0.0
    last_request_id: str = ""
    last_message: str | None = None


async def add_refused(engine: AsyncEngine, counts: Iterable[tuple[float, RefusalKind, RefusalCount]]) -> None:
    """Add `counts`, at least one, each with the start of its minute (epoch seconds), to the stored ones."""
    # In one order in all processes, which otherwise could wait for each other.
    rows = sorted((_row(*one) for one in counts), key=lambda row: str(row["refusal_id"]))
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


async def refused_since(engine: AsyncEngine, since: float) -> int:
    """Return how many requests were refused in the minutes that began at `since` (epoch seconds) or later."""
    count, created = refused_requests.c.count, refused_requests.c.created_at
    async with engine.connect() as connection:
        return await connection.scalar(select(func.coalesce(func.sum(count), 0)).where(created >= since)) or 0


def _row(minute: float, kind: RefusalKind, count: RefusalCount) -> dict[str, object]:
    digest = hashlib.blake2b(msgspec.msgpack.encode((minute, kind)), digest_size=16).hexdigest()
    return {"refusal_id": digest, "created_at": minute, **msgspec.structs.asdict(kind), **msgspec.structs.asdict(count)}
