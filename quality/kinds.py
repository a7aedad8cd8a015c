"""How good the answers of each tier are to each kind of prompt: shares of all traffic, from a sample of it."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Select, and_, case, func, literal_column, select
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


class Tally(msgspec.Struct, frozen=True):
    """Verdicts put together: how many, and the sums of their weights, of the squares of these, and of the weights of
    those no worse."""

    answers: int = 0
    weight: float = 0.0
    squares: float = 0.0
    good: float = 0.0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            self.answers + other.answers,
            self.weight + other.weight,
            self.squares + other.squares,
            self.good + other.good,
        )

    def scaled(self, factor: float) -> "Tally":
        """Of the same verdicts with so many times their weights."""
        return Tally(self.answers, self.weight * factor, self.squares * factor**2, self.good * factor)

    @property
    def scale(self) -> float:
        """What makes the weights sum to the number of answers that they are worth (Kish 1965)."""
        return self.weight / self.squares if self.squares else 1.0


class Acceptance(msgspec.Struct, frozen=True, kw_only=True):
    """How many of the newest verified answers, as they were served, were no worse than the strongest tier's.

    `by_tier`: shares of the sample as it is. `by_kind`: of the whole traffic, by tier, by cluster, and by both, since
    the classifier last changed: clusters are those of the version in force. A prompt that was never encoded is of none.
    """

    by_tier: dict[int, Share]
    by_kind: list[KindShare]


async def acceptance(engine: AsyncEngine) -> Acceptance:
    """Of answers drawn at random: what another tier would have said, and what users say of their own accord, is not of
    the same population. Put together by the database; row by row it would take several times as long."""
    tiers: Counter[int] = Counter()
    good: Counter[int] = Counter()
    purposes: defaultdict[bool, defaultdict[tuple[int, int | None], Tally]] = defaultdict(lambda: defaultdict(Tally))
    async with engine.connect() as connection:
        for tier, cluster, is_probe, is_current, no_worse, *sums in await connection.execute(_sums()):
            tiers[tier] += sums[0]
            good[tier] += no_worse
            if is_current:
                purposes[bool(is_probe)][tier, cluster] += Tally(*sums)
    return Acceptance(
        by_tier={tier: wilson_interval(good[tier], total) for tier, total in sorted(tiers.items())},
        by_kind=_by_kind(purposes.values()),
    )


def _by_kind(purposes: Iterable[Mapping[tuple[int, int | None], Tally]]) -> list[KindShare]:
    """Of probes and of other samples, each weighted as `sampling_weights` says."""
    kinds: defaultdict[tuple[int | None, int | None], Tally] = defaultdict(Tally)
    for tallies in purposes:
        scale = sum(tallies.values(), Tally()).scale
        for (tier, cluster), tally in tallies.items():
            scaled = tally.scaled(scale)
            kinds[tier, None] += scaled
            if cluster is not None:
                kinds[None, cluster] += scaled
                kinds[tier, cluster] += scaled
    return [kind_share(kinds[kind], *kind) for kind in sorted(kinds, key=_none_first)]


def kind_share(verdicts: Tally, tier: int | None, cluster: int | None) -> KindShare:
    """The share of these verdicts that are no worse, each counted with its weight."""
    if verdicts.weight == 0.0:
        return KindShare(tier=tier, cluster=cluster, answers=0, value=None, low=0.0, high=1.0)
    value = min(verdicts.good / verdicts.weight, 1.0)
    share = effective_interval(value, verdicts.weight**2 / verdicts.squares)
    return KindShare(
        tier=tier,
        cluster=cluster,
        answers=verdicts.answers,
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


def _sums() -> Select[Any]:
    """By tier, cluster, whether it was a probe, and whether the version in force has served it: how many were no worse,
    and what a `Tally` has."""
    newest = newest_verifications()
    promoted = select(func.coalesce(func.max(classifier_versions.c.promoted_at), 0.0)).scalar_subquery()
    encoded = and_(
        training_rows.c.request_id == newest.c.request_id,
        training_rows.c.source.in_(("verification", "probe")),
    )
    probe, current = newest.c.sampled_reason == "probe", newest.c.finished_at > promoted
    weight, no_worse = 1.0 / newest.c.sampled_probability, newest.c.label != "worse"
    kind = (newest.c.tier, training_rows.c.cluster, probe.label("probe"), current.label("current"))
    sums = (
        func.count(case((no_worse, 1))),
        func.count(),
        func.sum(weight),
        func.sum(weight * weight),
        func.sum(case((no_worse, weight), else_=0.0)),
    )
    return (
        select(*kind, *sums)
        .outerjoin(training_rows, encoded)
        .where(*sampled_as_served(newest))
        .group_by(newest.c.tier, training_rows.c.cluster, literal_column("probe"), literal_column("current"))
    )


def _none_first(kind: tuple[int | None, int | None]) -> tuple[int, int]:
    tier, cluster = kind
    return (-1 if tier is None else tier, -1 if cluster is None else cluster)
