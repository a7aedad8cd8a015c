"""Serialises changes of keys, teams and budgets over all replicas, with an audit row each; and their errors."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from migrations.tables.audit import audited
from migrations.tables.tenancy import tenancy_state


class TenancyError(ValueError):
    """A command that cannot be carried out in the current state; `param` names the field responsible."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class UnknownSubjectError(TenancyError):
    """There is no key, team or budget of that id or name."""


# What a command runs on: the database, or a `tenancy_transaction` that it joins.
Database = AsyncEngine | AsyncConnection
# In such a transaction: the revision that it makes.
REVISION = select(tenancy_state.c.revision).scalar_subquery()


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """Who gave the command, when (epoch seconds) and why."""

    actor: str
    now: float
    reason: str | None = None


@asynccontextmanager
async def tenancy_transaction(database: Database) -> AsyncIterator[AsyncConnection]:
    """A transaction that excludes all others of its kind and increments the revision, by which replicas notice it. A
    connection is in one already: what is done joins it."""
    if isinstance(database, AsyncConnection):
        yield database
        return
    async with database.begin() as connection:
        # Write first: SQLite then waits for another writer instead of failing, and PostgreSQL's writers queue here.
        await connection.execute(update(tenancy_state).values(revision=tenancy_state.c.revision + 1))
        yield connection


async def budgets_changed(connection: AsyncConnection) -> None:
    """Record that this transaction changes a budget."""
    await connection.execute(update(tenancy_state).values(budgets_revision=tenancy_state.c.revision))


async def write_down(
    connection: AsyncConnection, order: Order, action: str, subject: str, details: dict[str, Any]
) -> None:
    """Write the audit row of a change, in its transaction. `details` hold no key and no hash."""
    await connection.execute(audited(order.now, order.actor, action, subject, order.reason, details))
