"""One writer at a time over all replicas, for the registry's pointer and the rows about it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

_REGISTRY_LOCK = 0x41494F04  # PostgreSQL advisory lock number: "AIO", 4


@asynccontextmanager
async def registry_transaction(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """Open a transaction that excludes all others of its kind.

    Write the pointer last: an unavailable database then leaves it unchanged, and after a crash before the commit the
    next `Rollouts.advance` resets it to what the rows say.
    """
    if engine.dialect.name == "postgresql":
        async with engine.begin() as connection:
            await connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": _REGISTRY_LOCK})
            yield connection
    else:
        async with engine.execution_options(sqlite_begin="BEGIN IMMEDIATE").begin() as connection:
            yield connection
