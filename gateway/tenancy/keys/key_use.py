"""What keys have spent, when each was last used, and how often it was refused: read for a list of keys at once."""

import msgspec
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.tenancy.budgets.lease_book import QUOTA_EXCEEDED
from migrations.tables.requests import refused_requests, requests
from migrations.tables.tenancy import api_keys

SPENT_SECONDS, REFUSED_SECONDS = 30 * 86_400.0, 86_400.0


class KeyUse(msgspec.Struct, frozen=True, kw_only=True):
    """How a key is used."""

    spent_usd: float
    """In the last 30 days."""
    last_at: float | None
    """When its last stored request came (epoch seconds)."""
    refused: int
    """Its refused requests of the last 24 hours."""
    over_budget_at: float | None
    """When a budget last did not cover a request of its, within the last 30 days (epoch seconds)."""


async def read_key_use(engine: AsyncEngine, keys: tuple[str, ...], now: float) -> dict[str, KeyUse]:
    """Return the use of keys by their ids, at `now` (epoch seconds), in one query by indexes that begin with the key.
    Raises the database's errors."""
    mine = requests.c.key_id == api_keys.c.key_id
    spent = select(func.sum(requests.c.cost_usd)).where(mine, requests.c.created_at >= now - SPENT_SECONDS)
    last = select(func.max(requests.c.created_at)).where(mine)
    refused = select(func.sum(refused_requests.c.count)).where(
        refused_requests.c.key_id == api_keys.c.key_id, refused_requests.c.created_at >= now - REFUSED_SECONDS
    )
    over_budget = select(func.max(refused_requests.c.last_at)).where(
        refused_requests.c.key_id == api_keys.c.key_id,
        refused_requests.c.code == QUOTA_EXCEEDED,
        refused_requests.c.created_at >= now - SPENT_SECONDS,
    )
    figures = (figure.scalar_subquery() for figure in (spent, last, refused, over_budget))
    query = select(api_keys.c.key_id, *figures).where(api_keys.c.key_id.in_(keys))
    async with engine.connect() as connection:
        rows = [tuple(row) for row in await connection.execute(query)]
    return {
        key: KeyUse(spent_usd=usd or 0.0, last_at=last_at, refused=int(count or 0), over_budget_at=over_budget_at)
        for key, usd, last_at, count, over_budget_at in rows
    }
