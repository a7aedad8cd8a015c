"""Which stored verdicts the watches look at, in which order, and what they store of it."""

from typing import Any

import msgspec
import pytest
from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.audit import audit_events
from migrations.tables.quality import classifier_versions, training_rows, verifications
from migrations.tables.tenancy import api_keys, teams
from quality.estimates.verified_sample import PEOPLE, UpgradeSettings, recent_verdicts
from quality.monitor.detectors import EDetector, ShiftSettings
from quality.monitor.watches import STREAM, ShareWatch, ShiftWatch, changes_for, judged_worse, tenants_changes
from tests.quality.loop_world import record, rows, store_request

FAMILIAR = "tier 1, familiar prompts"
DEAF = ShiftSettings(false_alarm_every=1e9, reference=10**9)


async def verdict(engine: AsyncEngine, number: int, *, worse: bool = False, at: float = 2000.0, **more: Any) -> None:
    """A request that tier 1 answered, good with probability 0.7, and its verdict at `at`."""
    served = record(f"r{number}", created_at=at - 1, key_id=more.pop("key_id", "alice"))
    changes = {name: more.pop(name) for name in ("kind", "novelty", "labels") if name in more}
    prediction = msgspec.structs.replace(served.decision.inputs.prediction, **changes)
    inputs = msgspec.structs.replace(served.decision.inputs, prediction=prediction)
    served = msgspec.structs.replace(served, decision=msgspec.structs.replace(served.decision, inputs=inputs))
    await store_request(engine, served)
    row = {
        "request_id": served.request_id, "key_id": served.key_id, "tier": 1, "model": "m",
        "label": "worse" if worse else "no_worse", "sampled_probability": 0.5, "sampled_reason": "sample",
        "status": "done", "judge": "exact", "judge_reliability": None, "cost_usd": 0.0, "reserved_usd": 0.0,
        "attempts": 1, "created_at": at, "finished_at": at,
    }  # fmt: skip
    async with engine.begin() as connection:
        await connection.execute(insert(verifications).values(row | more))


def evidence_of(*seen: bool, allowed: float = 0.33) -> float:
    """Of answers, of which true ones were worse: 0.3 as predicted, and 0.03 of tolerance."""
    detector = EDetector()
    for worse in seen:
        detector.observe(worse, allowed)
    return detector.evidence


async def seen(watch: ShiftWatch) -> float:
    assert await watch.catch_up() == []
    return watch.evidence().get(FAMILIAR, 0.0)


@pytest.mark.parametrize(
    ("more", "counts"),
    [
        ({}, True), ({"label": "tie"}, True), ({"label": "uncertain"}, False), ({"label": None}, False),
        ({"sampled_reason": "feedback"}, False), ({"judge": PEOPLE}, False), ({"kind": "heuristic"}, False),
        ({"kind": "prior"}, True), ({"tier": 2}, False), ({"novelty": 0.95}, False), ({"novelty": 0.94}, True),
        ({"labels": [0.5, 200.0, 200.0]}, False), ({"labels": [200.0, 0.0, 0.0]}, True),
    ],
)  # fmt: skip
async def test_verdicts_of_served_answers_by_a_judge_on_a_versions_prediction_count(
    engine: AsyncEngine, more: dict[str, Any], counts: bool
) -> None:
    await verdict(engine, 1, **more)
    assert (await seen(ShiftWatch(engine, DEAF)) > 0) == counts


async def test_a_probe_counts_for_every_tier_that_it_asked_and_its_class_for_the_one_that_served(
    engine: AsyncEngine,
) -> None:
    await verdict(engine, 1, worse=True, sampled_reason="probe")
    async with engine.begin() as connection:
        row = dict((await connection.execute(select(verifications))).mappings().one())
        del row["verification_id"], row["facet"]
        await connection.execute(insert(verifications).values(row | {"tier": 2}))
        learned = {
            "request_id": "r1", "feature_spec": "s", "no_worse": [], "weights": [], "embedding": b"", "created_at": 1.0,
        }  # fmt: skip
        for source, classes in (("probe", [0.0, 0.0, 0.1, 0.9]), ("feedback", [1.0, 0.0, 0.0, 0.0])):
            await connection.execute(insert(training_rows).values(learned | {"source": source, "classes": classes}))
    watch = ShiftWatch(engine, DEAF)
    await watch.catch_up()
    assert watch.evidence() == pytest.approx({
        FAMILIAR: evidence_of(True), "EXPERT prompts": evidence_of(True),
        "tier 2, familiar prompts": evidence_of(True, allowed=0.23),
    })  # fmt: skip


