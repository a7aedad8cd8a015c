"""Answer quality by tier and by kind of prompt: shares of all traffic, estimated from the verified sample."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec
from sqlalchemy import Case, Select, and_, case, func, literal_column, select
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.complexity.classes import Complexity
from migrations.tables.quality import training_rows
from quality.estimates.upgrade_rate import Share, newest_verifications, sampled_as_served, wilson_interval


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """A set of prompts: those of a complexity class, or those of an application, which is a key (None: requests without
    a key) with a system prompt (`app`, its hash; "" without one). Without either it is all prompts."""

    by: Literal["all", "class", "application"] = "all"
    complexity: Complexity | None = None
    key_id: str | None = None
    app: str = ""


ALL = Kind()


class KindShare(msgspec.Struct, frozen=True, kw_only=True):
    """Answers of `tier` (None: of all) to prompts of `kind` that were no worse than the strongest's.

    `answers` were verified. `value` in [0, 1] estimates the share in the whole traffic: each counts with the inverse of
    its probability of being sampled. [`low`, `high`] is Wilson's 95% interval at the effective sample size (Kish 1965).
    """

    tier: int | None
    kind: Kind
    answers: int
    value: float | None
    low: float
    high: float


class Tally(msgspec.Struct, frozen=True):
    """Sums over verdicts: their number, their weights, the squared weights, and the weights of the answers no worse."""

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
        """Return this tally with all weights multiplied by a factor."""
        return Tally(self.answers, self.weight * factor, self.squares * factor**2, self.good * factor)

    @property
    def scale(self) -> float:
        """The factor that makes the weights sum to the effective sample size (Kish 1965)."""
        return self.weight / self.squares if self.squares else 1.0


_Cell = tuple[int, tuple[Kind, ...]]


class Acceptance(msgspec.Struct, frozen=True, kw_only=True):
    """How many of the newest verified answers, as they were served, were no worse than the strongest tier's.

    `by_tier`: shares of the sample as it is. `by_kind`: of the whole traffic, by tier, by kind of prompts, by both, and
    at last of everything. A prompt that was never encoded is of no kind.
    """

    by_tier: dict[int, Share]
    by_kind: list[KindShare]

    @property
    def overall(self) -> KindShare | None:
        """The share over everything; None without verdicts."""
        return next((one for one in self.by_kind if one.tier is None and one.kind == ALL), None)


async def acceptance(engine: AsyncEngine) -> Acceptance:
    """Compute the shares from randomly drawn answers only.

    Outcomes of tiers that did not serve, and voluntary user feedback, are another population and are left out. The
    database does the sums, which is several times faster than reading rows.
    """
    tiers: Counter[int] = Counter()
    good: Counter[int] = Counter()
    purposes: defaultdict[bool, defaultdict[_Cell, Tally]] = defaultdict(lambda: defaultdict(Tally))
    async with engine.connect() as connection:
        for tier, complexity, encoded, key, app, is_probe, no_worse, *sums in await connection.execute(_sums()):
            tiers[tier] += sums[0]
            good[tier] += no_worse
            kinds = [Kind(by="class", complexity=Complexity(complexity))] if complexity else []
            kinds += [Kind(by="application", key_id=key, app=app or "")] if encoded else []
            purposes[bool(is_probe)][tier, tuple(kinds)] += Tally(*sums)
    return Acceptance(
        by_tier={tier: wilson_interval(good[tier], total) for tier, total in sorted(tiers.items())},
        by_kind=_by_kind(purposes.values()),
    )


def _by_kind(purposes: Iterable[Mapping[_Cell, Tally]]) -> list[KindShare]:
    """Combine probes and other samples as `sampling_weights` says."""
    found: defaultdict[tuple[int | None, Kind], Tally] = defaultdict(Tally)
    for tallies in purposes:
        scale = sum(tallies.values(), Tally()).scale
        for (tier, kinds), tally in tallies.items():
            scaled = tally.scaled(scale)
            for kind in (ALL, *kinds):
                found[None, kind] += scaled
                found[tier, kind] += scaled
    order = sorted(
        found, key=lambda cell: (cell[1].by, cell[1].complexity or 0, -found[None, cell[1]].answers, _names(*cell))
    )
    return [kind_share(found[cell], *cell) for cell in order]


def kind_share(verdicts: Tally, tier: int | None, kind: Kind = ALL) -> KindShare:
    """Return the weighted share of these verdicts that are no worse."""
    if verdicts.weight == 0.0:
        return KindShare(tier=tier, kind=kind, answers=0, value=None, low=0.0, high=1.0)
    value = min(verdicts.good / verdicts.weight, 1.0)
    share = effective_interval(value, verdicts.weight**2 / verdicts.squares)
    return KindShare(
        tier=tier,
        kind=kind,
        answers=verdicts.answers,
        value=round(value, 6),
        low=round(min(share.low, value), 6),
        high=round(max(share.high, value), 6),
    )


def effective_interval(value: float, size: float) -> Share:
    """Return Wilson's interval of a weighted share with an effective sample of `size` answers, rounded down."""
    # Sums of weights are not exact: eight equal weights are eight answers, not 7.999.
    whole = max(int(size + 1e-6), 1)
    return wilson_interval(round(value * whole), whole)


def sampling_weights(probabilities: Sequence[float], reasons: Sequence[str]) -> list[float]:
    """Return inverse probability weights of drawn answers. Probes and other samples are each scaled to their effective
    sample size, because either alone stands for all traffic."""
    inverse = [1.0 / p for p in probabilities]
    scale = {}
    for probe in (True, False):
        mine = [w for w, reason in zip(inverse, reasons, strict=True) if (reason == "probe") == probe]
        scale[probe] = sum(mine) / sum(w * w for w in mine) if mine else 1.0
    return [w * scale[reason == "probe"] for w, reason in zip(inverse, reasons, strict=True)]


def _sums() -> Select[Any]:
    """Sum verdicts by tier, class, whether the prompt has a row, key, application and whether it was a probe."""
    newest = newest_verifications()
    encoded = and_(
        training_rows.c.request_id == newest.c.request_id,
        training_rows.c.source.in_(("verification", "probe")),
    )
    probe, known = newest.c.sampled_reason == "probe", training_rows.c.training_row_id.is_not(None)
    weight, no_worse = 1.0 / newest.c.sampled_probability, newest.c.label != "worse"
    kind = (
        newest.c.tier,
        _likeliest_class().label("complexity"),
        known.label("known"),
        training_rows.c.key_id,
        training_rows.c.app,
        probe.label("probe"),
    )
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
        .group_by(*(literal_column(name) for name in ("1", "2", "3", "4", "5", "6")))
    )


def _likeliest_class() -> Case[Any]:
    """The number of a row's most likely class, NULL without one."""
    p = [training_rows.c.classes[place].as_float() for place in range(len(Complexity))]
    return case(
        (p[0].is_(None), None),
        *((and_(*(p[one - 1] >= other for other in p[one:])), int(one)) for one in Complexity if p[one:]),
        else_=int(Complexity.EXPERT),
    )


def _names(tier: int | None, kind: Kind) -> tuple[str, str, int]:
    return kind.key_id or "", kind.app, tier or 0
