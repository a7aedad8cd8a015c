"""What the verified sample says of all traffic, with intervals: shares of answers that are no worse, by tier and by
kind of prompt; the upgrade rate; and outcomes by the probability that was predicted at routing."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import sqrt
from typing import Any, Final, Literal

import msgspec
from sqlalchemy import Case, ColumnElement, FromClause, Select, Subquery, and_, case, func, literal_column, select
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.complexity.classes import Complexity
from classifier.decision import LEARNED_KINDS
from migrations.tables.quality import training_rows, verifications
from migrations.tables.requests import requests, routing_decisions
from quality.records.record import predicted_of

# Only the newest verifications are read: older ones say little about today and would make queries slow.
NEWEST = 4_000
# Verified answers from which a share of them is shown.
ENOUGH_ANSWERS = 10
# The label of an answer on which opinions differ: no verdict.
UNCERTAIN: Final = "uncertain"
# The judge of a verdict that a caller's feedback or an operator's review gave.
PEOPLE: Final = "user"


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """`count` of `total` with the 95% Wilson interval [`low`, `high`], which is [0, 1] without data."""

    count: int
    total: int
    low: float
    high: float

    @property
    def value(self) -> float | None:
        """The share; None without data."""
        return self.count / self.total if self.total else None

    def shown(self) -> str:
        """Return the share with its interval, in per cent, as in "22.5% [12.3, 37.5]"; "" without data."""
        if not self.total:
            return ""
        return f"{self.count / self.total:.1%} [{100 * self.low:.1f}, {100 * self.high:.1f}]"


class UpgradeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The rule of SPEC QM-04: alarm when more than `threshold` of the last `window` answers need an upgrade."""

    window: int = 100
    threshold: float = 0.15
    min_sample: int = 50

    def __post_init__(self) -> None:
        if not 0.0 < self.threshold < 1.0:
            raise ValueError(f"upgrade threshold is {self.threshold}; it must lie between 0 and 1")
        if not 1 <= self.min_sample <= self.window:
            raise ValueError(f"min_sample is {self.min_sample}; it must lie between 1 and the window, {self.window}")


class UpgradeRate(msgspec.Struct, frozen=True, kw_only=True):
    """The share of the last labelled answers that were worse than the strongest tier's, for one tier or all."""

    tier: int | None
    needs_upgrade: Share
    alarm: bool
    reason: str


def wilson_interval(count: int, total: int, z: float = 1.959963984540054) -> Share:
    """Wilson's score interval of a binomial share (Wilson 1927); sound at 0, at 1 and for few observations."""
    if not 0 <= count <= total:
        raise ValueError(f"count is {count}; it must lie between 0 and the total, {total}")
    if total == 0:
        return Share(count=0, total=0, low=0.0, high=1.0)
    p, z2 = count / total, z * z
    centre = (p + z2 / (2 * total)) / (1 + z2 / total)
    half = z / (1 + z2 / total) * sqrt(p * (1 - p) / total + z2 / (4 * total * total))
    low = 0.0 if count == 0 else max(0.0, centre - half)
    high = 1.0 if count == total else min(1.0, centre + half)
    return Share(count=count, total=total, low=low, high=high)


def upgrade_rate(no_worse: Sequence[bool], settings: UpgradeSettings, tier: int | None = None) -> UpgradeRate:
    """Apply the rule to `no_worse`, newest first; only the first `settings.window` count."""
    recent = no_worse[: settings.window]
    worse = sum(not ok for ok in recent)
    share = wilson_interval(worse, len(recent))
    if share.total < settings.min_sample:
        reason = f"{share.total} labelled, {settings.min_sample} needed before an alarm"
        return UpgradeRate(tier=tier, needs_upgrade=share, alarm=False, reason=reason)
    # In whole answers, so that 15 of 100 is not above 15% by a rounding of the float 0.15.
    alarm = worse > settings.threshold * share.total + 1e-9
    relation = "above" if alarm else "not above"
    reason = f"{worse} of the last {share.total} need an upgrade, {relation} {settings.threshold:.0%}"
    return UpgradeRate(tier=tier, needs_upgrade=share, alarm=alarm, reason=reason)


