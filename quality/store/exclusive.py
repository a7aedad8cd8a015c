"""Transactions that exclude each other over all processes on one database."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine


@asynccontextmanager
async def exclusive(engine: AsyncEngine, lock: int) -> AsyncIterator[AsyncConnection]:
    """Open one transaction at a time over all replicas. `lock`: the number of PostgreSQL's advisory lock; SQLite has
    one writer at a time."""
    if engine.dialect.name == "postgresql":
        async with engine.begin() as connection:
            await connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": lock})
            yield connection
    else:
        async with engine.execution_options(sqlite_begin="BEGIN IMMEDIATE").begin() as connection:
            yield connection
