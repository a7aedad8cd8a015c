"""What the monitor reports: alarms, rates of upgrades, acceptance, the queue and the money."""

from itertools import count

import msgspec
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.audit import audit_events
from migrations.tables.quality import classifier_versions, verifications
from quality.estimates.verified_sample import acceptance
from quality.monitor.detectors import ShiftAlarm, ShiftSettings
from quality.monitor.watches import ShiftWatch, tenants_changes
from quality.records.record import Record
from tests.quality.loop_world import ScriptedTier, record, rows
from tests.quality.monitor.monitors import ALL, monitor_of, running_monitor, serve


async def test_the_alarm_rings_once_when_a_tier_begins_to_disappoint(engine: AsyncEngine) -> None:
    alarms: list[ShiftAlarm] = []
    # Tier 1 is predicted to be worse in 30%, and ten bad answers in a row are far from that.
    settings = msgspec.structs.replace(ALL, shift=ShiftSettings(false_alarm_every=1000.0))
    async with running_monitor(engine, ScriptedTier(), settings, alarms=alarms) as monitor:
        good = [record(f"good-{i}") for i in range(9)]
        bad = [record(f"bad-{i}", answer="8") for i in range(10)]
        await serve(monitor, engine, *good, *bad)
        evidence = (await monitor.status()).evidence_of_shift

    [alarm] = alarms
    assert alarm.stream == "tier 1, familiar prompts"
    assert alarm.evidence >= 1000.0 > evidence[alarm.stream]
    [stored] = [row for row in await rows(engine, audit_events) if row["action"] == "quality.alarm"]
    assert stored["reason"] == alarm.reason


async def test_a_monitor_that_starts_later_knows_the_verdicts_and_the_alarms_before_it(engine: AsyncEngine) -> None:
    settings = msgspec.structs.replace(ALL, shift=ShiftSettings(false_alarm_every=1000.0))
    bad = [record(f"bad-{i}", answer="8") for i in range(12)]
    heard: list[list[ShiftAlarm]] = []
    for served in (bad[:5], bad[5:], []):
        alarms: list[ShiftAlarm] = []
        heard.append(alarms)
        monitor = await monitor_of(engine, ScriptedTier(), settings, alarms=alarms)
        await monitor.start()
        await serve(monitor, engine, *served)
        await monitor.close()
    watch = ShiftWatch(engine, settings.shift)

    assert [len(alarms) for alarms in heard] == [0, 1, 0]
    assert await watch.catch_up() == []
    assert watch.evidence()


async def test_after_a_promotion_only_new_verdicts_count(engine: AsyncEngine) -> None:
    async with running_monitor(engine, ScriptedTier()) as monitor:
        await serve(monitor, engine, *(record(f"bad-{i}", answer="8") for i in range(4)))
        watch = ShiftWatch(engine, ShiftSettings())
        await watch.catch_up()
        before = watch.evidence()

        async with engine.begin() as connection:
            version = {
                "version": "v2",
                "path": "",
                "status": "promoted",
                "reason": "",
                "metrics": {},
                "created_at": 1.0,
            }
            await connection.execute(insert(classifier_versions).values(**version, promoted_at=1600.0))
        await watch.catch_up()

    assert before["tier 1, familiar prompts"] > 1
    assert watch.evidence() == {}


async def test_upgrade_rates_are_per_tier_and_over_all(engine: AsyncEngine) -> None:
    async with running_monitor(engine, ScriptedTier()) as monitor:
        await serve(
            monitor,
            engine,
            record("req-1", tier=1, answer="8"),
            record("req-2", tier=1),
            record("req-3", tier=2),
            record("req-4", tier=2),
        )

        every, first, latest = (
            await monitor.upgrade_rate(),
            await monitor.upgrade_rate(1),
            await monitor.upgrade_rate(last=1),
        )

    assert (every.needs_upgrade.count, every.needs_upgrade.total) == (1, 4)
    assert (first.needs_upgrade.count, first.needs_upgrade.total) == (1, 2)
    assert (latest.needs_upgrade.count, latest.needs_upgrade.total) == (0, 1)


