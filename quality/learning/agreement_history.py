"""How often tiers that answered at once agreed, and how often an agreed answer was worse: read from stored requests."""

from collections.abc import Mapping
from typing import Any

import msgspec
from sqlalchemy import Select, func, or_, select
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.policy.agreement_counts import AgreementPlace, AgreementTable
from migrations.tables.quality import verifications
from migrations.tables.requests import requests
from migrations.tables.tenancy import api_keys
from quality.estimates.upgrade_rate import has_verdict
from quality.records.record import Attempt, Comparison, comparison_of

# The newest requests and the newest verdicts are read up to this number.
MOST_ROWS = 4000


async def read_agreements(engine: AsyncEngine, models: Mapping[int, str]) -> AgreementTable:
    """Return the counts of the newest stored requests and verdicts. `models`: of the tiers now; answers of other models
    do not count."""
    table = AgreementTable()
    async with engine.connect() as connection:
        for row in (await connection.execute(_newest_requests())).mappings():
            found = _comparison(row, models)
            if found is not None and found.outcome != "failed":
                table.compared(_place(row, found), found.tiers, found.outcome == "agreed")
        for row in (await connection.execute(_newest_verdicts())).mappings():
            found = _comparison(row, models)
            if found is not None and found.outcome == "agreed":
                table.verified(_place(row, found), found.tiers, float(row["label"] == "worse"))
    return table


def place_of(tenant: str, key_id: str | None, comparison: Comparison) -> AgreementPlace:
    """Return where a comparison counts."""
    return AgreementPlace(tenant, key_id or "", comparison.compared_as.app, comparison.compared_as.kind)


def _columns() -> tuple[Any, ...]:
    tenant = func.coalesce(api_keys.c.team_id, requests.c.key_id, "").label("tenant")
    return requests.c.key_id, tenant, requests.c.attempts


def _newest_requests() -> Select[Any]:
    return (
        select(*_columns())
        .select_from(requests.outerjoin(api_keys, api_keys.c.key_id == requests.c.key_id))
        # An answer out of the cache was compared for another request.
        .where(requests.c.api == "chat", or_(requests.c.cache.is_(None), requests.c.cache == "miss"))
        .order_by(requests.c.created_at.desc())
        .limit(MOST_ROWS)
    )


def _newest_verdicts() -> Select[Any]:
    same = (requests.c.request_id == verifications.c.request_id) & (requests.c.tier == verifications.c.tier)
    return (
        select(*_columns(), verifications.c.label)
        .select_from(verifications.join(requests, same).outerjoin(api_keys, api_keys.c.key_id == requests.c.key_id))
        .where(has_verdict(), verifications.c.finished_at.is_not(None))
        .order_by(verifications.c.finished_at.desc())
        .limit(MOST_ROWS)
    )


def _comparison(row: Mapping[Any, Any], models: Mapping[int, str]) -> Comparison | None:
    # Nearly all requests have one attempt, which is not worth parsing.
    if len(row["attempts"]) < 2:
        return None
    attempts = msgspec.convert(row["attempts"], list[Attempt])
    current = all(models.get(attempt.tier) == attempt.model for attempt in attempts)
    return comparison_of(attempts) if current else None


def _place(row: Mapping[Any, Any], comparison: Comparison) -> AgreementPlace:
    return place_of(row["tenant"], row["key_id"], comparison)
