"""What raises an alarm. The stored verdicts, from any replica, are fed to the sequential test that requests retraining;
and the sources' rule: more than 15% of the last 100 verified answers needed an upgrade (SPEC QM-04).

The rule knows no predictions, so it is simple to explain; docs/results/quality.md has its false alarms next to the
sequential test's."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import RowMapping, Select, and_, bindparam, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from classifier.complexity.classes import likeliest
from classifier.decision import LEARNED_KINDS, tier_novelty
from migrations.tables.audit import audit_events, audited
from migrations.tables.quality import classifier_versions, training_rows, verifications
from migrations.tables.requests import routing_decisions
from migrations.tables.tenancy import api_keys
from quality.estimates.verified_sample import (
    Share,
    UpgradeSettings,
    by_a_judge,
    has_verdict,
    sampled_as_served,
    upgrade_rate,
)
from quality.monitor.detectors import HISTORY, RecoveryWatch, ShiftAlarm, ShiftDetector, ShiftSettings, Verdict
from quality.records.record import predicted_of
from quality.store.database import writing_first
from quality.store.queries import exclusive

STREAM = "last verified answers"
_LOCK = 0x41494F0C  # PostgreSQL advisory lock number: "AIO", 12
_SHARE_ALARM = "quality.alarm"


class ShareAlarm(msgspec.Struct, frozen=True, kw_only=True):
    """More of the last answers than allowed were worse than the strongest tier's."""

    needs_upgrade: Share
    reason: str
    since: float
    """When the oldest of them was verified, in epoch seconds."""
    until: float
    """When the newest of them was verified, in epoch seconds."""
    stream: str = STREAM


class ShareWatch:
    """Applies the rule to the verdicts after the last alarm or promotion, so that two alarms are at least `min_sample`
    verdicts apart. Everything is read from the database: a restart or another replica repeats no alarm."""

    def __init__(self, engine: AsyncEngine, settings: UpgradeSettings) -> None:
        self.settings = settings
        self._engine = engine

    async def catch_up(self) -> ShareAlarm | None:
        """Return the alarm that the newest verdicts raise, after storing it; None if they raise none."""
        async with self._engine.connect() as connection:
            if await self._alarm(connection) is None:
                return None
        # Look again where no other replica can store the same alarm.
        async with exclusive(self._engine, _LOCK) as connection:
            alarm = await self._alarm(connection)
            if alarm is not None:
                subject, details = f"{STREAM}, {alarm.needs_upgrade.total} verdicts", msgspec.to_builtins(alarm)
                await connection.execute(audited(alarm.until, "monitor", _SHARE_ALARM, subject, alarm.reason, details))
            return alarm

    async def _alarm(self, connection: AsyncConnection) -> ShareAlarm | None:
        finished = verifications.c.finished_at
        query = (
            select(verifications.c.label, finished)
            .where(*sampled_as_served(), by_a_judge(), finished > await _begun(connection))
            .order_by(finished.desc(), verifications.c.verification_id.desc())
            .limit(self.settings.window)
        )
        rows = (await connection.execute(query)).all()
        rate = upgrade_rate([row.label != "worse" for row in rows], self.settings)
        if not rate.alarm:
            return None
        return ShareAlarm(
            needs_upgrade=rate.needs_upgrade, reason=rate.reason, since=rows[-1].finished_at, until=rows[0].finished_at
        )


async def _begun(connection: AsyncConnection) -> float:
    """Return the time (epoch seconds) of the last alarm of this rule or of the last promotion; 0 without either."""
    alarmed = select(func.max(audit_events.c.created_at)).where(
        audit_events.c.action == _SHARE_ALARM, audit_events.c.subject.startswith(STREAM)
    )
    promoted = select(func.max(classifier_versions.c.promoted_at))
    return max(await connection.scalar(alarmed) or 0.0, await connection.scalar(promoted) or 0.0)


# An answer belongs to a stream of its tier and one of its prompt's complexity class.
VIEWS = 2
# From this novelty on, a prompt counts as unfamiliar to the classifier.
UNFAMILIAR = 0.95
_ALARM, _RECOVERY = "quality.alarm", "quality.recovery"
_BATCH = 1000


def streams_of(tier: int, novelty: float, classes: Sequence[float] | None, *, served: bool = True) -> list[str]:
    """Return the names of the streams of a verified answer; at most `VIEWS`.

    A probe's outcome for a tier that did not serve is about that tier, not about the routing of a class. `classes`: P
    of the four complexity classes, if known.
    """
    by_tier = f"tier {tier}, {'unfamiliar' if novelty >= UNFAMILIAR else 'familiar'} prompts"
    return [by_tier, f"{likeliest(classes).name} prompts"] if served and classes else [by_tier]