async def test_acceptance_is_the_share_no_worse_per_tier(engine: AsyncEngine) -> None:
    async with running_monitor(engine, ScriptedTier()) as monitor:
        await serve(monitor, engine, record("req-1", answer="8"), record("req-2"), record("req-3", tier=2))

    shares = (await acceptance(engine)).by_tier

    assert {tier: (share.count, share.total) for tier, share in shares.items()} == {1: (1, 2), 2: (1, 1)}
    assert shares[2].low < 0.5


async def test_the_status_shows_the_queue_and_the_money(engine: AsyncEngine) -> None:
    # What was spent is summed again when a second is over.
    async with running_monitor(engine, ScriptedTier(), clock=count(1500.0).__next__) as monitor:
        await serve(monitor, engine, record("req-1"), record("req-2", answer="No idea."))

        status = await monitor.status()

    assert (status.queue.pending, status.queue.done, status.queue.labelled) == (0, 2, 1)
    assert (status.offered, status.sampled, status.dropped) == (2, 2, 0)
    assert status.spending.serving_usd == 2.0
    assert status.spending.committed_usd > 0
    assert [calibration.judge for calibration in status.calibrations] == ["exact"]


async def test_a_tier_that_answers_well_again_is_written_down_as_recovered_once_and_starts_nothing(
    engine: AsyncEngine,
) -> None:
    """QM-05: predicted to be worse in 80%, and nine good answers in a row are far from that."""
    alarms: list[ShiftAlarm] = []
    settings = msgspec.structs.replace(ALL, shift=ShiftSettings(false_alarm_every=1000.0))
    async with running_monitor(
        engine, ScriptedTier(), settings, alarms=alarms, clock=count(1500.0).__next__
    ) as monitor:
        bad = [doubted(f"bad-{i}", answer="8") for i in range(5)]
        good = [doubted(f"good-{i}") for i in range(9)]
        await serve(monitor, engine, *bad, *good)
    # Another replica, or this one after a restart.
    assert await ShiftWatch(engine, settings.shift).catch_up() == []

    assert alarms == []
    [stored] = [row for row in await rows(engine, audit_events) if row["action"] == "quality.recovery"]
    assert "as good as the strongest tier's, at most 23% were expected" in stored["reason"]
    finished = sorted(row["finished_at"] for row in await rows(engine, verifications))
    # The first good answer, so that labels of the bad ones are those from before it.
    assert await tenants_changes(engine) == {"alice": {1: finished[5]}}


async def test_good_answers_that_were_expected_or_of_unfamiliar_prompts_are_no_recovery(engine: AsyncEngine) -> None:
    settings = msgspec.structs.replace(ALL, shift=ShiftSettings(false_alarm_every=100.0))
    async with running_monitor(engine, ScriptedTier(), settings) as monitor:
        expected = [doubted(f"expected-{i}", p_ok=0.95) for i in range(60)]
        unfamiliar = [doubted(f"unfamiliar-{i}", novelty=0.99) for i in range(15)]
        await serve(monitor, engine, *expected, *unfamiliar)
    assert [row["reason"] for row in await rows(engine, audit_events) if row["action"] == "quality.recovery"] == []
    assert await tenants_changes(engine) == {}


def doubted(request_id: str, *, p_ok: float = 0.2, novelty: float = 0.1, answer: str = "7") -> Record:
    """A record of tier 1, whose answer was predicted to be good with probability `p_ok`."""
    made = record(request_id, answer=answer)
    prediction = msgspec.structs.replace(made.decision.inputs.prediction, p_ok=[p_ok, 0.96, 0.97, 1.0], novelty=novelty)
    inputs = msgspec.structs.replace(made.decision.inputs, prediction=prediction)
    return msgspec.structs.replace(made, decision=msgspec.structs.replace(made.decision, inputs=inputs))
