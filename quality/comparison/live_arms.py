"""Compare two arms of the traffic on the answers they served: the share of worse answers and the evidence of harm."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
from sqlalchemy import ColumnElement, select
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.quality import verifications
from migrations.tables.requests import requests, routing_decisions
from quality import statistics
from quality.estimates.verified_sample import by_a_judge, has_verdict

# Answers are weighted by their inverse sampling probability, which is clipped from below at this value.
RAREST = 0.01
DRAWN = ("sample", "downgrade", "probe")


class ServedAnswer(msgspec.Struct, frozen=True):
    """A verified answer as its user received it. `weight` in (0, 1] is the clipped inverse sampling probability."""

    arm: str
    worse: bool
    weight: float


class ArmAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """The verified answers of one arm."""

    answers: int = 0
    worse: float | None = None
    """The weighted share of an arm's answers that were worse than the strongest tier's; None without any."""


class LiveComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two versions compared by the answers that users received."""

    new: ArmAnswers = ArmAnswers()
    old: ArmAnswers = ArmAnswers()
    harm: float = 1.0
    """Anytime-valid evidence that the share of worse answers of `new` exceeds that of `old` by a margin."""


async def served_answers(
    engine: AsyncEngine, since: float, tiers: int, arm: ColumnElement[str], among: Sequence[ColumnElement[bool]]
) -> list[ServedAnswer]:
    """Return verified answers of requests decided after `since` (epoch seconds), in the order of their verdicts.

    `arm`: the column of `routing_decisions` that names a request's arm; `among`: which decisions count. Requests pinned
    to a tier by the caller are left out, and so are requests in observe mode: no arm decided them. An answer of the
    strongest of `tiers` is never worse than itself.
    """
    query = (
        select(
            verifications.c.request_id,
            verifications.c.tier,
            verifications.c.label,
            verifications.c.sampled_probability,
            requests.c.tier.label("served"),
            arm.label("arm"),
        )
        .join(routing_decisions, routing_decisions.c.request_id == verifications.c.request_id)
        .join(requests, requests.c.request_id == verifications.c.request_id)
        .where(
            verifications.c.created_at > since,
            has_verdict(),
            by_a_judge(),
            verifications.c.sampled_reason.in_(DRAWN),
            routing_decisions.c.created_at > since,
            requests.c.requested_model == "auto",
            routing_decisions.c.would_be_tier.is_(None),
            *among,
        )
        .order_by(verifications.c.finished_at, verifications.c.verification_id)
    )
    async with engine.connect() as connection:
        rows = (await connection.execute(query)).all()
    seen: set[str] = set()
    answers = []
    for row in rows:
        if row.request_id in seen or row.served not in (row.tier, tiers):
            continue
        seen.add(row.request_id)
        worse = row.served != tiers and row.label == "worse"
        answers.append(ServedAnswer(row.arm, worse, min(1.0, RAREST / row.sampled_probability)))
    return answers


def compare(answers: Iterable[ServedAnswer], new: str, *, margin: float) -> LiveComparison:
    """Compare one arm, `new`, with all others.

    Answers are compared in blocks; a block ends when both arms have at least one answer. With equal shares of worse
    answers the expected difference of a block is 0, whatever the sizes of the arms.
    """
    differences: list[float] = []
    block: dict[bool, list[float]] = {True: [], False: []}
    counted: dict[bool, list[ServedAnswer]] = {True: [], False: []}
    for answer in answers:
        ours = answer.arm == new
        counted[ours].append(answer)
        block[ours].append(answer.weight * answer.worse)
        if block[True] and block[False]:
            differences.append(float(np.mean(block[True]) - np.mean(block[False])))
            block = {True: [], False: []}
    return LiveComparison(
        new=_shown(counted[True]),
        old=_shown(counted[False]),
        harm=statistics.evidence(np.array(differences) - margin, 1.0 + margin),
    )


def _shown(answers: Sequence[ServedAnswer]) -> ArmAnswers:
    weights: Any = sum(answer.weight for answer in answers)
    worse = sum(answer.weight * answer.worse for answer in answers)
    return ArmAnswers(answers=len(answers), worse=round(worse / weights, 4) if answers else None)
