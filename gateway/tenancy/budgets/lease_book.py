"""The calendar periods of budgets (UTC), money in decimal micro-dollars, whose sums are exact, and the lease book: in
one transaction a replica is granted a slice of a budget, never more than is left of it.

Over the leases of a budget in a period, the grants of active ones plus the spending of others never exceed the
amount.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any

import msgspec
from sqlalchemy import ColumnElement, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.base.stores.database import DatabaseTime
from migrations.tables.requests import requests
from migrations.tables.tenancy import api_keys, budget_leases, budgets
from quality.store.database import writing_first
from quality.store.drivers import STALL_SECONDS

MICRO = 1_000_000
QUOTA_EXCEEDED = "insufficient_quota"
"""The code of a refusal because a budget does not cover the request."""
# At most a billion dollars: far above it, micro-dollars would be inexact.
BudgetUsd = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
# A millionth of a micro-dollar: prices are dollars per million tokens, so that a token's has hardly more digits.
_LEAST = Decimal("0.000001")


def period_key(period: str, now: float) -> str:
    """Return the name of the day, the month or the single total period that contains `now` (epoch seconds)."""
    if period == "total":
        return "total"
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%d" if period == "day" else "%Y-%m")


def period_bounds(key: str) -> tuple[float, float]:
    """Return the start of the period of this name and of the next one (epoch seconds)."""
    if key == "total":
        return 0.0, math.inf
    parts = [int(part) for part in key.split("-")]
    begin = datetime(parts[0], parts[1], parts[2] if len(parts) == 3 else 1, tzinfo=UTC)
    # The 1st plus 31 days is in the next month, for every month.
    end = begin + timedelta(days=1) if len(parts) == 3 else (begin + timedelta(days=31)).replace(day=1)
    return begin.timestamp(), end.timestamp()


def microusd(usd: float) -> Decimal:
    """Convert US dollars to micro-dollars with their fraction, ignoring floating-point error."""
    return (Decimal(str(usd)) * MICRO).quantize(_LEAST)


def microusd_at_least(usd: float) -> int:
    """Round US dollars up to whole micro-dollars, ignoring floating-point error."""
    return math.ceil(round(usd * MICRO, 3))


LEASE_SECONDS = 30.0
# Most that a grant or a report takes, once it is its turn: a request waits for it.
TALK_SECONDS = STALL_SECONDS + 3.0
# So many at once, however many budgets need one: requests without budgets need connections too.
_MOST_GRANTS = 4
# Share of the remainder that a replica is granted at once, if it needs less.
SLICE_SHARE = 0.1
_LEASES = budget_leases.c


class Grant(msgspec.Struct, frozen=True):
    """A lease as recorded, in micro-dollars; unchanged if too little was left."""

    granted: int
    left: int
    """The rest of the budget."""


class Statement(msgspec.Struct, frozen=True):
    """A replica's report on a lease: spent so far, and how much it keeps."""

    budget_id: str
    period_key: str
    spent: int
    granted: int
    final: bool = False
    """Whether it will spend nothing more."""