async def test_verdicts_count_once_in_the_order_of_finishing_and_late_ones_not(engine: AsyncEngine) -> None:
    watch = ShiftWatch(engine, DEAF)
    await verdict(engine, 1, at=2002.0)
    await verdict(engine, 2, at=2001.0, worse=True)
    assert await seen(watch) == pytest.approx(evidence_of(True, False))
    assert await seen(watch) == pytest.approx(evidence_of(True, False))
    await verdict(engine, 3, at=2001.5, worse=True)
    assert await seen(watch) == pytest.approx(evidence_of(True, False)), "stored behind one that finished later"
    await verdict(engine, 4, at=2002.0, worse=True)
    assert await seen(watch) == pytest.approx(evidence_of(True, False, True))
    await verdict(engine, 5, at=2003.0, worse=True)
    assert await seen(watch) == pytest.approx(evidence_of(True, False, True, True))
    async with engine.begin() as connection:
        version = {"version": "v2", "path": "", "status": "promoted", "reason": "", "metrics": {}, "created_at": 1.0}
        await connection.execute(insert(classifier_versions).values(**version, promoted_at=2003.0))
    await verdict(engine, 6, at=2004.0)
    for _ in range(2):
        # Of the time of the promotion, one is of the new version.
        assert await seen(watch) == pytest.approx(evidence_of(True, False))


async def test_an_unreliable_judge_is_expected_to_err(engine: AsyncEngine) -> None:
    await verdict(engine, 1, worse=True, judge_reliability=0.9)
    allowed = judged_worse(0.3, 0.9) + 0.03
    assert allowed == pytest.approx(0.9 * 0.3 + 0.1 * 0.7 + 0.03)
    assert await seen(ShiftWatch(engine, DEAF)) == pytest.approx(evidence_of(True, allowed=allowed))


