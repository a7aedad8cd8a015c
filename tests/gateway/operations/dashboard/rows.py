"""Rows of requests as the ledger writes them, many at a time."""

from typing import Any

from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.requests import requests

SERVED: dict[str, Any] = {
    "api": "chat", "requested_model": "auto", "stream": False, "status": "ok", "http_status": 200, "model": "m",
    "tier": 1, "attempts": [], "prompt_tokens": 1, "completion_tokens": 1, "cached_tokens": 0, "reasoning_tokens": 0,
    "cost_usd": 0.0, "baseline_cost_usd": 0.0, "route_ms": 0.1, "e2e_ms": 1.0, "overhead_ms": 0.2,
}  # fmt: skip


async def insert_requests(database: AsyncEngine, *rows: dict[str, Any]) -> None:
    """Insert requests; missing fields are as above."""
    async with database.begin() as connection:
        await connection.execute(insert(requests), [SERVED | row for row in rows])
