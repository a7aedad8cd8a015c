"""How good the answers of each tier are to each kind of prompt: shares of all traffic, from a sample of it."""

from collections import defaultdict
from collections.abc import Sequence

import msgspec
from sqlalchemy import and_, func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables import classifier_versions, training_rows
from quality.estimates import Share, newest_verifications, sampled_as_served, wilson_interval


class KindShare(msgspec.Struct, frozen=True, kw_only=True):
    """Answers of `tier` (None: of all) to prompts of `cluster` (None: of all) that were no worse than the strongest's.

    `answers` were verified. `value` in [0, 1] estimates the share in the whole traffic: each counts with the inverse of
    its probability of being sampled. [`low`, `high`] is Wilson's 95% interval at the effective sample size (Kish 1965).
    """

    tier: int | None
    cluster: int | None
    answers: int
    value: float | None
    low: float
    high: float


class Verdict(msgspec.Struct, frozen=True):
    """One verified answer as it was served; `cluster` None if its prompt was never encoded."""

    tier: int
    cluster: int | None
    no_worse: bool
    weight: float


async def acceptance_by_kind(engine: AsyncEngine) -> list[KindShare]:
    """By tier, by cluster, and by both, of the newest verdicts since the classifier last changed: clusters are those of
    the version in force."""
    kinds: defaultdict[tuple[int | None, int | None], list[Verdict]] = defaultdict(list)
    for verdict in await _verdicts(engine):
        kinds[verdict.tier, None].append(verdict)
        if verdict.cluster is not None:
            kinds[None, verdict.cluster].append(verdict)
            kinds[verdict.tier, verdict.cluster].append(verdict)
    return [kind_share(kinds[kind], *kind) for kind in sorted(kinds, key=_none_first)]


def kind_share(verdicts: Sequence[Verdict], tier: int | None, cluster: int | None) -> KindShare:
    """The share of these verdicts that are no worse, each counted with its weight."""
    total, squares = sum(v.weight for v in verdicts), sum(v.weight**2 for v in verdicts)
    if total == 0.0:
        return KindShare(tier=tier, cluster=cluster, answers=0, value=None, low=0.0, high=1.0)
    value = sum(v.weight for v in verdicts if v.no_worse) / total
    share = effective_interval(value, total**2 / squares)
    return KindShare(
        tier=tier,
        cluster=cluster,
        answers=len(verdicts),
        value=round(value, 6),
        low=round(min(share.low, value), 6),
        high=round(max(share.high, value), 6),
    )


def effective_interval(value: float, size: float) -> Share:
    """Wilson's interval of a weighted share with an effective sample of `size` answers, rounded down."""
    whole = max(int(size), 1)
    return wilson_interval(round(value * whole), whole)


def sampling_weights(probabilities: Sequence[float], reasons: Sequence[str]) -> list[float]:
    """Of answers that were drawn: inverse probabilities, probes and other samples each scaled to the number of answers
    that they are worth, because either alone stands for all of the traffic."""
    inverse = [1.0 / p for p in probabilities]
    scale = {}
    for probe in (True, False):
        mine = [w for w, reason in zip(inverse, reasons, strict=True) if (reason == "probe") == probe]
        scale[probe] = sum(mine) / sum(w * w for w in mine) if mine else 1.0
    return [w * scale[reason == "probe"] for w, reason in zip(inverse, reasons, strict=True)]


async def _verdicts(engine: AsyncEngine) -> list[Verdict]:
    newest = newest_verifications()
    promoted = select(func.coalesce(func.max(classifier_versions.c.promoted_at), 0.0)).scalar_subquery()
    encoded = and_(
        training_rows.c.request_id == newest.c.request_id,
        training_rows.c.source.in_(("verification", "probe")),
    )
    query = (
        select(
            newest.c.tier,
            training_rows.c.cluster,
            newest.c.label,
            newest.c.sampled_probability,
            newest.c.sampled_reason,
        )
        .outerjoin(training_rows, encoded)
        .where(
            *sampled_as_served(newest),
            newest.c.finished_at > promoted,
        )
    )
    async with engine.connect() as connection:
        rows = (await connection.execute(query)).all()
    weights = sampling_weights([row.sampled_probability for row in rows], [row.sampled_reason for row in rows])
    return [
        Verdict(row.tier, row.cluster, row.label != "worse", weight) for row, weight in zip(rows, weights, strict=True)
    ]


def _none_first(kind: tuple[int | None, int | None]) -> tuple[int, int]:
    tier, cluster = kind
    return (-1 if tier is None else tier, -1 if cluster is None else cluster)
