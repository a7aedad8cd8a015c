"""The sources' rule as an alarm: more than 15% of the last 100 verified answers needed an upgrade (SPEC QM-04).

It knows no predictions, so it is simple to explain; `python -m benchmarks alarms` has its false alarms next to the
sequential test's.
"""

import msgspec
from sqlalchemy import func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from migrations.tables.audit import audit_events
from migrations.tables.quality import classifier_versions, verifications
from quality.estimates.upgrade_rate import Share, UpgradeSettings, sampled_as_served, upgrade_rate
from quality.store.queries import exclusive

STREAM = "last verified answers"
_LOCK = 0x41494F0C  # PostgreSQL advisory lock number: "AIO", 12
_ALARM = "quality.alarm"


class ShareAlarm(msgspec.Struct, frozen=True, kw_only=True):
    """More of the last answers than allowed were worse than the strongest tier's. `since`: when the oldest of them was
    verified, in epoch seconds; `until`: the newest."""

    needs_upgrade: Share
    reason: str
    since: float
    until: float
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
                await connection.execute(
                    insert(audit_events).values(
                        created_at=alarm.until,
                        actor="monitor",
                        action=_ALARM,
                        subject=f"{STREAM}, {alarm.needs_upgrade.total} verdicts",
                        reason=alarm.reason,
                        details=msgspec.to_builtins(alarm),
                    )
                )
            return alarm

    async def _alarm(self, connection: AsyncConnection) -> ShareAlarm | None:
        finished = verifications.c.finished_at
        query = (
            select(verifications.c.label, finished)
            .where(*sampled_as_served(), finished > await _begun(connection))
            .order_by(finished.desc(), verifications.c.verification_id.desc())
            .limit(self.settings.window)
        )
        rows = (await connection.execute(query)).all()
        rate = upgrade_rate([row.label != "worse" for row in rows], self.settings)
        if not rate.alarm:
            return None
        return ShareAlarm(
            needs_upgrade=rate.needs_upgrade,
            reason=rate.reason,
            since=rows[-1].finished_at,
            until=rows[0].finished_at,
        )


async def _begun(connection: AsyncConnection) -> float:
    """Return the time (epoch seconds) of the last alarm of this rule or of the last promotion; 0 without either."""
    alarmed = select(func.max(audit_events.c.created_at)).where(
        audit_events.c.action == _ALARM, audit_events.c.subject.startswith(STREAM)
    )
    promoted = select(func.max(classifier_versions.c.promoted_at))
    return max(await connection.scalar(alarmed) or 0.0, await connection.scalar(promoted) or 0.0)
