"""The monitor: from an offered record to a stored verdict, through faults and restarts, at batch priority."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import count

import msgspec
import numpy as np
import pytest
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.complexity.classes import Complexity
from migrations.tables.audit import audit_events
from migrations.tables.quality import classifier_versions, training_rows, verifications
from quality.estimates.kinds import acceptance
from quality.judges.calibration import calibrate
from quality.judges.exact import ExactJudge
from quality.judges.judge import Judge
from quality.judges.pairwise import PairwiseJudge
from quality.judges.panel import Panel
from quality.judges.similarity import SimilarityJudge
from quality.judges.synthetic_pairs import graded_pairs
from quality.monitor.e_detector import ShiftAlarm, ShiftSettings
from quality.monitor.monitor import Monitor, MonitorSettings
from quality.monitor.shift_watch import ShiftWatch
from quality.records.record import Record
from quality.verification.queue import VerificationQueue
from quality.verification.sampling import Draw, SamplingSettings
from quality.verification.training_rows import Encode
from quality.verification.verifier import EncodedPrompt
from tests.quality.loop_world import ScriptedTier, ladder, price, record, rows, store_request, unavailable
from tiers.tier import Tier

EVERY = SamplingSettings(rates=(1.0,) * 4, least_attention=1.0, probe_rate=0.0, budget_share=1e6)
TIERS = ["one", "two", "three", "four"]
ALL = MonitorSettings(sampling=EVERY, retry_seconds=0.0, max_attempts=3)


async def _encode(messages: list[dict[str, str]]) -> EncodedPrompt:
    vector = np.full(2, float(len(messages[-1]["content"])), dtype="<f4")
    return EncodedPrompt(feature_spec="test-1", embedding=vector.tobytes(), features=None)


async def _monitor(
    engine: AsyncEngine,
    verifier: ScriptedTier,
    settings: MonitorSettings = ALL,
    judges: Sequence[Judge] = (ExactJudge(), SimilarityJudge()),
    alarms: list[ShiftAlarm] | None = None,
    encode: Encode = _encode,
    tiers: Sequence[Tier] | None = None,
    clock: Callable[[], float] = lambda: 1500.0,
) -> Monitor:
    async def on_alarm(alarm: ShiftAlarm) -> None:
        if alarms is not None:
            alarms.append(alarm)

    calibration = await calibrate(ExactJudge(), graded_pairs())
    panel = Panel(judges, {"exact": calibration})
    return Monitor(
        engine,
        tiers or ladder(verifier),
        settings,
        price=price,
        panel=panel,
        encode=encode,
        on_alarm=on_alarm,
        fingerprints=lambda: TIERS,
        clock=clock,
    )


async def _serve(monitor: Monitor, engine: AsyncEngine, *records: Record) -> None:
    for served in records:
        await store_request(engine, served)
        monitor.offer(served)
    await monitor.drain()


async def test_a_good_answer_becomes_a_label_and_a_training_row(engine: AsyncEngine) -> None:
    monitor = await _monitor(engine, ScriptedTier(reply=lambda request: "The answer is 7."))
    await monitor.start()

    await _serve(monitor, engine, record("req-1", tier=2))
    await monitor.close()

    [verdict] = await rows(engine, verifications)
    assert (verdict["status"], verdict["label"], verdict["judge"]) == ("done", "no_worse", "exact")
    assert (verdict["tier"], verdict["verifier_tier"], verdict["sampled_probability"]) == (2, 4, 1.0)
    [learned] = await rows(engine, training_rows)
    assert learned["no_worse"] == [None, True, None, True]
    assert learned["weights"][0] == 0.0
    assert learned["weights"][1] > 0.9
    assert (learned["feature_spec"], learned["correct"], learned["key_id"]) == ("test-1", None, "alice")
    assert learned["tiers"] == TIERS


async def test_a_wrong_answer_is_labelled_worse(engine: AsyncEngine) -> None:
    monitor = await _monitor(engine, ScriptedTier())
    await monitor.start()

    await _serve(monitor, engine, record("req-1", answer="8"))
    await monitor.close()

    [learned] = await rows(engine, training_rows)
    assert learned["no_worse"] == [False, None, None, True]


async def test_verification_costs_what_the_tier_billed(engine: AsyncEngine) -> None:
    monitor = await _monitor(engine, ScriptedTier())
    await monitor.start()

    await _serve(monitor, engine, record("req-1", prompt="What is 3 + 4"))
    await monitor.close()

    [verdict] = await rows(engine, verifications)
    assert verdict["cost_usd"] == pytest.approx(4 * (5 + 5) / 1000)


async def test_a_probe_asks_every_other_tier_and_teaches_all_outcomes(engine: AsyncEngine) -> None:
    settings = msgspec.structs.replace(ALL, sampling=msgspec.structs.replace(EVERY, probe_rate=1.0))
    tiers = [ScriptedTier(1, reply=lambda request: "8"), ScriptedTier(2), ScriptedTier(3), ScriptedTier()]
    monitor = await _monitor(engine, tiers[-1], settings, tiers=tiers)
    await monitor.start()

    await _serve(monitor, engine, record("req-1", tier=2))
    evidence = (await monitor.status()).evidence_of_shift
    await monitor.close()

    found = {row["tier"]: row["label"] for row in await rows(engine, verifications)}
    assert found == {1: "worse", 2: "no_worse", 3: "no_worse"}
    # Each tier is looked at by what the probe said of it; prompts of the class by what was served.
    assert {f"tier {tier}, familiar prompts" for tier in (1, 2, 3)} <= set(evidence)
    assert evidence["tier 1, familiar prompts"] > 1 > evidence["tier 2, familiar prompts"]
    assert sum(stream in {f"{one.name} prompts" for one in Complexity} for stream in evidence) <= 1
    # The strongest is asked again about the worse answer; the third tier's answer is its second opinion.
    assert [len(tier.seen) for tier in tiers] == [1, 0, 1, 2]
    [learned] = await rows(engine, training_rows)
    assert (learned["source"], learned["no_worse"]) == ("probe", [False, True, True, True])
    assert all(learned["weights"][:3])


@pytest.mark.parametrize(
    ("served", "asked", "judged"),
    # Tier 4 is asked again about a worse answer, and tier 2 has the second opinion.
    [(4, [0, 1, 1, 1], {3: "worse"}), (3, [0, 1, 0, 1], {2: "no_worse", 3: "no_worse"})],
)
async def test_a_dear_answer_is_compared_with_the_tier_below_to_find_what_was_overpaid(
    engine: AsyncEngine, served: int, asked: list[int], judged: dict[int, str]
) -> None:
    tiers = [ScriptedTier(1), ScriptedTier(2), ScriptedTier(3, reply=lambda request: "8"), ScriptedTier()]
    monitor = await _monitor(engine, tiers[-1], tiers=tiers)
    await monitor.start()

    await _serve(monitor, engine, record("req-1", tier=served))
    await monitor.close()

    found = await rows(engine, verifications)
    assert {row["tier"]: row["label"] for row in found} == judged
    assert {row["sampled_reason"] for row in found} == {"downgrade"}
    assert [len(tier.seen) for tier in tiers] == asked


async def test_a_probe_is_billed_once_within_its_bound(engine: AsyncEngine) -> None:
    settings = msgspec.structs.replace(ALL, sampling=msgspec.structs.replace(EVERY, probe_rate=1.0))
    monitor = await _monitor(engine, ScriptedTier(), settings)
    await monitor.start()

    await _serve(monitor, engine, record("req-1", tier=2, prompt="What is 3 + 4"))
    await monitor.close()

    found = await rows(engine, verifications)
    # Tiers 1, 3 and 4 answered with 5 tokens each after 5 of the prompt; the second tier's answer was there.
    assert sum(row["cost_usd"] for row in found) == pytest.approx((1 + 3 + 4) * (5 + 5) / 1000)


async def test_an_open_question_is_stored_without_a_label_and_says_why(engine: AsyncEngine) -> None:
    monitor = await _monitor(engine, ScriptedTier(reply=lambda request: "A city in France."))
    await monitor.start()

    await _serve(monitor, engine, record("req-1", prompt="Tell me about Lyon.", answer="A town in France."))
    await monitor.close()

    [verdict] = await rows(engine, verifications)
    assert (verdict["status"], verdict["label"], verdict["judge"]) == ("done", None, None)
    assert "no judge decided" in verdict["reason"]
    assert 0 < verdict["scores"]["similarity"] < 1
    assert await rows(engine, training_rows) == []


async def test_an_uncalibrated_pairwise_judge_makes_no_label_but_its_cost_counts(engine: AsyncEngine) -> None:
    verifier = ScriptedTier(reply=lambda request: "FIRST")
    monitor = await _monitor(engine, verifier, judges=[PairwiseJudge(verifier)])
    await monitor.start()

    await _serve(monitor, engine, record("req-1", prompt="Tell me about Lyon."))
    await monitor.close()

    [verdict] = await rows(engine, verifications)
    assert (verdict["label"], verdict["judge"]) == (None, "pairwise")
    assert "reliability of judge pairwise is unknown" in verdict["reason"]
    assert len(verifier.seen) == 3
    asked = sum(verifier.count_prompt_tokens(request) + 5 for request in verifier.seen)
    assert verdict["cost_usd"] == pytest.approx(4 * asked / 1000)


async def test_a_cut_off_reference_makes_no_label(engine: AsyncEngine) -> None:
    monitor = await _monitor(engine, ScriptedTier(finish_reason="length"))
    await monitor.start()

    await _serve(monitor, engine, record("req-1"))
    await monitor.close()

    [verdict] = await rows(engine, verifications)
    assert (verdict["status"], verdict["label"]) == ("done", None)
    assert "cut off" in verdict["reason"]


async def test_verification_runs_at_batch_priority_and_greedily(engine: AsyncEngine) -> None:
    verifier = ScriptedTier()
    monitor = await _monitor(engine, verifier)
    await monitor.start()

    await _serve(monitor, engine, record("req-1"))
    await monitor.close()

    [request] = verifier.seen
    assert (request.priority, request.sampling.temperature, request.deadline) == (2, 0.0, None)


async def test_nothing_starts_while_users_wait_for_the_verifier(engine: AsyncEngine) -> None:
    verifier = ScriptedTier()
    verifier.waiting = 1
    monitor = await _monitor(engine, verifier)
    await monitor.start()
    await _serve(monitor, engine, record("req-1"))
    assert verifier.seen == []

    verifier.waiting = 0
    await monitor.drain()
    await monitor.close()

    assert len(verifier.seen) == 1


async def test_offering_does_no_work_on_the_callers_path(engine: AsyncEngine) -> None:
    monitor = await _monitor(engine, ScriptedTier())

    for i in range(50):
        monitor.offer(record(f"req-{i}"))

    assert await rows(engine, verifications) == []


async def test_offers_beyond_the_bound_are_dropped_and_counted(engine: AsyncEngine) -> None:
    monitor = await _monitor(engine, ScriptedTier(), msgspec.structs.replace(ALL, max_offered=3))

    for i in range(5):
        monitor.offer(record(f"req-{i}"))

    assert (await monitor.status()).dropped == 2


async def test_records_without_texts_are_never_verified(engine: AsyncEngine) -> None:
    verifier = ScriptedTier()
    monitor = await _monitor(engine, verifier)
    await monitor.start()

    await _serve(monitor, engine, record("req-1", messages=None, answer=None))
    await monitor.close()

    assert await rows(engine, verifications) == []
    assert verifier.seen == []


async def test_a_spent_budget_stops_sampling(engine: AsyncEngine) -> None:
    # A reference answer may cost up to 4 * (10 + 1024) / 1000 dollars; 5% of one dollar does not pay for that.
    monitor = await _monitor(
        engine, ScriptedTier(), MonitorSettings(sampling=msgspec.structs.replace(EVERY, budget_share=0.05))
    )
    await monitor.start()

    await _serve(monitor, engine, record("req-1"))
    await monitor.close()

    assert await rows(engine, verifications) == []


async def test_a_probe_that_its_budget_does_not_cover_holds_up_no_other_verification(any_engine: AsyncEngine) -> None:
    served = [record(f"req-{i}", created_at=1400.0) for i in range(2)]
    for one in served:
        await store_request(any_engine, one)
    sampling = msgspec.structs.replace(EVERY, budget_share=1.0, probe_share=0.0)
    settings = msgspec.structs.replace(ALL, sampling=sampling, max_tokens=64)
    monitor = await _monitor(any_engine, ScriptedTier(), settings)
    queue = VerificationQueue(any_engine, sampling, lease_seconds=600.0, max_attempts=3)
    probe, sample = (Draw(sampled=True, probability=1.0, reason="drawn", purpose=of) for of in ("probe", "sample"))
    await queue.add(served[0], probe, 1400.0)
    await queue.add(served[1], sample, 1401.0)

    await monitor.start()
    await monitor.drain()
    await monitor.close()

    found = {row["request_id"]: row["status"] for row in await rows(any_engine, verifications)}
    assert found == {"req-0": "pending", "req-1": "done"}


async def test_replicas_that_verify_at_once_spend_no_more_than_their_budget(any_engine: AsyncEngine) -> None:
    served = [record(f"req-{i}", created_at=1400.0) for i in range(12)]
    for one in served:
        await store_request(any_engine, one)
    # Twelve dollars were served. A verification bills five tokens of tier 4 and may bill many more: room for few.
    sampling = msgspec.structs.replace(EVERY, budget_share=0.05, probe_share=0.0)
    settings = msgspec.structs.replace(ALL, sampling=sampling, max_tokens=64, second_opinions=0)
    replicas = [await _monitor(any_engine, ScriptedTier(), settings) for _ in range(3)]
    queue = VerificationQueue(any_engine, sampling, lease_seconds=600.0, max_attempts=3)
    for place, one in enumerate(served):
        await queue.add(one, Draw(sampled=True, probability=1.0, reason="drawn"), 1400.0 + place)

    await asyncio.gather(*(replica.start() for replica in replicas))
    await asyncio.gather(*(replica.drain() for replica in replicas))
    await asyncio.gather(*(replica.close() for replica in replicas))

    spending = await queue.spending(1500.0)
    done = [row for row in await rows(any_engine, verifications) if row["status"] == "done"]
    assert spending.serving_usd == 12.0
    assert 0.25 < spending.committed_usd <= 0.05 * 12.0
    assert 0 < len(done) < len(served)


async def test_a_failing_verifier_is_retried_until_it_rules(
    engine: AsyncEngine,
) -> None:
    verifier = ScriptedTier(faults=[unavailable(), unavailable()])
    monitor = await _monitor(engine, verifier)
    await monitor.start()

    await _serve(monitor, engine, record("req-1"))
    await monitor.close()

    [verdict] = await rows(engine, verifications)
    assert (verdict["status"], verdict["attempts"], verdict["label"], verdict["error"]) == ("done", 3, "no_worse", None)


async def test_a_verifier_that_keeps_failing_is_given_up_with_the_reason(engine: AsyncEngine) -> None:
    monitor = await _monitor(engine, ScriptedTier(faults=[unavailable()] * 3))
    await monitor.start()

    await _serve(monitor, engine, record("req-1"), record("req-2"))
    await monitor.close()

    bad, good = await rows(engine, verifications)
    assert (bad["status"], good["status"]) == ("failed", "done")
    assert "the core is gone" in bad["error"]


async def test_an_answer_that_never_comes_ends_with_the_lease(engine: AsyncEngine) -> None:
    stuck = ScriptedTier()
    stuck.hold = asyncio.Event()
    monitor = await _monitor(engine, stuck, msgspec.structs.replace(ALL, lease_seconds=0.01, max_attempts=1))
    await monitor.start()

    await _serve(monitor, engine, record("req-1"))
    await monitor.close()

    [verdict] = await rows(engine, verifications)
    assert verdict["status"] == "failed"
    # What the aborted answer cost is not known; what was reserved counts: two answers of tier 4, and one of tier 3.
    assert verdict["cost_usd"] == pytest.approx((4 + 4 + 3) * (10 + 1024) / 1000)


async def test_a_failing_encoder_counts_as_a_failed_attempt(engine: AsyncEngine) -> None:
    async def broken(messages: list[dict[str, str]]) -> EncodedPrompt:
        raise RuntimeError("no such table")

    monitor = await _monitor(engine, ScriptedTier(), encode=broken)
    await monitor.start()

    await _serve(monitor, engine, record("req-1"))
    await monitor.close()

    [verdict] = await rows(engine, verifications)
    assert verdict["status"] == "failed"
    assert "no such table" in verdict["error"]


async def test_a_poisoned_request_does_not_block_the_queue(engine: AsyncEngine) -> None:
    monitor = await _monitor(engine, ScriptedTier())
    await monitor.start()

    await _serve(monitor, engine, record("req-1", messages=[{"content": "no role"}]), record("req-2"))
    await monitor.close()

    assert [row["status"] for row in await rows(engine, verifications)] == ["failed", "done"]


async def test_a_restart_goes_on_with_what_was_queued_and_what_was_under_way(engine: AsyncEngine) -> None:
    stuck = ScriptedTier()
    stuck.hold = asyncio.Event()
    first = await _monitor(engine, stuck)
    await first.start()
    for i in range(3):
        await store_request(engine, record(f"req-{i}"))
        first.offer(record(f"req-{i}"))
    await stuck.entered.wait()
    await first.close()

    second = await _monitor(engine, ScriptedTier())
    await second.start()
    await second.drain()
    await second.close()

    assert [row["status"] for row in await rows(engine, verifications)] == ["done"] * 3


async def test_the_alarm_rings_once_when_a_tier_begins_to_disappoint(engine: AsyncEngine) -> None:
    alarms: list[ShiftAlarm] = []
    # Tier 1 is predicted to be worse in 30%, and ten bad answers in a row are far from that.
    settings = msgspec.structs.replace(ALL, shift=ShiftSettings(false_alarm_every=1000.0))
    monitor = await _monitor(engine, ScriptedTier(), settings, alarms=alarms)
    await monitor.start()

    good = [record(f"good-{i}") for i in range(9)]
    bad = [record(f"bad-{i}", answer="8") for i in range(10)]
    await _serve(monitor, engine, *good, *bad)
    evidence = (await monitor.status()).evidence_of_shift
    await monitor.close()

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
        monitor = await _monitor(engine, ScriptedTier(), settings, alarms=alarms)
        await monitor.start()
        await _serve(monitor, engine, *served)
        await monitor.close()
    watch = ShiftWatch(engine, settings.shift)

    assert [len(alarms) for alarms in heard] == [0, 1, 0]
    assert await watch.catch_up() == []
    assert watch.evidence()


async def test_after_a_promotion_only_new_verdicts_count(engine: AsyncEngine) -> None:
    monitor = await _monitor(engine, ScriptedTier())
    await monitor.start()
    await _serve(monitor, engine, *(record(f"bad-{i}", answer="8") for i in range(4)))
    watch = ShiftWatch(engine, ShiftSettings())
    await watch.catch_up()
    before = watch.evidence()

    async with engine.begin() as connection:
        version = {"version": "v2", "path": "", "status": "promoted", "reason": "", "metrics": {}, "created_at": 1.0}
        await connection.execute(insert(classifier_versions).values(**version, promoted_at=1600.0))
    await watch.catch_up()
    await monitor.close()

    assert before["tier 1, familiar prompts"] > 1
    assert watch.evidence() == {}


async def test_upgrade_rates_are_per_tier_and_over_all(engine: AsyncEngine) -> None:
    monitor = await _monitor(engine, ScriptedTier())
    await monitor.start()
    await _serve(
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
    await monitor.close()

    assert (every.needs_upgrade.count, every.needs_upgrade.total) == (1, 4)
    assert (first.needs_upgrade.count, first.needs_upgrade.total) == (1, 2)
    assert (latest.needs_upgrade.count, latest.needs_upgrade.total) == (0, 1)


async def test_acceptance_is_the_share_no_worse_per_tier(engine: AsyncEngine) -> None:
    monitor = await _monitor(engine, ScriptedTier())
    await monitor.start()
    await _serve(monitor, engine, record("req-1", answer="8"), record("req-2"), record("req-3", tier=2))
    await monitor.close()

    shares = (await acceptance(engine)).by_tier

    assert {tier: (share.count, share.total) for tier, share in shares.items()} == {1: (1, 2), 2: (1, 1)}
    assert shares[2].low < 0.5


async def test_the_status_shows_the_queue_and_the_money(engine: AsyncEngine) -> None:
    # What was spent is summed again when a second is over.
    monitor = await _monitor(engine, ScriptedTier(), clock=count(1500.0).__next__)
    await monitor.start()
    await _serve(monitor, engine, record("req-1"), record("req-2", prompt="Tell me about Lyon.", answer="A city"))

    status = await monitor.status()
    await monitor.close()

    assert (status.queue.pending, status.queue.done, status.queue.labelled) == (0, 2, 1)
    assert (status.offered, status.sampled, status.dropped) == (2, 2, 0)
    assert status.spending.serving_usd == 2.0
    assert status.spending.committed_usd > 0
    assert [calibration.judge for calibration in status.calibrations] == ["exact"]


async def test_draining_a_monitor_that_does_not_run_is_an_error(engine: AsyncEngine) -> None:
    monitor = await _monitor(engine, ScriptedTier())

    with pytest.raises(RuntimeError, match="call start"):
        await monitor.drain()