async def recent_verdicts(engine: AsyncEngine, tier: int | None, limit: int) -> list[bool]:
    """Return the last `limit` labels of judges (of `tier`, or all), newest first; True: no worse than the strongest
    tier's."""
    query = (
        select(verifications.c.label)
        .where(*sampled_as_served(), by_a_judge())
        .order_by(verifications.c.finished_at.desc(), verifications.c.verification_id.desc())
        .limit(limit)
    )
    if tier is not None:
        query = query.where(verifications.c.tier == tier)
    async with engine.connect() as connection:
        return [label != "worse" for label in await connection.scalars(query)]


def newest_verifications() -> Subquery:
    """Select the `NEWEST` verifications without their texts. The limit keeps the planner from sorting more rows."""
    v = verifications.c
    shown = (v.request_id, v.tier, v.status, v.label, v.judge, v.sampled_reason, v.sampled_probability, v.finished_at)
    return select(*shown).order_by(v.verification_id.desc()).limit(NEWEST).subquery()


def has_verdict(rows: FromClause = verifications) -> ColumnElement[bool]:
    """Select rows with a label that says whether the answer was worse."""
    # The first condition is that of the partial indexes.
    return and_(rows.c.label.is_not(None), rows.c.label != UNCERTAIN)


def by_a_judge(rows: FromClause = verifications) -> ColumnElement[bool]:
    """Leave out the verdicts of people: they choose which answers to complain about, and so the rate."""
    return rows.c.judge.is_distinct_from(PEOPLE)


def drawn_with_label(rows: FromClause = verifications) -> ColumnElement[bool]:
    """Select verdicts on sampled requests, without voluntary user feedback."""
    drawn = rows.c.sampled_reason.in_(("sample", "downgrade", "probe"))
    return and_(has_verdict(rows), drawn, rows.c.sampled_probability > 0.0)


def sampled_as_served(rows: FromClause = verifications) -> tuple[ColumnElement[bool], ...]:
    """Select labels of sampled requests for the tier that answered."""
    # PostgreSQL assumes that a subquery matches every other row, so it reads the newest until there are enough. For a
    # join it expects few rows, and reads them all or starts workers.
    same = select(requests.c.tier == rows.c.tier).where(requests.c.request_id == rows.c.request_id)
    # A row with a label is finished; the condition is stated so that indexes on time are read from the newest row.
    return drawn_with_label(rows), rows.c.finished_at.is_not(None), same.correlate(rows).scalar_subquery()


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """A set of prompts: those of a complexity class, or those of an application, which is a key (None: requests without
    a key) with a system prompt (`app`, its hash; "" without one). Without either it is all prompts."""

    by: Literal["all", "class", "application"] = "all"
    complexity: Complexity | None = None
    key_id: str | None = None
    app: str = ""


ALL = Kind()


def kind_name(kind: Kind, owners: Mapping[str, str]) -> str:
    """Return a name for people; `owners` maps ids of keys to names."""
    if kind.by == "all":
        return "all prompts"
    if kind.complexity is not None:
        return f"{kind.complexity.name} prompts"
    owner = "requests without a key" if kind.key_id is None else owners.get(kind.key_id, kind.key_id)
    return f"{owner}, system prompt {kind.app[:8]}" if kind.app else f"{owner}, no system prompt"


class KindShare(msgspec.Struct, frozen=True, kw_only=True):
    """Answers of `tier` (None: of all) to prompts of `kind` that were no worse than the strongest's."""

    tier: int | None
    kind: Kind
    answers: int
    """Verified answers."""
    value: float | None
    """An estimate in [0, 1] of the share in the whole traffic: each answer counts with the inverse of its probability
    of being sampled. [`low`, `high`] is Wilson's 95% interval at the effective sample size (Kish 1965).
    """
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
    """How many of the newest verified answers, as they were served, were no worse than the strongest tier's."""

    by_tier: dict[int, Share]
    """Shares of the sample as it is."""
    by_people: dict[int, Share]
    """By tier: of the answers that people rated, those they found good. People choose what they rate."""
    by_kind: list[KindShare]
    """Shares of the whole traffic, by tier, by kind of prompts, by both, and at last of everything. A prompt that was
    never encoded is of no kind.
    """

    @property
    def overall(self) -> KindShare | None:
        """The share over everything; None without verdicts."""
        return next((share for share in self.by_kind if share.tier is None and share.kind == ALL), None)


