"""The sources' 15% rule as the trigger of retrainings, where it is chosen (SPEC QM-04)."""

import asyncio
from itertools import count

import msgspec
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.audit import audit_events
from migrations.tables.quality import classifier_versions
from quality.estimates.verified_sample import UpgradeSettings
from quality.monitor.answer_monitor import AnswerMonitor
from quality.monitor.detectors import ShiftAlarm, ShiftSettings
from quality.monitor.watches import ShareAlarm, ShareWatch
from tests.quality.loop_world import ScriptedTier, record, rows
from tests.quality.monitor.monitors import ALL, monitor_of, serve

RULE = UpgradeSettings(window=10, threshold=0.15, min_sample=5)
SHARE = msgspec.structs.replace(ALL, trigger="share", upgrade=RULE)


async def started(engine: AsyncEngine, alarms: list[ShiftAlarm | ShareAlarm], **settings: object) -> AnswerMonitor:
    """A monitor whose every verdict has a time of its own."""
    ticks = count(1500)
    chosen = msgspec.structs.replace(SHARE, **settings)  # type: ignore[arg-type]
    monitor = await monitor_of(engine, ScriptedTier(), chosen, alarms=alarms, clock=lambda: float(next(ticks)))  # type: ignore[arg-type]
    await monitor.start()
    return monitor


async def test_the_share_alarms_only_where_it_is_the_trigger(engine: AsyncEngine) -> None:
    heard: dict[str, list[ShiftAlarm | ShareAlarm]] = {"evidence": [], "share": []}
    # No evidence of the sequential test is enough, so every alarm is the share's.
    deaf = ShiftSettings(false_alarm_every=1e9)
    answers = iter(range(100))
    for trigger, alarms in heard.items():
        monitor = await started(engine, alarms, trigger=trigger, shift=deaf)
        await serve(monitor, engine, *(record(f"bad-{next(answers)}", answer="8") for _ in range(6)))
        await monitor.close()

    assert heard["evidence"] == []
    assert [type(alarm) for alarm in heard["share"]] == [ShareAlarm]


async def test_where_the_share_is_the_trigger_evidence_is_stored_and_starts_nothing(engine: AsyncEngine) -> None:
    alarms: list[ShiftAlarm | ShareAlarm] = []
    quick = ShiftSettings(false_alarm_every=1000.0)
    monitor = await started(engine, alarms, shift=quick, upgrade=UpgradeSettings(threshold=0.99))
    await serve(monitor, engine, *(record(f"bad-{i}", answer="8") for i in range(12)))
    await monitor.close()

    stored = [row["subject"] for row in await rows(engine, audit_events) if row["action"] == "quality.alarm"]
    assert len(stored) == 1
    assert stored[0].startswith("tier 1, familiar prompts")
    assert alarms == []


async def test_too_few_verdicts_and_a_share_at_the_threshold_raise_none(engine: AsyncEngine) -> None:
    alarms: list[ShiftAlarm | ShareAlarm] = []
    monitor = await started(engine, alarms, upgrade=UpgradeSettings(window=20, threshold=0.15, min_sample=20))
    await serve(monitor, engine, *(record(f"bad-{i}", answer="8") for i in range(3)))
    await serve(monitor, engine, *(record(f"good-{i}") for i in range(17)))
    at_the_threshold = list(alarms)
    # The window is full: three bad answers leave for the first three that come.
    await serve(monitor, engine, *(record(f"worse-{i}", answer="8") for i in range(4)))
    await monitor.close()

    assert at_the_threshold == []
    [alarm] = alarms
    assert isinstance(alarm, ShareAlarm)
    assert alarm.reason == "4 of the last 20 need an upgrade, above 15%"


async def test_after_an_alarm_a_restart_or_a_promotion_only_new_verdicts_count(engine: AsyncEngine) -> None:
    alarms: list[ShiftAlarm | ShareAlarm] = []
    monitor = await started(engine, alarms)
    await serve(monitor, engine, *(record(f"a-{i}", answer="8") for i in range(9)))
    after_nine = len(alarms)
    await monitor.close()
    again = ShareWatch(engine, RULE)
    repeated = await again.catch_up()
    async with engine.begin() as connection:
        version = {"version": "v2", "path": "", "status": "promoted", "reason": "", "metrics": {}, "created_at": 1.0}
        await connection.execute(insert(classifier_versions).values(**version, promoted_at=1e9))
    lower = ShareWatch(engine, UpgradeSettings(window=10, threshold=0.15, min_sample=1))

    # Nine bad answers are one alarm at the fifth, and four after it.
    assert (after_nine, repeated) == (1, None)
    assert await lower.catch_up() is None, "verdicts from before a promotion"


async def test_replicas_that_see_the_same_verdicts_raise_one_alarm(any_engine: AsyncEngine) -> None:
    monitor = await started(any_engine, [], upgrade=UpgradeSettings(window=10, threshold=0.99, min_sample=5))
    await serve(monitor, any_engine, *(record(f"a-{i}", answer="8") for i in range(6)))
    await monitor.close()

    async with any_engine.begin() as connection:
        await connection.execute(audit_events.delete())
    found = await asyncio.gather(*(ShareWatch(any_engine, RULE).catch_up() for _ in range(4)))

    assert sum(alarm is not None for alarm in found) == 1
    [stored] = await rows(any_engine, audit_events)
    assert (stored["actor"], stored["action"]) == ("monitor", "quality.alarm")
    assert stored["details"]["needs_upgrade"]["count"] == 6
