"""Serialises changes of keys, teams and budgets over all replicas, with an audit row each; and their errors."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from sqlalchemy import Table, bindparam, delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from migrations.tables.audit import audit_events, audited
from migrations.tables.tenancy import api_keys, tenancy_state


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
# Of `Writes`: rows of a statement, and the name of the parameter by which rows are found.
_ROWS, _OF = 1000, "of_row"


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


class Writes:
    """Rows that the transaction of an order writes, up to `_ROWS` in a statement: a file of keys has tens of thousands,
    and a statement for each row takes a millisecond, while every other writer waits."""

    def __init__(self, order: Order) -> None:
        self.order = order
        # By table, the column that rows are found by ("" for new ones), and the columns (none: they are deleted).
        self._waiting: dict[tuple[Table, str, frozenset[str]], list[dict[str, Any]]] = {}

    def insert(self, table: Table, row: dict[str, Any]) -> None:
        self._waiting.setdefault((table, "", frozenset(row)), []).append(row)

    def update(self, table: Table, by: str, of: str, values: dict[str, Any]) -> None:
        """Set `values` in the rows whose column `by` is `of`; without any, delete them."""
        self._waiting.setdefault((table, by, frozenset(values)), []).append({_OF: of} | values)

    def write_down(self, action: str, subject: str, details: dict[str, Any]) -> None:
        """Add the audit row of a change. `details` hold no key and no hash."""
        origin = {"created_at": self.order.now, "actor": self.order.actor, "reason": self.order.reason}
        self.insert(audit_events, origin | {"action": action, "subject": subject, "details": details})

    async def send(self, connection: AsyncConnection) -> None:
        """Write them: tables in the order in which they first came."""
        for (table, by, columns), rows in self._waiting.items():
            statement: Any = update(table) if columns else delete(table)
            write = statement.where(table.c[by] == bindparam(_OF)) if by else insert(table)
            if table is api_keys:
                write = write.values(revision=REVISION)
            for first in range(0, len(rows), _ROWS):
                await connection.execute(write, rows[first : first + _ROWS])


async def budgets_changed(connection: AsyncConnection) -> None:
    """Record that this transaction changes a budget."""
    await connection.execute(update(tenancy_state).values(budgets_revision=tenancy_state.c.revision))


async def write_down(
    connection: AsyncConnection, order: Order, action: str, subject: str, details: dict[str, Any]
) -> None:
    """Write the audit row of a change, in its transaction. `details` hold no key and no hash."""
    await connection.execute(audited(order.now, order.actor, action, subject, order.reason, details))
