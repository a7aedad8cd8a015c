"""Commands on budgets, and what is spent of them."""

import secrets
from collections.abc import Mapping
from typing import Any

import msgspec
from sqlalchemy import case, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.base.inference_request import Period
from gateway.tenancy.budgets.lease_book import MICRO, period_bounds, period_key, recorded_microusd
from gateway.tenancy.changes import Database, Order, UnknownSubjectError, Writes, budgets_changed, tenancy_transaction
from migrations.tables.tenancy import api_keys, budget_leases, budgets, teams

_SUBJECTS = {"key": (api_keys.c.key_id, api_keys.c.name), "team": (teams.c.team_id, teams.c.name)}


class BudgetState(msgspec.Struct, frozen=True, kw_only=True):
    """A budget in the current period, US dollars: `leased_usd` is with replicas that may still spend it."""

    budget_id: str
    subject_kind: str
    subject: str
    period: str
    period_key: str
    amount_usd: float
    spent_usd: float
    leased_usd: float


async def set_budget(
    database: Database,
    kind: str,
    subject: str,
    period: Period,
    amount_usd: float,
    order: Order,
    static: bool = False,
) -> str:
    """Limit what a key or team (by id or name) may spend; return the budget's id. What the ledger says it has spent in
    the period counts. An existing one keeps its spending. `static`: `subject` is the name of a key of the settings.

    Raises `UnknownSubjectError`.
    """
    writes = Writes(order)
    async with tenancy_transaction(database) as connection:
        subject_id = subject if static else await _subject_id(connection, kind, subject)
        same = (budgets.c.subject_kind == kind, budgets.c.subject == subject_id, budgets.c.period == period)
        row = (await connection.execute(select(budgets).where(*same))).mappings().first()
        budget_id = await add_budget(connection, writes, kind, subject_id, period, amount_usd, row)
        await writes.send(connection)
        await budgets_changed(connection)
    return budget_id


async def add_budget(
    connection: AsyncConnection | None,
    writes: Writes,
    kind: str,
    subject: str,
    period: Period,
    amount_usd: float,
    before: Mapping[Any, Any] | None,
) -> str:
    """Add the budget of this id of a key or team to what is written; return the budget's id. `before`: its row, if it
    exists. `connection`: the transaction's; None for a subject that is new in it, which has spent nothing."""
    amount = round(amount_usd * MICRO)
    if before is None:
        budget_id = f"budget_{secrets.token_hex(8)}"
        row: dict[str, Any] = {
            "budget_id": budget_id, "subject_kind": kind, "subject": subject, "period": period,
            "amount_microusd": amount, "created_at": writes.order.now,
        }  # fmt: skip
        writes.insert(budgets, row)
        if connection is not None:
            await _count_before(connection, writes, row)
    else:
        budget_id = before["budget_id"]
        writes.update(budgets, "budget_id", budget_id, {"amount_microusd": amount})
    old_usd = None if before is None else before["amount_microusd"] / MICRO
    writes.write_down(
        "budget.set", budget_id, {"subject": subject, "period": period, "amount_usd": [old_usd, amount_usd]}
    )
    return budget_id


async def remove_budget(database: Database, budget_id: str, order: Order) -> None:
    """Remove a budget with its spending. Raises `UnknownSubjectError`."""
    async with tenancy_transaction(database) as connection:
        mine = budgets.c.budget_id == budget_id
        # Locked first, like every lease of it.
        row = (await connection.execute(select(budgets).where(mine).with_for_update())).mappings().first()
        if row is None:
            raise UnknownSubjectError(f"there is no budget {budget_id[:128]!r}", "budget_id")
        add_removal(writes := Writes(order), row)
        await writes.send(connection)
        await budgets_changed(connection)


