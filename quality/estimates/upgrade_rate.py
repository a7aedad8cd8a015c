"""The verified sample by tier, with intervals: shares no worse, and the upgrade rate."""

from collections.abc import Sequence
from math import sqrt
from typing import Final

import msgspec
from sqlalchemy import ColumnElement, FromClause, Subquery, and_, select
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.quality import verifications
from migrations.tables.requests import requests

# Only the newest verifications are read: older ones say little about today and would make queries slow.
NEWEST = 4_000
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
    """Return the last `limit` labels (of `tier`, or of all), newest first; True means no worse than the strongest
    tier's."""
    query = (
        select(verifications.c.label)
        .where(*sampled_as_served())
        .order_by(verifications.c.finished_at.desc(), verifications.c.verification_id.desc())
        .limit(limit)
    )
    if tier is not None:
        query = query.where(verifications.c.tier == tier)
    async with engine.connect() as connection:
        return [label != "worse" for label in await connection.scalars(query)]


def newest_verifications() -> Subquery:
    """Select the `NEWEST` verifications without their texts. The limit stops the planner from reading more rows to sort
    them."""
    v = verifications.c
    shown = (v.request_id, v.tier, v.status, v.label, v.sampled_reason, v.sampled_probability, v.finished_at)
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