def changed_tier(stream: str) -> int | None:
    """Return the tier whose answers changed if that stream's rate did; None if the prompts may have changed instead."""
    tier = re.fullmatch(r"tier (\d+), familiar prompts", stream)
    return None if tier is None else int(tier[1])


Changes = Mapping[str | None, Mapping[int, float]]
"""By tenant, None for all tenants: by tier the time (epoch seconds) when its answers last changed."""


async def tenants_changes(engine: AsyncEngine) -> dict[str | None, dict[int, float]]:
    """Return the changes by alarms and recoveries. What one tenant's answers show alone is none for the others."""
    is_change = audit_events.c.action.in_((_ALARM, _RECOVERY))
    query = select(audit_events.c.details).where(is_change).order_by(audit_events.c.created_at)
    async with engine.connect() as connection:
        events = (await connection.scalars(query)).all()
    changes: dict[str | None, dict[int, float]] = {}
    for event in events:
        tier = changed_tier(event["stream"])
        # Alarms of earlier releases have no time or no tenant.
        if tier is not None and "since" in event:
            mine = changes.setdefault(event.get("tenant"), {})
            mine[tier] = max(event["since"], mine.get(tier, 0.0))
    return changes


def changes_for(changes: Changes, tenant: str) -> dict[int, float]:
    """Return by tier the last change for `tenant`, "" for rows without a key."""
    everyones, own = changes.get(None, {}), changes.get(tenant, {})
    return {tier: max(everyones.get(tier, 0.0), own.get(tier, 0.0)) for tier in {*everyones, *own}}


def judged_worse(predicted: float, reliability: float | None) -> float:
    """Return how often a judge of that balanced accuracy says "worse" if it is true with probability `predicted`."""
    error = 0.0 if reliability is None else 1.0 - reliability
    return error + (1.0 - 2.0 * error) * predicted


class ShiftWatch:
    """Streams: each tier's familiar and unfamiliar prompts, and each class's, so that a decline on one kind of prompts
    is not hidden by the others. Answers count as served, and probes count for every tier that they asked. Evidence is
    reset when a classifier is promoted.

    A second test of each tier's familiar prompts looks for good answers that became more frequent than predicted and
    than the tier's own before (`RecoveryWatch`). Such a recovery is stored and requests nothing: labels from before it
    count less, so that the tier is soon used again (SPEC QM-05). What it was before a promotion stays known.

    All evidence is computed from the database, so that it survives restarts and covers all replicas. A verdict that is
    stored late, behind verdicts that finished after it, is skipped, whatever it says.
    """

    def __init__(self, engine: AsyncEngine, settings: ShiftSettings) -> None:
        self.settings = settings
        self._engine = engine
        self._detector, self._recoveries = ShiftDetector(settings, VIEWS), RecoveryWatch(settings)
        self._begun = 0.0
        self._cursor = (0.0, 0)

    def evidence(self) -> dict[str, float]:
        """The evidence by stream, under the name that its alarm would use."""
        return {str(stream): value for stream, value in self._detector.evidence().items()}

    async def catch_up(self) -> list[ShiftAlarm]:
        """Process the verdicts since the last call; return alarms that no replica has stored yet."""
        await self._begin_anew_after_a_promotion()
        raised: list[ShiftAlarm] = []
        while rows := await self._verdicts():
            for row in rows:
                raised += [alarm for alarm in self._observe(row) if await self._store(_ALARM, alarm, alarm.reason, row)]
                if (recovery := self._recovered(row)) is not None:
                    await self._store(_RECOVERY, recovery, _recovery_reason(recovery), row)
        return raised

    def _observe(self, row: RowMapping) -> list[ShiftAlarm]:
        self._cursor = (row["finished_at"], row["verification_id"])
        streams = streams_of(row["tier"], _novelty(row), row["classes"], served=row["tier"] == row["served"])
        predicted, worse, at, tenant = _predicted(row), row["label"] == "worse", row["finished_at"], row["tenant"]
        alarms = [self._detector.observe(stream, worse, predicted, at, tenant) for stream in streams]
        return [alarm for alarm in alarms if alarm is not None]

    def _recovered(self, row: RowMapping) -> ShiftAlarm | None:
        """Return what shows that the tier of `row` is better than it was; its `rate` is of good answers."""
        [stream] = streams_of(row["tier"], _novelty(row), None)
        if changed_tier(stream) is None:
            self._recoveries.remember(row["tier"], _verdict(row))
            return None
        return self._recoveries.observe(row["tier"], stream, _verdict(row), 1.0 - _predicted(row))

    async def _begin_anew_after_a_promotion(self) -> None:
        async with self._engine.connect() as connection:
            promoted = await connection.scalar(select(func.max(classifier_versions.c.promoted_at))) or 0.0
        if promoted > self._begun:
            self._detector, self._recoveries = ShiftDetector(self.settings, VIEWS), RecoveryWatch(self.settings)
            self._begun, self._cursor = promoted, (promoted, 0)
            finished, number = verifications.c.finished_at, verifications.c.verification_id
            earlier = _LABELLED.where(finished < promoted)
            query = earlier.order_by(finished.desc(), number.desc()).limit(HISTORY)
            for row in reversed(await self._rows(query)):
                self._recoveries.remember(row["tier"], _verdict(row))

    async def _verdicts(self) -> Sequence[RowMapping]:
        """Return the next labelled verdicts in the order of finishing."""
        finished, number = self._cursor
        return await self._rows(_LATER, {"finished": finished, "number": number})

    async def _rows(self, query: Select[Any], limits: Mapping[str, Any] | None = None) -> Sequence[RowMapping]:
        async with self._engine.connect() as connection:
            rows: Sequence[RowMapping] = (await connection.execute(query, limits)).mappings().all()
        return rows

    async def _store(self, action: str, change: ShiftAlarm, reason: str, row: RowMapping) -> bool:
        """Store what this verdict showed unless it is stored: after a restart, or by another replica."""
        subject = f"{change.stream}, verification {row['verification_id']}"
        same_event = and_(audit_events.c.action == action, audit_events.c.subject == subject)
        event = audited(row["finished_at"], "monitor", action, subject, reason, msgspec.to_builtins(change))
        async with writing_first(self._engine).begin() as connection:
            if await connection.scalar(select(func.count()).select_from(audit_events).where(same_event)):
                return False
            await connection.execute(event)
        return True