async def acceptance(engine: AsyncEngine) -> Acceptance:
    """Compute the shares from randomly drawn answers only, and apart from them those of the answers that people rated.

    Outcomes of tiers that did not serve are another population and are left out. The
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
        rated = {tier: wilson_interval(good, total) for tier, good, total in await connection.execute(_rated())}
    return Acceptance(
        by_tier={tier: wilson_interval(good[tier], total) for tier, total in sorted(tiers.items())},
        by_people=rated,
        by_kind=_by_kind(purposes.values()),
    )


def _by_kind(purposes: Iterable[Mapping[_Cell, Tally]]) -> list[KindShare]:
    """Combine probes and other samples as `sampling_weights` says."""
    by_cell: defaultdict[tuple[int | None, Kind], Tally] = defaultdict(Tally)
    for tallies in purposes:
        scale = sum(tallies.values(), Tally()).scale
        for (tier, kinds), tally in tallies.items():
            scaled = tally.scaled(scale)
            for kind in (ALL, *kinds):
                by_cell[None, kind] += scaled
                by_cell[tier, kind] += scaled
    order = sorted(
        by_cell, key=lambda cell: (cell[1].by, cell[1].complexity or 0, -by_cell[None, cell[1]].answers, _names(*cell))
    )
    return [kind_share(by_cell[cell], *cell) for cell in order]


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
        training_rows.c.request_id == newest.c.request_id, training_rows.c.source.in_(("verification", "probe"))
    )
    probe, has_row = newest.c.sampled_reason == "probe", training_rows.c.training_row_id.is_not(None)
    weight, no_worse = 1.0 / newest.c.sampled_probability, newest.c.label != "worse"
    kind = (
        newest.c.tier,
        _likeliest_class().label("complexity"),
        has_row.label("known"),
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
        .where(*sampled_as_served(newest), by_a_judge(newest))
        .group_by(*(literal_column(name) for name in ("1", "2", "3", "4", "5", "6")))
    )


def _rated() -> Select[Any]:
    """Count what people rated by tier: the good, and all."""
    newest = newest_verifications()
    good = func.count(case((newest.c.label != "worse", 1)))
    return (
        select(newest.c.tier, good, func.count())
        .where(has_verdict(newest), newest.c.judge == PEOPLE)
        .group_by(newest.c.tier)
        .order_by(newest.c.tier)
    )


def _likeliest_class() -> Case[Any]:
    """The number of a row's most likely class, NULL without one."""
    p = [training_rows.c.classes[index].as_float() for index in range(len(Complexity))]
    return case(
        (p[0].is_(None), None),
        *(
            (and_(*(p[complexity - 1] >= other for other in p[complexity:])), int(complexity))
            for complexity in Complexity
            if p[complexity:]
        ),
        else_=int(Complexity.EXPERT),
    )


def _names(tier: int | None, kind: Kind) -> tuple[str, str, int]:
    return kind.key_id or "", kind.app, tier or 0


BINS = 10


class ReliabilityBin(msgspec.Struct, frozen=True, kw_only=True):
    """Answers of `tier` whose predicted P(no worse) lies in the tenth of [0, 1] from `least` to below `most`: the mean
    `predicted`, and the share that was no worse with its 95% interval."""

    tier: int
    least: float
    most: float
    predicted: float
    no_worse: Share


async def reliability(engine: AsyncEngine, tiers: int) -> list[ReliabilityBin]:
    """Return the bins by tier below the strongest of `tiers`, from the newest verdicts on served answers."""
    newest = newest_verifications()
    query = (
        select(newest.c.tier, newest.c.label, routing_decisions.c.decision)
        .join(routing_decisions, routing_decisions.c.request_id == newest.c.request_id)
        .where(
            *sampled_as_served(newest),
            by_a_judge(newest),
            newest.c.tier < tiers,
            routing_decisions.c.prediction_kind.in_(LEARNED_KINDS),
        )
    )
    answers_by_bin: dict[tuple[int, int], list[tuple[float, bool]]] = {}
    async with engine.connect() as connection:
        for tier, label, decision in await connection.execute(query):
            p_ok = predicted_of(decision).p_ok
            if tier <= len(p_ok):
                p = p_ok[tier - 1]
                answers_by_bin.setdefault((tier, min(int(p * BINS), BINS - 1)), []).append((p, label != "worse"))
    return [
        ReliabilityBin(
            tier=tier,
            least=tenth / BINS,
            most=(tenth + 1) / BINS,
            predicted=round(sum(p for p, _ in answers) / len(answers), 6),
            no_worse=wilson_interval(sum(good for _, good in answers), len(answers)),
        )
        for (tier, tenth), answers in sorted(answers_by_bin.items())
    ]
