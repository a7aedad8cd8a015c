"""The shadow answers that fared worst against the given ones, with all texts, for people to compare."""

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.quality import verifications
from migrations.tables.requests import requests
from quality.shadow.observed import Observed

SHOWN = 20
_WORST_FIRST = {"worse": 0, "tie": 1, "no_worse": 2}


class ShadowCase(msgspec.Struct, frozen=True, kw_only=True):
    """A judged shadow answer next to the given one; costs in US dollars. Texts are None once they are deleted."""

    request_id: str
    created_at: float
    given_tier: int
    would_be_tier: int
    label: str
    judge: str | None
    judge_reliability: float
    score: float | None
    reason: str | None
    messages: list[dict[str, str]] | None
    given_answer: str | None
    would_be_answer: str | None
    given_usd: float
    would_be_usd: float | None


def worst(observed: Sequence[Observed], shown: int = SHOWN) -> list[Observed]:
    """Return the `shown` worst verdicts: worse answers, then ties; by the judge's score, then by its reliability."""
    judged = [one for one in observed if one.label is not None and not one.is_same]
    return sorted(judged, key=_badness)[:shown]


async def worst_cases(engine: AsyncEngine, observed: Sequence[Observed], shown: int = SHOWN) -> list[ShadowCase]:
    """Return the worst verdicts with their texts."""
    chosen = worst(observed, shown)
    r, v = requests.c, verifications.c
    query = (
        select(r.request_id, v.tier, r.messages, r.answer, v.judged_answer, v.reason)
        .join(verifications, v.request_id == r.request_id)
        .where(r.request_id.in_([one.request_id for one in chosen]))
    )
    async with engine.connect() as connection:
        texts = {(row.request_id, row.tier): row for row in await connection.execute(query)}
    return [_case(one, texts.get((one.request_id, one.would_be))) for one in chosen]


def _badness(one: Observed) -> tuple[int, float, float, float]:
    score = 0.5 if one.score is None else one.score
    return _WORST_FIRST.get(one.label or "", 2), score, -one.reliability, -one.created_at


def _case(one: Observed, texts: Any) -> ShadowCase:
    return ShadowCase(
        request_id=one.request_id,
        created_at=one.created_at,
        given_tier=one.given,
        would_be_tier=one.would_be,
        label=one.label or "",
        judge=one.judge,
        judge_reliability=one.reliability,
        score=one.score,
        reason=None if texts is None else texts.reason,
        messages=None if texts is None else texts.messages,
        given_answer=None if texts is None else texts.answer,
        would_be_answer=None if texts is None else texts.judged_answer,
        given_usd=one.paid_usd,
        would_be_usd=one.answer_usd,
    )
