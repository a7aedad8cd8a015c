"""The quality loop of a running gateway: every answer is offered, retraining is scheduled and started by alarms."""

import asyncio
import re
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import msgspec
import pytest
from sqlalchemy import insert, select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.policy.experiment_split import Arm, Split
from classifier.registry.artefact import default_artefact, load_manifest, load_model_tensors, save_artefact
from classifier.registry.registry import ArtefactRegistry
from gateway.base.settings import Settings
from gateway.operations.labels.loop_setup import show_loop
from gateway.telemetry.alert_rules import RULES
from gateway.telemetry.alerts import keep_looking
from gateway.telemetry.metrics import Metrics
from migrations.tables.audit import audit_events
from migrations.tables.quality import retrain_runs
from quality.judges.calibration import Calibration
from quality.judges.panel import Panel, store_calibration
from quality.monitor.detectors import ShiftAlarm
from quality.retraining.retrain import RetrainResult
from quality.store.queries import insert_records
from quality.verification.judging import OpinionsGiven
from tests.gateway.operations.running_loop import made_loop, running_loop
from tests.gateway.telemetry.alert_desk import alert_url
from tests.quality.judges.test_self_calibration import knowing
from tests.quality.loop_world import ScriptedTier as KnowingTier
from tests.quality.loop_world import record, rows, store_request
from tests.quality.store.records import make_record
from tests.support.app import StartApp, running_gateway, scripted_tiers
from tests.support.database import migrated
from tests.support.upstream import Call, LoopbackServer
from tiers.catalog.load import load_catalog
from tiers.tier import Tier

ALARM = ShiftAlarm(stream="tier 1", evidence=2e4, answers=100, rate=0.5, allowed=0.2, since=0.0)
HELLO = [{"role": "user", "content": "Say hello."}]


