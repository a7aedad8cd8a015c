"""Reliability of predictions: verified outcomes by the probability that was predicted at routing."""

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.decision import LEARNED_KINDS
from migrations.tables.requests import routing_decisions
from quality.estimates.upgrade_rate import Share, newest_verifications, sampled_as_served, wilson_interval

BINS = 10


class ReliabilityBin(msgspec.Struct, frozen=True, kw_only=True):
    """Answers of `tier` whose predicted P(no worse) lies in one tenth of [0, 1]: the mean `predicted`, and the share
    that was no worse with its 95% interval."""

    tier: int
    predicted: float
    no_worse: Share


async def reliability(engine: AsyncEngine, tiers: int) -> list[ReliabilityBin]:
    """Return the bins by tier below the strongest of `tiers`, from the newest verdicts on served answers."""
    newest = newest_verifications()
    query = (
        select(newest.c.tier, newest.c.label, routing_decisions.c.p_ok)
        .join(routing_decisions, routing_decisions.c.request_id == newest.c.request_id)
        .where(
            *sampled_as_served(newest),
            newest.c.tier < tiers,
            routing_decisions.c.prediction_kind.in_(LEARNED_KINDS),
        )
    )
    found: dict[tuple[int, int], list[tuple[float, bool]]] = {}
    async with engine.connect() as connection:
        for tier, label, p_ok in await connection.execute(query):
            if tier <= len(p_ok):
                p = p_ok[tier - 1]
                found.setdefault((tier, min(int(p * BINS), BINS - 1)), []).append((p, label != "worse"))
    return [
        ReliabilityBin(
            tier=tier,
            predicted=round(sum(p for p, _ in answers) / len(answers), 6),
            no_worse=wilson_interval(sum(good for _, good in answers), len(answers)),
        )
        for (tier, _), answers in sorted(found.items())
    ]
