"""Requests that were answered while routing was only observed, with the costs and verdicts of their shadow answers; and
those of the answers that fared worst against the given ones, with all texts, for people to compare."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from sqlalchemy import and_, func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.quality import verifications
from migrations.tables.requests import requests, routing_decisions
from quality.estimates.verified_sample import UNCERTAIN, has_verdict
from quality.records.record import inputs_reader

# The most requests that are read unless more are asked for, so that the cost does not grow with the traffic.
NEWEST = 5_000
# Verifications whose judged answer is that of the tier that routing would have taken. A probe asks it too.
_ASKING = ("shadow", "probe")


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """An answered request: tier `given` answered for `paid_usd`, and routing would have taken tier `would_be`."""

    request_id: str
    created_at: float
    given: int
    would_be: int
    paid_usd: float
    expected_usd: float
    """What `would_be` would have cost by the predictions: the paid amount times the quotient of the two tiers'
    predicted costs.
    """
    answer_usd: float | None = None
    """What `would_be`'s shadow answer cost; None without one."""
    label: str | None = None
    """The verdict on that answer against the given one; None without one."""
    judge: str | None = None
    score: float | None = None
    """The score by the deciding judge."""
    reliability: float = 0.0
    """The deciding judge's reliability."""
    reason: str = ""
    """Why the request was drawn."""
    probability: float = 1.0
    """The probability with which it was drawn."""

    @property
    def is_same(self) -> bool:
        """Whether routing would have taken the tier that answered: nothing would have changed."""
        return self.given == self.would_be


class ShadowAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of shadow answers and their cost in US dollars, judging and failed attempts included."""

    waiting: int = 0
    judged: int = 0
    undecided: int = 0
    """Answers without a verdict: no judge that is trusted decided, opinions differed, or an answer was cut off."""
    failed: int = 0
    """Answers given up after several attempts."""
    error: str | None = None
    """The error of one of them."""
    cost_usd: float = 0.0


async def observed_requests(engine: AsyncEngine, since: float = 0.0, newest: int = NEWEST) -> list[Observed]:
    """Return at most `newest` observed requests created at `since` (epoch seconds) or later, the newest first.

    Those of a ladder with another number of tiers than the newest request's are left out.
    """
    d, r, v = routing_decisions.c, requests.c, verifications.c
    asked = and_(
        v.request_id == d.request_id,
        v.tier == d.would_be_tier,
        v.verifier_tier == r.tier,
        v.status == "done",
        v.sampled_reason.in_(_ASKING),
    )
    query = (
        select(
            d.request_id,
            d.created_at,
            r.tier,
            d.would_be_tier,
            r.cost_usd,
            d.decision,
            v.judged_cost_usd,
            v.label,
            v.judge,
            v.scores,
            v.judge_reliability,
            v.sampled_reason,
            v.sampled_probability,
        )
        .join(requests, r.request_id == d.request_id)
        .outerjoin(verifications, asked)
        .where(d.would_be_tier.is_not(None), d.created_at >= since, r.status == "ok", r.tier.is_not(None))
        .order_by(d.created_at.desc())
        .limit(newest)
    )
    async with engine.connect() as connection:
        rows = (await connection.execute(query)).all()
    return await asyncio.to_thread(_read, rows)


async def shadow_answers(engine: AsyncEngine, since: float) -> tuple[ShadowAnswers, float]:
    """Count the shadow answers to requests created at `since` or later. The second value is what all verification of
    observed requests cost since then, in US dollars."""
    d, v = routing_decisions.c, verifications.c
    group = (v.sampled_reason, v.status, has_verdict())
    query = (
        select(*group, func.count(), func.sum(v.cost_usd), func.max(v.error))
        .join(routing_decisions, d.request_id == v.request_id)
        .where(d.would_be_tier.is_not(None), d.created_at >= since, v.status != "skipped")
        .group_by(*group)
    )
    async with engine.connect() as connection:
        groups = (await connection.execute(query)).all()
    found: dict[str, Any] = {"waiting": 0, "judged": 0, "undecided": 0, "failed": 0, "cost_usd": 0.0}
    error, total = None, 0.0
    for reason, status, labelled, count, cost, said in groups:
        total += cost
        if reason == "shadow":
            kind = {"pending": "waiting", "failed": "failed"}.get(status, "judged" if labelled else "undecided")
            found[kind] += count
            found["cost_usd"] += cost
            error = said if status == "failed" else error
    return ShadowAnswers(error=error, **found), total


class _Inputs(msgspec.Struct):
    costs: list[float]


_inputs = inputs_reader(_Inputs)


def _read(rows: Iterable[Sequence[Any]]) -> list[Observed]:
    found: list[Observed] = []
    tiers = 0
    for request_id, at, given, would_be, paid, stored, answer_usd, label, judge, scores, trust, reason, p in rows:
        try:
            costs = _inputs(stored).costs
        except msgspec.ValidationError:
            # Another release wrote it, and this one cannot read it.
            continue
        tiers = tiers or len(costs)
        if len(costs) != tiers or max(given, would_be) > tiers:
            continue
        found.append(
            Observed(
                request_id=request_id,
                created_at=at,
                given=given,
                would_be=would_be,
                paid_usd=paid,
                expected_usd=_expected(paid, costs[given - 1], costs[would_be - 1]),
                answer_usd=answer_usd,
                # Opinions that differ are no verdict.
                label=None if label == UNCERTAIN else label,
                judge=judge,
                score=(scores or {}).get(judge),
                reliability=trust or 0.0,
                reason=reason or "",
                probability=p or 1.0,
            )
        )
    return found


def _expected(paid: float, given: float, would_be: float) -> float:
    """Scale what was paid, which knows answer length and cache; a tier that costs nothing gives no scale."""
    return paid * would_be / given if given > 0 else would_be


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
