"""What strongest answers were predicted to cost each key's newest requests, as their stored decisions say."""

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.requests import requests, routing_decisions


async def strongest_prices(engine: AsyncEngine, tiers: int, before: float, most: int) -> list[tuple[str, str, float]]:
    """Return the key, the hash of the system prompt ("" without one) and the US dollars of the newest `most` requests
    routed `before` (epoch seconds) among so many `tiers`, oldest first."""
    newest = (
        select(requests.c.key_id, routing_decisions.c.inputs)
        .join(requests, requests.c.request_id == routing_decisions.c.request_id)
        .where(routing_decisions.c.created_at < before)
        .order_by(routing_decisions.c.created_at.desc())
        .limit(most)
    )
    async with engine.connect() as connection:
        rows = (await connection.execute(newest)).all()
    # Records of earlier releases have no system prompt.
    found = [(key or "", inputs.get("app", ""), inputs["costs"]) for key, inputs in reversed(rows)]
    return [(key, app, usd[-1]) for key, app, usd in found if len(usd) == tiers]