def add_removal(writes: Writes, budget: Mapping[Any, Any]) -> None:
    """Add the removal of a budget, by its row, to what is written: with its spending."""
    # The budget first, like every lease of it. Not every connection enforces the foreign key that then cascades.
    for table in (budgets, budget_leases):
        writes.update(table, "budget_id", budget["budget_id"], {})
    writes.write_down("budget.removed", budget["budget_id"], {"subject": budget["subject"], "period": budget["period"]})


async def change_budgets(
    database: Database, kind: str, subject: str, amounts: Mapping[Period, float | None], order: Order
) -> dict[Period, list[float | None]]:
    """Set these budgets of a key or team (by id or name), and remove those whose amount is None; return what changed,
    as period → [old, new]. Raises `UnknownSubjectError`."""
    changed: dict[Period, list[float | None]] = {}
    async with tenancy_transaction(database) as connection:
        subject_id = await _subject_id(connection, kind, subject)
        of_subject = select(budgets).where(budgets.c.subject_kind == kind, budgets.c.subject == subject_id)
        before = {row["period"]: row for row in (await connection.execute(of_subject)).mappings()}
        for period, amount in amounts.items():
            row = before.get(period)
            old = None if row is None else row["amount_microusd"] / MICRO
            if old == amount:
                continue
            if amount is None:
                await remove_budget(connection, before[period]["budget_id"], order)
            else:
                await set_budget(connection, kind, subject_id, period, amount, order)
            changed[period] = [old, amount]
    return changed


async def states_of(engine: AsyncEngine, rows: list[dict[str, Any]], now: float) -> list[BudgetState]:
    """Return the state of budgets in the periods of `now` (epoch seconds), as last reported by replicas."""
    columns = budget_leases.c
    free = case((columns.status == "active", columns.granted_microusd - columns.spent_microusd), else_=0)
    keys = {row["budget_id"]: period_key(row["period"], now) for row in rows}
    query = (
        select(columns.budget_id, columns.period_key, func.sum(columns.spent_microusd), func.sum(free))
        .where(columns.budget_id.in_(keys), columns.period_key.in_(set(keys.values())))
        .group_by(columns.budget_id, columns.period_key)
    )
    async with engine.connect() as connection:
        usage = {(budget_id, key): (spent, leased) for budget_id, key, spent, leased in await connection.execute(query)}
    states = []
    for row in rows:
        spent, leased = usage.get((row["budget_id"], keys[row["budget_id"]]), (0, 0))
        states.append(
            BudgetState(
                **{name: row[name] for name in ("budget_id", "subject_kind", "subject", "period")},
                period_key=keys[row["budget_id"]],
                amount_usd=row["amount_microusd"] / MICRO,
                spent_usd=int(spent) / MICRO,
                leased_usd=max(int(leased), 0) / MICRO,
            )
        )
    return states


async def id_of(connection: AsyncConnection, kind: str, subject: str) -> str | None:
    """Return the id of a key or team of this id or name; None if there is none."""
    key, name = _SUBJECTS[kind]
    subject_id: str | None = await connection.scalar(select(key).where(or_(key == subject, name == subject)))
    return subject_id


async def _subject_id(connection: AsyncConnection, kind: str, subject: str) -> str:
    subject_id = await id_of(connection, kind, subject)
    if subject_id is None:
        raise UnknownSubjectError(f"there is no {kind} {subject[:128]!r}", "subject")
    return subject_id


async def _count_before(connection: AsyncConnection, writes: Writes, budget: dict[str, Any]) -> None:
    """Count what was spent in the current period before this new budget, as a lease that has ended."""
    now = budget["created_at"]
    key = period_key(budget["period"], now)
    spent = await recorded_microusd(connection, budget, period_bounds(key)[0], now)
    lease = {
        "budget_id": budget["budget_id"], "period_key": key, "replica": "", "status": "returned",
        "granted_microusd": spent, "spent_microusd": spent, "expires_at": 0.0, "created_at": now,
    }  # fmt: skip
    if spent:
        writes.insert(budget_leases, lease)