async def test_every_finished_answer_is_offered_to_the_monitor(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered: list[str] = []
    monkeypatch.setattr("gateway.app.offer_answer", lambda loop, to, answer, record: offered.append(record.request_id))
    async with running_gateway(msgspec.structs.replace(settings, monitor=True)) as gateway:
        whole = await gateway.openai.chat.completions.create(model="tier-1", messages=HELLO)
        stream = await gateway.openai.chat.completions.create(model="tier-1", messages=HELLO, stream=True)
        chunks = [chunk async for chunk in stream]
    assert offered == [whole.id, chunks[0].id]


async def test_the_loop_schedules_retraining_and_an_alarm_starts_one(settings: Settings) -> None:
    async with running_loop(settings) as (loop, _, engine):
        next_run = loop.job.next_run()
        assert next_run is not None
        assert (next_run.hour, next_run.minute, next_run.strftime("%a")) == (3, 0, "Sun")
        await loop.on_alarm(ALARM)
        await loop.retraining_ended()
        async with engine.connect() as connection:
            actions = (await connection.scalars(select(audit_events.c.action))).all()
        assert "retrain.nothing_new" in actions


@pytest.mark.parametrize("trigger", ["evidence", "share"])
async def test_the_share_of_worse_answers_starts_a_retraining_where_it_is_the_trigger(
    settings: Settings, trigger: Literal["evidence", "share"]
) -> None:
    """QM-04: one in six verified answers is worse, which is less than the version predicts (30%)."""
    tiers: dict[int, Tier] = {number: KnowingTier(number) for number in (1, 2, 3, 4)}
    given = msgspec.structs.replace(
        settings, retrain_trigger=trigger, retrain_cron="", sampling_rate=1.0, verification_budget=1e6
    )
    async with running_loop(given, tiers) as (loop, monitor, engine):
        for number in range(60):
            served = record(f"sum-{number}", answer="7" if number % 6 else "8")
            await store_request(engine, served)
            monitor.offer(served)
        await monitor.drain()
        await loop.retraining_ended()
        runs = await rows(engine, retrain_runs)
    assert [run["trigger"] for run in runs] == (["drift"] if trigger == "share" else [])


async def test_judges_are_set_up_again_for_another_catalogue_by_its_measurements(settings: Settings) -> None:
    tiers = {tier.number: tier for tier in scripted_tiers()}
    catalog = load_catalog("laptop")
    trusted = Calibration(
        judge="pairwise", true_no_worse=90, false_worse=5, true_worse=90, false_no_worse=5, abstained=0
    )
    async with made_loop(settings, tiers, catalog) as (loop, engine):

        def judges() -> list[str]:
            assert loop.monitor is not None
            return [judge.name for judge in loop.monitor.panel.judges]

        await loop.renew()  # before there is a monitor there is nothing to renew
        await store_calibration(engine, trusted, catalog.fingerprint, 1.0, "test")
        await loop.start()
        assert judges()[-1] == "pairwise"
        before = catalog.fingerprint
        catalog.tiers[-1] = msgspec.structs.replace(catalog.tiers[-1], model="smollm2-int4")
        assert catalog.fingerprint != before
        await loop.renew()
        ruled = judges()
        assert "pairwise" not in ruled
        await store_calibration(engine, trusted, catalog.fingerprint, 2.0, "test")
        tiers[4].model = "another"
        await loop.renew()
        assert judges() == [*ruled, "pairwise"]
        assert loop.monitor is not None
        assert loop.monitor.panel.judges[-1].model == "another"
        # Its accuracy is unknown then, so the judge that asks a model does not judge.
        async with engine.begin() as connection:
            await connection.execute(text("ALTER TABLE audit_events RENAME TO away"))
        await loop.renew()
        assert judges() == ruled
        async with engine.begin() as connection:
            await connection.execute(text("ALTER TABLE away RENAME TO audit_events"))


async def test_the_first_open_answer_that_is_drawn_starts_the_test_of_the_judge(settings: Settings) -> None:
    strongest = knowing(0.08)
    tiers: dict[int, Tier] = {1: KnowingTier(1), 2: KnowingTier(2), 3: KnowingTier(3), 4: strongest}
    given = msgspec.structs.replace(settings, sampling_rate=1.0, verification_budget=1e6, cold_start_usd=1.0)
    async with running_loop(given, tiers) as (loop, monitor, engine):
        await loop._judging.drain()
        assert strongest.seen == []
        for number in range(20):
            served = record(f"open-{number}", prompt="Tell me about Lyon.", answer="A town.")
            await store_request(engine, served)
            monitor.offer(served)
        await monitor.drain()
        await loop._judging.drain()
        assert monitor.panel.may_label("Tell me about Lyon.", None)
        tested = [row for row in await rows(engine, audit_events) if row["action"] == "judge.calibrating"]
        [spent] = [row["details"]["spent_usd"] for row in tested]
        assert 0 < spent <= 0.5
        asked = len(strongest.seen)
        async with running_loop(given, tiers) as (again, _, _):
            await again._judging.drain()
            assert again.judge.state == "trusted"
        assert (again.judge, len(strongest.seen)) == (loop.judge, asked)


async def test_a_judge_that_is_not_trusted_is_tested_once(settings: Settings) -> None:
    strongest = knowing(0.5)
    tiers: dict[int, Tier] = {1: KnowingTier(1), 2: KnowingTier(2), 3: KnowingTier(3), 4: strongest}
    catalog = load_catalog("laptop")
    given = msgspec.structs.replace(settings, sampling_rate=1.0, verification_budget=1e6, cold_start_usd=100.0)
    async with running_loop(given, tiers, catalog) as (loop, monitor, engine):

        async def draw(first: int) -> Panel:
            for number in range(first, first + 20):
                served = record(f"open-{number}", prompt="Tell me about Lyon.", answer="A town.")
                await store_request(engine, served)
                monitor.offer(served)
            await monitor.drain()
            await loop._judging.drain()
            return monitor.panel

        panel = await draw(0)
        asked = len(strongest.seen)
        assert asked
        assert not panel.may_label("Tell me about Lyon.", None)
        assert await draw(20) is panel
        # Another catalogue may have another strongest tier; what is known of this one is read.
        loop.catalog.switch_to(catalog)
        await draw(40)
        assert loop.judge.state == "refused"
        assert len(strongest.seen) == asked


async def test_a_refused_retraining_after_an_alarm_is_tried_again_a_day_later_and_others_are_not(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome, asked, later = ["refused"], [], []

    async def run(registry: object, ordered: object, engine: AsyncEngine, trigger: str, **due: object) -> RetrainResult:
        asked.append(trigger)
        return RetrainResult(run_id="r", outcome=outcome[0], reason="", incumbent="v1")  # type: ignore[arg-type]

    class Clock:
        def call_later(self, seconds: float, call: Callable[..., object], *args: object) -> asyncio.TimerHandle:
            later.append((seconds, lambda: call(*args)))
            return running.call_later(1e6, lambda: None)

    monkeypatch.setattr("quality.quality_loop.run_retraining", run)
    running = asyncio.get_running_loop()
    async with made_loop(settings, {}) as (loop, _):
        with monkeypatch.context() as patched:
            patched.setattr("quality.quality_loop.asyncio.get_running_loop", Clock)
            await loop.on_alarm(ALARM)
            await loop.retraining_ended()
            [(seconds, again)] = later
            outcome[0] = "canary"
            again()
            await loop.retraining_ended()
            outcome[0] = "refused"
            loop._begin_retraining("button")
            await loop.retraining_ended()
    assert seconds == 86_400
    assert asked == ["drift", "drift", "button"]
    assert len(later) == 1


async def test_the_loop_looks_after_rollouts_and_experiments(settings: Settings) -> None:
    registry = ArtefactRegistry(settings.registry_path)
    registry.seed(default_artefact())
    split = Split(experiment_id="x", share=0.5, a=Arm(tier=1), b=Arm(tier=2))
    async with running_loop(settings) as (loop, _, _):
        # The database knows neither: the process that started them died before the commit.
        registry.set_experiment(split)
        manifest = msgspec.structs.replace(load_manifest(default_artefact()), version="v1-child")
        save_artefact(registry.root, manifest, load_model_tensors(default_artefact()))
        registry.start_canary("v1-child", 0.5)
        await loop._rollout.drain()
        assert (registry.experiment(), registry.canary()) == (None, None)


async def test_a_scheduled_run_before_the_first_start_of_the_loop_is_made_up_for_once(settings: Settings) -> None:
    async with made_loop(settings) as (one, engine), made_loop(settings) as (other, _):
        async with engine.begin() as connection:
            await insert_records(connection, [make_record(created_at=time.time() - 8 * 86_400)])
        await asyncio.gather(one.job.check(), other.job.check())
        made = [(run["trigger"], run["status"]) for run in await rows(engine, retrain_runs)]
    assert made == [("cron", "done")]


async def test_a_start_that_failed_half_way_is_repeated_without_a_second_monitor(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse() -> None:
        raise ConnectionRefusedError("database away")

    async with made_loop(settings) as (loop, _):
        with monkeypatch.context() as patched:
            patched.setattr(loop.job, "start", refuse)
            with pytest.raises(ConnectionRefusedError):
                await loop.start()
        first = loop.monitor
        assert first is not None
        await loop.start()
        assert loop.monitor is first
        assert loop.job.next_run() is not None


async def test_metrics_show_upgrade_rates_without_failing_on_an_empty_store(app: StartApp) -> None:
    gateway = await app(monitor=True)
    assert (await gateway.http.get("/metrics")).status_code == 200


async def test_second_opinions_are_as_many_as_set_and_metrics_count_each_once(settings: Settings) -> None:
    metrics = Metrics()
    given = msgspec.structs.replace(settings, second_opinions=1)
    async with running_loop(given) as (loop, monitor, _):
        assert monitor.settings.second_opinions == 1
        for confirmed in (2, 3):
            monitor.worker.second_opinions = OpinionsGiven(confirmed=confirmed, uncertain=1, cost_usd=0.25)
            await show_loop(loop, metrics)
    text = metrics.own_exposition([], private=True).decode()
    assert 'aio_second_opinions_total{result="confirmed"} 3.0' in text
    assert 'aio_second_opinions_total{result="uncertain"} 1.0' in text
    assert "aio_second_opinions_cost_usd_total 0.25" in text
    assert "aio_second_opinions_cost_usd_total" not in metrics.own_exposition([], private=False).decode()


@pytest.mark.usefixtures("ready_alert_sender")
async def test_an_overdue_retraining_alerts_and_is_in_health_and_metrics_with_the_last_refusal(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    day, now = 86_400.0, time.time()
    run = {"trigger": "cron", "owner": "o", "lease_until": 0.0}
    made = [
        {**run, "run_id": "r1", "status": "done", "created_at": now - 15 * day, "finished_at": now - 15 * day},
        {**run, "run_id": "r2", "status": "failed", "created_at": now - 60, "finished_at": now - 60, "error": "killed"},
    ]
    refusal = {
        "created_at": now - 15 * day, "actor": "a", "action": "classifier.refused", "subject": "r1",
        "reason": "7 newer rows; a comparison needs at least 50", "details": None,
    }  # fmt: skip
    async with migrated(settings.database) as engine, engine.begin() as connection:
        for one in made:
            await connection.execute(insert(retrain_runs).values(one))
        await connection.execute(insert(audit_events).values(refusal))
    rule = msgspec.structs.replace(next(r for r in RULES if r.figure == "retraining_days"), for_seconds=0.0)
    monkeypatch.setattr("gateway.telemetry.alerts.keep_looking", partial(keep_looking, rules=[rule]))
    heard = asyncio.Queue[dict[str, Any]]()

    async def hear(call: Call) -> None:
        await call.reply(202, {"status": "success"})
        heard.put_nowait(call.body)

    async with LoopbackServer(hear) as desk:
        telling = msgspec.structs.replace(settings, monitor=True, alert_urls=alert_url(desk), alert_poll_seconds=0.02)
        async with running_gateway(telling) as gateway:
            event = await asyncio.wait_for(heard.get(), 120)
            ready = (await gateway.http.get("/health/ready")).json()
            scraped = (await gateway.http.get("/metrics")).text
    said = "1 failed since the last success; last refused because 7 newer rows; a comparison needs at least 50"
    assert event["title"] == "AIO: AioRetrainingOverdue (warning)"
    assert event["message"].startswith(f"no successful retraining for 14 days (15); {said}\n")
    assert ready["problems"]["retraining"] == f"no successful retraining for 15 days; {said}"
    assert re.search(r"^aio_retraining_age_days 15\.0", scraped, re.MULTILINE)
    assert "aio_retraining_failed_runs 1.0" in scraped
    assert 'aio_retraining_refused_info{reason="7 newer rows; a comparison needs at least 50"} 1.0' in scraped
