"""One writer at a time over all replicas, for what the registry's pointer and the rows about it say together."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

_REGISTRY_LOCK = 0x41494F04  # PostgreSQL advisory lock number: "AIO", 4


@asynccontextmanager
async def registry_transaction(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A transaction that excludes all others of its kind.

    The pointer is written as its last act: a database that is away leaves the pointer alone, and whoever dies before
    the commit leaves a pointer that the next `Rollouts.advance` brings back to what the rows say.
    """
    if engine.dialect.name == "postgresql":
        async with engine.begin() as connection:
            await connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": _REGISTRY_LOCK})
            yield connection
    else:
        async with engine.execution_options(sqlite_begin="BEGIN IMMEDIATE").begin() as connection:
            yield connection