class LeaseBook:
    """The leases of one `replica`, in the database that it shares with others. `turns`: to be held during a grant."""

    def __init__(
        self, engine: AsyncEngine, replica: str, clock: DatabaseTime, lease_seconds: float = LEASE_SECONDS
    ) -> None:
        self.replica = replica
        self.lease_seconds = lease_seconds
        self._engine, self._clock = engine, clock
        # SQLite has one writer, and those who come last for its lock often get it first: let them wait here in order.
        self.turns = asyncio.Semaphore(1 if engine.dialect.name == "sqlite" else _MOST_GRANTS)

    async def grant(self, budget_id: str, key: str, needed: int, spent: int) -> Grant | None:
        """Lease `needed` micro-dollars above `spent`, which this replica spent in the period `key`, and more if there
        is plenty; None if the budget no longer exists."""
        async with self._transaction() as connection:
            budget = await self._locked_budget(connection, budget_id)
            if budget is None:
                return None
            now, clock = await self._clock.look(connection), await self._clock.lease_clock(connection)
            leases = await self._leases(connection, budget_id, key)
            await self._close_expired(connection, budget, leases, clock)
            mine = next((row for row in leases if row["replica"] == self.replica), None)
            others = sum(_counted(row) for row in leases if row is not mine)
            reported = 0 if mine is None else int(mine["spent_microusd"])
            spent = max(spent, reported)
            held = spent if mine is None or mine["status"] != "active" else max(int(mine["granted_microusd"]), spent)
            left = int(budget["amount_microusd"]) - others - held
            wanted = spent + needed - held
            if 0 < wanted <= left:
                more = max(wanted, int(left * SLICE_SHARE))
                held, left = held + more, left - more
            await self._write(connection, budget_id, key, mine, held, spent, now, clock)
            return Grant(held, left)

    async def tell(self, statements: Sequence[Statement]) -> list[bool]:
        """Renew leases and report spending; return whether each is still this replica's. One that expired is not: its
        rest may have been granted to another."""
        async with self._transaction() as connection:
            clock = await self._clock.lease_clock(connection)
            return [await self._tell(connection, statement, clock) for statement in statements]

    async def _tell(self, connection: AsyncConnection, statement: Statement, clock: float) -> bool:
        mine = (
            _LEASES.budget_id == statement.budget_id,
            _LEASES.period_key == statement.period_key,
            _LEASES.replica == self.replica,
        )
        values: dict[str, Any] = {"spent_microusd": statement.spent}
        if statement.final:
            closed = values | {"status": "returned", "granted_microusd": statement.spent}
            await connection.execute(update(budget_leases).where(*mine).values(closed))
            return False
        alive = {"granted_microusd": max(statement.granted, statement.spent), "expires_at": clock + self.lease_seconds}
        renewed = await connection.execute(
            update(budget_leases).where(*mine, _LEASES.status == "active").values(values | alive)
        )
        if renewed.rowcount:
            return True
        await connection.execute(update(budget_leases).where(*mine).values(values))
        return False

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[AsyncConnection]:
        async with asyncio.timeout(TALK_SECONDS), writing_first(self._engine).begin() as connection:
            yield connection

    async def _locked_budget(self, connection: AsyncConnection, budget_id: str) -> dict[str, Any] | None:
        # SQLite has locked the database; it has no FOR UPDATE, and SQLAlchemy omits it.
        query = select(budgets).where(budgets.c.budget_id == budget_id).with_for_update()
        row = (await connection.execute(query)).mappings().first()
        return None if row is None else dict(row)

    async def _leases(self, connection: AsyncConnection, budget_id: str, key: str) -> list[dict[str, Any]]:
        # Locked, so that none is renewed while it is being expired.
        mine = (_LEASES.budget_id == budget_id, _LEASES.period_key == key)
        query = select(budget_leases).where(*mine).order_by(_LEASES.lease_id).with_for_update()
        return [dict(row) for row in (await connection.execute(query)).mappings()]

    async def _close_expired(
        self, connection: AsyncConnection, budget: dict[str, Any], leases: list[dict[str, Any]], clock: float
    ) -> None:
        """Return a dead replica's unspent grant: its requests in the ledger say what it spent. They may still be in its
        journal, so lost leases are checked again each time."""
        for lease in leases:
            # An expiry too far ahead was written before the machine's monotonic clock restarted.
            alive = clock < lease["expires_at"] <= clock + 2 * self.lease_seconds
            if lease["replica"] == self.replica or lease["status"] == "returned":
                continue
            if lease["status"] == "active" and alive:
                continue
            recorded = await self._recorded(connection, budget, lease)
            values = {"status": "lost", "spent_microusd": max(int(lease["spent_microusd"]), recorded)}
            await connection.execute(update(budget_leases).where(_LEASES.lease_id == lease["lease_id"]).values(values))
            lease |= values

    async def _recorded(self, connection: AsyncConnection, budget: dict[str, Any], lease: dict[str, Any]) -> int:
        """Return what the ledger says that the lease's replica has spent, since the budget was set."""
        begin, end = period_bounds(lease["period_key"])
        return await recorded_microusd(
            connection, budget, max(begin, float(budget["created_at"])), end, requests.c.replica == lease["replica"]
        )

    async def _write(
        self,
        connection: AsyncConnection,
        budget_id: str,
        key: str,
        mine: dict[str, Any] | None,
        granted: int,
        spent: int,
        now: float,
        clock: float,
    ) -> None:
        values = {
            "status": "active",
            "granted_microusd": granted,
            "spent_microusd": spent,
            "expires_at": clock + self.lease_seconds,
        }
        if mine is not None:
            statement: Any = update(budget_leases).where(_LEASES.lease_id == mine["lease_id"]).values(values)
        else:
            row = {"budget_id": budget_id, "period_key": key, "replica": self.replica, "created_at": now}
            statement = insert(budget_leases).values(row | values)
        await connection.execute(statement)


async def recorded_microusd(
    connection: AsyncConnection, budget: dict[str, Any], begin: float, end: float, *more: ColumnElement[bool]
) -> int:
    """Return the micro-dollars in the ledger for this budget's key or team from `begin` to before `end` (epoch
    seconds), rounded up. `more`: conditions on the requests."""
    created, key = requests.c.created_at, requests.c.key_id
    whose = key == budget["subject"]
    if budget["subject_kind"] == "team":
        whose = key.in_(select(api_keys.c.key_id).where(api_keys.c.team_id == budget["subject"]))
    conditions = whose, created >= begin, created < end, *more
    total = await connection.scalar(select(func.sum(requests.c.cost_usd)).where(*conditions))
    return microusd_at_least(total or 0.0)


def _counted(lease: dict[str, Any]) -> int:
    """Return how much a lease takes of its budget."""
    spent = int(lease["spent_microusd"])
    return max(int(lease["granted_microusd"]), spent) if lease["status"] == "active" else spent
