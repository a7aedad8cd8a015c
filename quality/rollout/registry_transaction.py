"""One writer at a time over all replicas, for the registry's pointer and the rows about it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from quality.store.queries import exclusive

_REGISTRY_LOCK = 0x41494F04  # PostgreSQL advisory lock number: "AIO", 4


@asynccontextmanager
async def registry_transaction(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """Open a transaction that excludes all others of its kind.

    Write the pointer last: an unavailable database then leaves it unchanged, and after a crash before the commit the
    next `Rollouts.advance` resets it to what the rows say.
    """
    async with exclusive(engine, _REGISTRY_LOCK) as connection:
        yield connection