# The verdicts of judges on the predictions of versions, and those after another in the order of finishing. Built once:
# each verification looks for them.
_LABELLED: Select[Any] = (
    select(
        verifications.c.verification_id,
        verifications.c.finished_at,
        verifications.c.tier,
        verifications.c.label,
        verifications.c.judge,
        verifications.c.judge_reliability,
        training_rows.c.classes,
        routing_decisions.c.tier.label("served"),
        routing_decisions.c.decision,
        routing_decisions.c.novelty,
        func.coalesce(api_keys.c.team_id, verifications.c.key_id, "").label("tenant"),
    )
    .outerjoin(api_keys, api_keys.c.key_id == verifications.c.key_id)
    .join(routing_decisions, routing_decisions.c.request_id == verifications.c.request_id)
    .outerjoin(
        training_rows,
        and_(
            training_rows.c.request_id == verifications.c.request_id,
            training_rows.c.source.in_(("verification", "probe")),
        ),
    )
    .where(
        has_verdict(),
        # Without a version's prediction there is nothing to test.
        routing_decisions.c.prediction_kind.in_(LEARNED_KINDS),
        # Probes ask every tier, whichever was chosen. What people say is no random sample.
        or_(verifications.c.tier == routing_decisions.c.tier, verifications.c.sampled_reason == "probe"),
        verifications.c.sampled_reason != "feedback",
        by_a_judge(),
    )
)
_LATER = (
    _LABELLED.where(
        or_(
            verifications.c.finished_at > bindparam("finished"),
            and_(
                verifications.c.finished_at == bindparam("finished"),
                verifications.c.verification_id > bindparam("number"),
            ),
        )
    )
    .order_by(verifications.c.finished_at, verifications.c.verification_id)
    .limit(_BATCH)
)


def _predicted(row: RowMapping) -> float:
    """Return the probability with which this answer was expected to be judged worse."""
    p_ok = predicted_of(row["decision"]).p_ok
    return judged_worse(1.0 - p_ok[row["tier"] - 1], row["judge_reliability"])


def _verdict(row: RowMapping) -> Verdict:
    classes = row["classes"] or predicted_of(row["decision"]).classes
    kind = f"{likeliest(classes).name if classes else ''}, {row['judge']}"
    return Verdict(row["label"] != "worse", row["finished_at"], row["tenant"], kind)


def _novelty(row: RowMapping) -> float:
    return tier_novelty(row["novelty"], predicted_of(row["decision"]).labels, row["tier"])


def _recovery_reason(recovery: ShiftAlarm) -> str:
    return (
        f"{recovery.rate:.0%} of the last {recovery.answers} verified answers were as good as the strongest tier's, "
        f"at most {recovery.allowed:.0%} were expected (evidence {recovery.evidence:.3g})"
    )