async def test_an_alarm_is_of_the_team_of_the_key_and_stored_by_the_first_that_sees_it(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await connection.execute(insert(teams).values(team_id="team_1", name="lab", created_at=1.0))
        key = {
            "key_id": "k", "name": "k", "team_id": "team_1", "prefix": "p", "digest": "0" * 64, "scopes": [],
            "consent": True, "priority_ceiling": 0, "created_at": 1.0,
        }  # fmt: skip
        await connection.execute(insert(api_keys).values(key))
    for number in range(6):
        await verdict(engine, number, worse=True, at=2000.0 + number, key_id="k")
    settings = ShiftSettings(false_alarm_every=25.0, reference=10**9)
    first, second = ShiftWatch(engine, settings), ShiftWatch(engine, settings)
    [alarm] = await first.catch_up()
    # Every answer may be in two streams, so each of them needs twice the evidence, which four errors are not.
    assert 25 < evidence_of(*[True] * 4) < 50 < evidence_of(*[True] * 5)
    assert alarm.answers == 5
    assert (alarm.tenant, alarm.stream, alarm.since) == ("team_1", FAMILIAR, 2000.0)
    assert await second.catch_up() == []
    [stored] = await rows(engine, audit_events)
    assert (stored["actor"], stored["action"], stored["reason"]) == ("monitor", "quality.alarm", alarm.reason)
    assert stored["subject"].startswith(f"{FAMILIAR}, verification ")
    assert stored["created_at"] == 2000.0 + alarm.answers - 1
    assert stored["details"] == msgspec.to_builtins(alarm)


async def recoveries(engine: AsyncEngine) -> list[dict[str, Any]]:
    return [dict(row) for row in await rows(engine, audit_events) if row["action"] == "quality.recovery"]


async def test_good_answers_beyond_what_was_predicted_and_beyond_those_before_are_a_recovery(
    engine: AsyncEngine,
) -> None:
    for number in range(40):
        await verdict(engine, number, at=2000.0 + number, worse=number < 10)
    settings = ShiftSettings(false_alarm_every=20.0, tolerance=0.0, reference=10**9)
    await ShiftWatch(engine, settings).catch_up()
    [stored] = await recoveries(engine)
    details = stored["details"]
    assert (details["rate"], details["since"], details["tenant"]) == (1.0, 2010.0, "alice")
    assert stored["reason"] == (
        f"100% of the last {details['answers']} verified answers were as good as the strongest tier's, at most 70% "
        f"were expected (evidence {details['evidence']:.3g})"
    )


@pytest.mark.parametrize("labels", [[4.0, 200.0, 200.0], [60.0, 0.0, 0.0]])
async def test_a_tier_that_was_always_better_than_predicted_has_not_recovered(
    engine: AsyncEngine, labels: list[float]
) -> None:
    for number in range(60):
        await verdict(engine, number, at=2000.0 + number, labels=labels)
    watch = ShiftWatch(engine, ShiftSettings(false_alarm_every=20.0, reference=10**9))
    assert await watch.catch_up() == []
    assert await tenants_changes(engine) == {}


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_tier_that_was_bad_before_a_promotion_recovers_after_it(engine: AsyncEngine, restarted: bool) -> None:
    watch = ShiftWatch(engine, ShiftSettings(false_alarm_every=20.0, reference=10**9))
    for number in range(10):
        await verdict(engine, number, at=2000.0 + number, worse=True)
    if not restarted:
        await watch.catch_up()
    await promoted(engine, 2010.0)
    for number in range(10, 50):
        await verdict(engine, number, at=2001.0 + number)
    await watch.catch_up()
    [stored] = await recoveries(engine)
    assert stored["details"]["since"] == 2011.0


async def test_a_tier_changed_when_the_latest_alarm_says(engine: AsyncEngine) -> None:
    def event(stream: str, at: float, action: str = "quality.alarm", **details: Any) -> dict[str, Any]:
        return {
            "created_at": at, "actor": "monitor", "action": action, "subject": stream, "reason": "",
            "details": {"stream": stream} | details,
        }  # fmt: skip

    events = [
        event(FAMILIAR, 5.0, since=4.0, tenant="t"), event(FAMILIAR, 6.0, "quality.recovery", since=3.0, tenant="t"),
        event("tier 2, familiar prompts", 7.0, since=0.5), event("tier 2, unfamiliar prompts", 8.0, since=8.0),
        event("tier 3, familiar prompts", 9.0), event(FAMILIAR, 9.0, "quality.other", since=9.0, tenant="t"),
    ]  # fmt: skip
    async with engine.begin() as connection:
        await connection.execute(insert(audit_events), events)
    assert await tenants_changes(engine) == {"t": {1: 4.0}, None: {2: 0.5}}


async def test_what_people_say_is_neither_in_the_share_nor_in_its_alarm(engine: AsyncEngine) -> None:
    rule = UpgradeSettings(window=4, threshold=0.25, min_sample=2)
    for number in range(3):
        await verdict(engine, number, at=2000.0 + number)
    for number in range(3, 9):
        await verdict(engine, number, worse=True, at=2000.0 + number, judge=PEOPLE)
    assert await recent_verdicts(engine, 1, 100) == [True] * 3
    assert await recent_verdicts(engine, None, 100) == [True] * 3
    assert await ShareWatch(engine, rule).catch_up() is None


async def test_the_share_of_the_verdicts_after_the_last_alarm_or_promotion_alarms(engine: AsyncEngine) -> None:
    rule = UpgradeSettings(window=4, threshold=0.25, min_sample=2)
    for number in range(6):
        await verdict(engine, number, worse=number in (1, 4), at=2000.0 + number)
    watch = ShareWatch(engine, rule)
    assert await watch.catch_up() is None, "one of the last four"
    await verdict(engine, 6, worse=True, at=2006.0)
    alarm = await watch.catch_up()
    assert alarm is not None
    assert (alarm.since, alarm.until, alarm.stream) == (2003.0, 2006.0, STREAM)
    assert (alarm.needs_upgrade.count, alarm.needs_upgrade.total) == (2, 4)
    [stored] = await rows(engine, audit_events)
    assert (stored["created_at"], stored["actor"], stored["action"]) == (2006.0, "monitor", "quality.alarm")
    assert (stored["subject"], stored["reason"]) == (f"{STREAM}, 4 verdicts", alarm.reason)
    assert stored["details"] == msgspec.to_builtins(alarm)
    for number in (7, 8):
        assert await watch.catch_up() is None, "too few since the alarm"
        await verdict(engine, number, worse=True, at=2000.0 + number)
    async with engine.begin() as connection:
        version = {"version": "v2", "path": "", "status": "promoted", "reason": "", "metrics": {}, "created_at": 1.0}
        await connection.execute(insert(classifier_versions).values(**version, promoted_at=2007.5))
        # Neither another rule's alarm nor another event ends the window.
        other = {"created_at": 9000.0, "actor": "monitor", "reason": "", "details": {}}
        for action, subject in (("quality.alarm", FAMILIAR), ("quality.recovery", f"{STREAM}, 4 verdicts")):
            await connection.execute(insert(audit_events).values(other | {"action": action, "subject": subject}))
    assert await watch.catch_up() is None, "one since the promotion"
    await verdict(engine, 9, worse=True, at=2009.0)
    alarm = await watch.catch_up()
    assert alarm is not None
    assert (alarm.since, alarm.until) == (2008.0, 2009.0)


async def promoted(engine: AsyncEngine, at: float) -> None:
    async with engine.begin() as connection:
        version = {"version": "v2", "path": "", "status": "promoted", "reason": "", "metrics": {}, "created_at": 1.0}
        await connection.execute(insert(classifier_versions).values(**version, promoted_at=at))


@pytest.mark.parametrize(
    ("promotion", "at", "counts"),
    [(None, 0.0, True), (None, 0.5, True), (0.5, 0.25, False), (0.5, 0.5, True)],
)
async def test_verdicts_count_from_the_beginning_of_time_or_from_a_promotion_on(
    engine: AsyncEngine, promotion: float | None, at: float, counts: bool
) -> None:
    await verdict(engine, 1, worse=True, at=at)
    if promotion is not None:
        await promoted(engine, promotion)
    assert (await seen(ShiftWatch(engine, DEAF)) > 0) == counts


async def test_a_share_of_the_first_moment_alarms_too(engine: AsyncEngine) -> None:
    await verdict(engine, 1, worse=True, at=0.5)
    alarm = await ShareWatch(engine, UpgradeSettings(window=1, threshold=0.5, min_sample=1)).catch_up()
    assert alarm is not None
    assert alarm.until == 0.5


def test_a_change_in_the_first_moment_is_one() -> None:
    for changes in ({None: {1: 0.5}}, {"t": {1: 0.5}}):
        assert changes_for(changes, "t") == {1: 0.5}
