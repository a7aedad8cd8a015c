"""Traffic over time, from the stored requests: how many each tier answered, what failed or was refused, what it cost
and how long first tokens took, in buckets of one length (SPEC OB-12)."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from sqlalchemy import ColumnElement, Integer, case, cast, func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from migrations.tables.audit import audit_events
from migrations.tables.quality import verifications
from migrations.tables.requests import refused_requests, requests
from migrations.tables.tenancy import api_keys
from quality.estimates.verified_sample import PEOPLE, UNCERTAIN

Span = Literal["15m", "1h", "24h", "7d"]
SPANS: dict[Span, tuple[float, float]] = {
    "15m": (900.0, 60.0),
    "1h": (3600.0, 60.0),
    "24h": (86_400.0, 900.0),
    "7d": (604_800.0, 7200.0),
}
"""Seconds of each span and of its buckets. Refusals are stored by the minute, so no bucket is shorter."""
_EDGES = [2.0 * 1.4**step for step in range(32)]
"""Upper bounds of the classes in which first tokens are counted, milliseconds: from 2 ms to 68 s."""


class Bucket(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked from `at` (epoch seconds) until the next bucket begins."""

    at: float
    answered: dict[int, int]
    """Requests by the tier that answered; those that their callers left are among them."""
    failed: int
    """Requests whose answer failed."""
    refused: int
    """Requests that were refused before there was an answer."""
    verified: int
    """Answers that were judged against the strongest tier's in this time, whenever they were given."""
    worse: int
    """Those of them that were judged worse."""
    cost_usd: float
    strongest_usd: float
    """What the strongest tier alone would have cost."""
    ttft_p50: float | None
    """Seconds to the first token, from counts in classes whose bounds are 1.4 times apart."""
    ttft_p95: float | None

    @property
    def admitted(self) -> int:
        """Requests that were not refused."""
        return sum(self.answered.values()) + self.failed


class KeyRefusals(msgspec.Struct, frozen=True, kw_only=True):
    """Refused requests of one key; both of its names are None without a known key."""

    key_id: str | None
    name: str | None
    count: int


MOST_KEYS = 3


class RefusalCause(msgspec.Struct, frozen=True, kw_only=True):
    """Refused requests with the same status and code."""

    status: int
    code: str
    count: int
    keys: list[KeyRefusals]
    """Whose requests they were, the most frequent first; at most `MOST_KEYS`."""
    other_keys: int
    """How many more keys there were."""


SHOWN_CHANGES = 8
_CHANGES = {
    "catalogue.reloaded": "The catalogue was reloaded",
    "classifier.canary_started": "A version of the classifier is on trial",
    "classifier.canary_stopped": "The trial of a version ended",
    "classifier.promoted": "A version of the classifier was promoted",
    "classifier.rolled_back": "A version of the classifier was rolled back",
    "experiment.started": "An experiment began",
    "routing.constant": "One tier answers, or routing decides again",
}
"""What an operator wants to see next to a change of the traffic, by the action of its audit event."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What was changed in the gateway."""

    at: float
    what: str
    subject: str
    actor: str
    reason: str | None


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """The traffic of a span."""

    span: Span
    until: float
    """When it was read (epoch seconds)."""
    seconds: float
    """Length of a bucket."""
    buckets: list[Bucket]
    """All of the span, oldest first; the last one goes on after `until`."""
    together: Bucket
    """The sums of all buckets."""
    causes: list[RefusalCause]
    """Why requests were refused, the most frequent first."""
    changes: list[Change]
    """The newest changes of the span, newest first."""


class _Count:
    """What a bucket has counted so far."""

    def __init__(self) -> None:
        self.answered, self.first_tokens = defaultdict[int, int](int), defaultdict[int, int](int)
        self.failed, self.refused, self.verified, self.worse = 0, 0, 0, 0
        self.cost_usd, self.strongest_usd = 0.0, 0.0

    def add(self, tier: int, status: str, first_token: int | None, count: int, usd: float, strongest: float) -> None:
        """Count alike requests."""
        if status == "error":
            self.failed += count
        else:
            self.answered[tier] += count
        self.cost_usd += usd
        self.strongest_usd += strongest
        if first_token is not None:
            self.first_tokens[first_token] += count

    def bucket(self, at: float) -> Bucket:
        """Return it as a bucket that begins at `at`."""
        return Bucket(
            at=at,
            answered=dict(self.answered),
            failed=self.failed,
            refused=self.refused,
            verified=self.verified,
            worse=self.worse,
            cost_usd=self.cost_usd,
            strongest_usd=self.strongest_usd,
            ttft_p50=_quantile(self.first_tokens, 0.5),
            ttft_p95=_quantile(self.first_tokens, 0.95),
        )


async def read_traffic(engine: AsyncEngine, span: Span, now: float) -> Traffic:
    """Return the traffic of the span that ends at `now` (epoch seconds), all keys together. Raises the database's
    errors."""
    length, seconds = SPANS[span]
    end = now // seconds * seconds + seconds
    begin = end - length
    counts = defaultdict[int, _Count](_Count)
    whole = _Count()
    async with engine.connect() as connection:
        for index, tier, status, first_token, *figures in await _answered(connection, begin, seconds):
            for count in (counts[index], whole):
                count.add(tier, status, first_token, *figures)
        for index, refused in await _refused(connection, begin, seconds):
            for count in (counts[index], whole):
                count.refused += refused
        for index, label, verified in await _verified(connection, begin, seconds):
            for count in (counts[index], whole):
                count.verified += verified
                count.worse += verified if label == "worse" else 0
        causes = await _causes(connection, begin)
        changes = await _changed(connection, begin)
    return Traffic(
        span=span,
        until=now,
        seconds=seconds,
        buckets=[counts[index].bucket(begin + index * seconds) for index in range(round(length / seconds))],
        together=whole.bucket(begin),
        causes=causes,
        changes=changes,
    )


