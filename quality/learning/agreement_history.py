"""How often tiers that answered at once agreed, and how often an agreed answer was worse: read from stored requests."""

from collections.abc import Mapping
from typing import Any

import msgspec
from sqlalchemy import FromClause, Select, func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.policy.agreement_counts import AgreementPlace, AgreementTable
from migrations.tables.quality import verifications
from migrations.tables.requests import requests
from migrations.tables.tenancy import api_keys
from quality.estimates.upgrade_rate import has_verdict
from quality.records.record import Attempt, ComparedAs, Comparison, comparison_of
from quality.verification.comparison import VerifiedComparison, informedness

# Of each kind of answer the newest requests are read up to the first number; of verdicts, the newest ones.
MOST_OF_A_KIND, MOST_VERDICTS = 1000, 4000


async def read_agreements(engine: AsyncEngine, models: Mapping[int, str]) -> AgreementTable:
    """Return the counts of the newest requests whose answers were compared, of the verdicts on these, and of answers
    that a verification compared. `models`: of the tiers now; answers of other models do not count."""
    table = AgreementTable()
    async with engine.connect() as connection:
        kinds = select(requests.c.compared).where(requests.c.compared.is_not(None)).distinct()
        for kind in (await connection.scalars(kinds)).all():
            for row in (await connection.execute(_newest_requests(kind))).mappings():
                found = _comparison(row, models)
                if found is not None and found.outcome != "failed":
                    table.compared(_place(row, found.compared_as), found.tiers, found.outcome == "agreed")
        for row in (await connection.execute(_newest_verdicts())).mappings():
            found = _comparison(row, models)
            if found is not None and found.outcome == "agreed":
                informed = informedness(row["judge_reliability"])
                table.verified(_place(row, found.compared_as), found.tiers, float(row["label"] == "worse"), informed)
        for row in (await connection.execute(_newest_verified())).mappings():
            seen = msgspec.convert(row["compared"], VerifiedComparison)
            now = tuple(models.get(number) for number in seen.tiers)
            if seen.agreed is None or seen.models != now:
                continue
            place = _place(row, seen.compared_as)
            table.compared(place, seen.tiers, seen.agreed)
            if seen.lost is not None:
                table.verified(place, seen.tiers, float(seen.lost), seen.informed)
    return table


def place_of(tenant: str, key_id: str | None, compared_as: ComparedAs) -> AgreementPlace:
    """Return where a comparison counts."""
    return AgreementPlace(tenant, key_id or "", compared_as.app, compared_as.kind)


def _owner(table: FromClause) -> tuple[Any, ...]:
    return table.c.key_id, func.coalesce(api_keys.c.team_id, table.c.key_id, "").label("tenant")


def _newest_requests(kind: str) -> Select[Any]:
    return (
        select(*_owner(requests), requests.c.attempts)
        .select_from(requests.outerjoin(api_keys, api_keys.c.key_id == requests.c.key_id))
        .where(requests.c.compared == kind)
        .order_by(requests.c.created_at.desc())
        .limit(MOST_OF_A_KIND)
    )


def _newest_verdicts() -> Select[Any]:
    same = (requests.c.request_id == verifications.c.request_id) & (requests.c.tier == verifications.c.tier)
    return (
        select(*_owner(requests), requests.c.attempts, verifications.c.label, verifications.c.judge_reliability)
        .select_from(verifications.join(requests, same).outerjoin(api_keys, api_keys.c.key_id == requests.c.key_id))
        .where(requests.c.compared.is_not(None), has_verdict(), verifications.c.finished_at.is_not(None))
        .order_by(verifications.c.finished_at.desc())
        .limit(MOST_VERDICTS)
    )


def _newest_verified() -> Select[Any]:
    return (
        select(*_owner(verifications), verifications.c.compared)
        .select_from(verifications.outerjoin(api_keys, api_keys.c.key_id == verifications.c.key_id))
        .where(verifications.c.compared.is_not(None), verifications.c.status == "done")
        .order_by(verifications.c.finished_at.desc())
        .limit(MOST_VERDICTS)
    )


def _comparison(row: Mapping[Any, Any], models: Mapping[int, str]) -> Comparison | None:
    attempts = msgspec.convert(row["attempts"], list[Attempt])
    current = all(models.get(attempt.tier) == attempt.model for attempt in attempts)
    return comparison_of(attempts) if current else None


def _place(row: Mapping[Any, Any], compared_as: ComparedAs) -> AgreementPlace:
    return place_of(row["tenant"], row["key_id"], compared_as)