async def _answered(connection: AsyncConnection, begin: float, seconds: float) -> list[tuple[Any, ...]]:
    """Return counts and costs by bucket, tier, status and class of the first token, from one index."""
    r = requests.c
    # Build each group expression once: PostgreSQL treats two equal expressions with parameters as different.
    rows = (
        select(
            _bucket(connection, r.created_at, begin, seconds).label("bucket"),
            r.tier,
            r.status,
            _class_of(r.ttft_ms, 0, len(_EDGES)).label("first_token"),
            r.cost_usd,
            r.baseline_cost_usd,
        )
        .where(r.created_at >= begin, r.tier.is_not(None))
        .subquery()
    )
    groups = (rows.c.bucket, rows.c.tier, rows.c.status, rows.c.first_token)
    sums = func.count(), func.sum(rows.c.cost_usd), func.sum(rows.c.baseline_cost_usd)
    return [tuple(row) for row in await connection.execute(select(*groups, *sums).group_by(*groups))]


async def _refused(connection: AsyncConnection, begin: float, seconds: float) -> list[tuple[int, int]]:
    """Return counts by bucket."""
    c = refused_requests.c
    bucket = _bucket(connection, c.created_at, begin, seconds).label("bucket")
    rows = select(bucket, c.count).where(c.created_at >= begin).subquery()
    sums = select(rows.c.bucket, func.sum(rows.c.count)).group_by(rows.c.bucket)
    return [(bucket, int(count)) for bucket, count in await connection.execute(sums)]


async def _causes(connection: AsyncConnection, begin: float) -> list[RefusalCause]:
    """Return the causes, the most frequent first, each with the keys that it met."""
    c = refused_requests.c
    groups = c.status, c.code, c.key_id, api_keys.c.name
    sums = (
        select(*groups, func.sum(c.count))
        .outerjoin(api_keys, api_keys.c.key_id == c.key_id)
        .where(c.created_at >= begin)
        .group_by(*groups)
    )
    keys = defaultdict[tuple[int, str], list[KeyRefusals]](list)
    for status, code, key_id, name, count in await connection.execute(sums):
        # Keys of the settings have no other id than their name.
        keys[status, code].append(KeyRefusals(key_id=key_id, name=name or key_id, count=int(count)))
    causes = []
    for (status, code), refused in keys.items():
        refused.sort(key=lambda key: (-key.count, key.name or ""))
        total = sum(key.count for key in refused)
        shown, others = refused[:MOST_KEYS], max(len(refused) - MOST_KEYS, 0)
        causes.append(RefusalCause(status=status, code=code, count=total, keys=shown, other_keys=others))
    return sorted(causes, key=lambda cause: (-cause.count, cause.status, cause.code))


async def _verified(connection: AsyncConnection, begin: float, seconds: float) -> list[tuple[int, str, int]]:
    """Return counts of verdicts by bucket and label, without those of people and those on which opinions differ."""
    v = verifications.c
    bucket = _bucket(connection, v.finished_at, begin, seconds).label("bucket")
    judged = v.finished_at >= begin, v.label.is_not(None), v.label != UNCERTAIN, v.judge != PEOPLE
    rows = select(bucket, v.label).where(*judged).subquery()
    groups = (rows.c.bucket, rows.c.label)
    totals = await connection.execute(select(*groups, func.count()).group_by(*groups))
    return [(bucket, label, count) for bucket, label, count in totals]


async def _changed(connection: AsyncConnection, begin: float) -> list[Change]:
    e = audit_events.c
    newest = (
        select(e.created_at, e.action, e.subject, e.actor, e.reason)
        .where(e.action.in_(_CHANGES), e.created_at >= begin)
        .order_by(e.created_at.desc())
        .limit(SHOWN_CHANGES)
    )
    return [
        Change(at=at, what=_CHANGES[action], subject=subject, actor=actor, reason=reason)
        for at, action, subject, actor, reason in await connection.execute(newest)
    ]


def _bucket(connection: AsyncConnection, at: ColumnElement[float], begin: float, seconds: float) -> ColumnElement[int]:
    """Return a bucket's number; a cast cuts off on SQLite and rounds on PostgreSQL, which has a floor."""
    index = (at - begin) / seconds
    return cast(func.floor(index) if connection.dialect.name == "postgresql" else index, Integer)


def _class_of(ttft_ms: ColumnElement[float], low: int, high: int) -> ColumnElement[Any]:
    """Return the number of the first of the edges `low` to `high` that is not below, by halving; NULL for NULL."""
    if low == high:
        return cast(low, Integer)
    middle = (low + high) // 2
    below, above = _class_of(ttft_ms, low, middle), _class_of(ttft_ms, middle + 1, high)
    return case((ttft_ms <= _EDGES[middle], below), (ttft_ms > _EDGES[middle], above))


def _quantile(counts: Mapping[int, int], share: float) -> float | None:
    """Return the quantile in seconds, linear within a class."""
    rank, passed = share * sum(counts.values()), 0
    for index in sorted(counts):
        if passed + counts[index] >= rank:
            low, high = _EDGES[index - 1] if index else 0.0, _EDGES[min(index, len(_EDGES) - 1)]
            return (low + (high - low) * (rank - passed) / counts[index]) / 1e3
        passed += counts[index]
    return None
