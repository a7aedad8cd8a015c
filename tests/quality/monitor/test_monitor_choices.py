"""What the monitor lays before a draw, and what becomes of each offer: its bounds, its rates and its reasons."""

import asyncio
import logging
from typing import Any

import msgspec
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.quality import training_rows, verifications
from quality.judges import json_answers
from quality.judges.calibration import Calibration
from quality.judges.pairwise import PairwiseJudge
from quality.judges.panel import Panel
from quality.judges.rules import ExactJudge, SimilarityJudge
from quality.monitor import answer_monitor as monitor_module
from quality.monitor.answer_monitor import AnswerMonitor, MonitorSettings
from quality.records.record import Record
from quality.verification.job import Exchange
from quality.verification.sampling import Draw, SamplingSettings, Spending, attention
from tests.database_outage import outage
from tests.polling import eventually
from tests.quality.judges.scripted_replies import always
from tests.quality.loop_world import (
    ScriptedTerms,
    ScriptedTier,
    ladder,
    record,
    rows,
    store_request,
    unavailable,
)
from tests.quality.monitor.monitors import ALL, EVERY, TIERS, monitor_of, running_monitor, serve
from tiers.conversation import Call, Tool, Tooling, Turn
from tiers.tier import GenerationRequest, TierLoad

TRUSTED = Calibration(
    judge="pairwise", true_no_worse=90, false_worse=5, true_worse=90, false_no_worse=5, abstained=0, pairs="planted"
)
NO_OPINIONS = msgspec.structs.replace(ALL, second_opinions=0)
TOOLING = Tooling(tools=(Tool(name="mail"),), choice="auto", parallel=False)
TURN = Exchange(messages=(Turn.of("user", "What is 3 + 4?"),), text="7")
CALLING = msgspec.structs.replace(TURN, tooling=TOOLING, calls=(Call(id="c", name="mail", arguments="{}"),))


class Seen(msgspec.Struct):
    """What one draw was given."""

    spending: Spending
    bound: float
    sampling: SamplingSettings
    probe_bound: float
    has_turn: bool


@pytest.fixture
def draws(monkeypatch: pytest.MonkeyPatch) -> list[Seen]:
    """All draws of a test; they go on as usual."""
    seen, draw = list[Seen](), monitor_module.draw

    def noted(
        record: Record, spending: Spending, bound: float, sampling: SamplingSettings, probe: float,
        *, own: Spending | None, has_turn: bool,
    ) -> Any:  # fmt: skip
        seen.append(Seen(spending, bound, sampling, probe, has_turn))
        return draw(record, spending, bound, sampling, probe, own=own, has_turn=has_turn)

    monkeypatch.setattr(monitor_module, "draw", noted)
    return seen


def watched(request_id: str, would_be: int, tier: int = 4) -> Record:
    """An answer of `tier`, where routing would have taken another one."""
    made = record(request_id, tier=tier)
    return msgspec.structs.replace(made, decision=msgspec.structs.replace(made.decision, would_be=would_be))


async def decided(monitor: AnswerMonitor) -> None:
    """Wait until every offer is decided on, and nothing else."""
    await monitor._intake.start()
    await monitor._intake.drain()


def test_the_usual_settings() -> None:
    usual = msgspec.structs.asdict(MonitorSettings())
    assert {name: usual[name] for name in usual if name not in ("sampling", "upgrade", "shift")} == {
        "trigger": "evidence", "max_tokens": 1024, "second_opinions": 2, "max_attempts": 3, "lease_seconds": 600.0,
        "retry_seconds": 30.0, "expire_seconds": 86_400.0, "poll_seconds": 1.0, "max_offered": 1000, "max_held": 50,
        "result_seconds": 120.0, "cold_start_per_second": 2.0, "parallel": 1, "machine_share": 1.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "turn", "settings", "tiers", "tokens"),
    [
        # The strongest answers; opinions are asked for where it says "worse" alone.
        (record("r", tier=1), None, ALL, 4, 2),
        (record("r", tier=3), None, NO_OPINIONS, 4, 2),
        # As long as the given answer, up to the most, which is twice as long as that for answers with a turn.
        (record("r", tier=1, completion_tokens=600), None, NO_OPINIONS, 4, 600),
        (record("r", tier=1, completion_tokens=2000), None, NO_OPINIONS, 4, 1024),
        (record("r", tier=1, completion_tokens=2000), TURN, NO_OPINIONS, 4, 2000),
        # A shadow asks the tier of routing, of a longer catalogue the strongest.
        (watched("r", 2), None, NO_OPINIONS, 2, 2), (watched("r", 9), None, NO_OPINIONS, 4, 2),
    ],
)  # fmt: skip
async def test_what_a_verification_is_likely_to_cost_is_known_before_it_is_drawn(
    engine: AsyncEngine, draws: list[Seen], given: Record, turn: Exchange | None, settings: MonitorSettings, tiers: int,
    tokens: int,
) -> None:  # fmt: skip
    shadows = msgspec.structs.replace(settings, sampling=msgspec.structs.replace(EVERY, shadow_rate=1.0))
    monitor = await monitor_of(engine, ScriptedTier(), shadows)
    monitor.offer(given, turn=turn)
    await decided(monitor)
    await monitor.close()
    [seen] = draws
    assert seen.bound == pytest.approx(tiers * (10 + tokens) / 1000)
    assert seen.probe_bound == pytest.approx((1 + 2 + 3 + 4 - given.tier) * (10 + tokens) / 1000)
    assert seen.has_turn == (turn is not None)


async def test_a_model_that_judges_is_paid_for_too(engine: AsyncEngine, draws: list[Seen]) -> None:
    """It reads the prompt and two answers, in both orders, and a control of about that length."""
    verifier = ScriptedTier()
    sampling = msgspec.structs.replace(EVERY, shadow_rate=1.0)
    settings = msgspec.structs.replace(NO_OPINIONS, sampling=sampling)
    monitor = await monitor_of(engine, verifier, settings)
    judges = [ExactJudge(), PairwiseJudge(verifier)]
    monitor.panel = Panel(judges, {"pairwise": TRUSTED})
    monitor.offer(watched("r", 2))
    await decided(monitor)
    await monitor.close()
    assert draws[0].bound == pytest.approx((2 * 12 + 3 * 4 * (10 + 2 + 2 + 2)) / 1000)


async def test_attention_and_the_share_of_shadows_are_means_of_about_a_hundred(
    engine: AsyncEngine, draws: list[Seen]
) -> None:
    sampling = msgspec.structs.replace(EVERY, least_attention=0.5, shadow_rate=1.0)
    monitor = await monitor_of(engine, ScriptedTier(), msgspec.structs.replace(ALL, sampling=sampling))
    one, other = record("one"), watched("other", 2)
    for given in (one, other, record("third")):
        monitor.offer(given)
        await decided(monitor)
    await monitor.close()
    first, second = attention(one, 0.5), attention(other, 0.5)
    assert first != second
    means = [1.0 + (first - 1.0) / 100]
    means.append(means[0] + (second - means[0]) / 100)
    means.append(means[1] + (first - means[1]) / 100)
    assert [seen.spending.attention for seen in draws] == pytest.approx(means)
    assert [seen.spending.shadow_share for seen in draws] == pytest.approx([0.0, 0.01, 0.01 - 0.01 / 100])


async def test_the_rate_of_a_cold_start_follows_the_requests_of_a_second(
    engine: AsyncEngine, draws: list[Seen]
) -> None:
    now = 1500.0
    sampling = msgspec.structs.replace(EVERY, cold_start_rate=0.25, cold_start_usd=1.0)
    monitor = await monitor_of(
        engine, ScriptedTier(), msgspec.structs.replace(ALL, sampling=sampling), clock=lambda: now
    )

    async def rates(*waits: float) -> list[float]:
        nonlocal now
        draws.clear()
        for place, wait in enumerate(waits):
            now += wait
            monitor.offer(record(f"r-{now}-{place}"))
        await decided(monitor)
        return [seen.sampling.cold_start_rate for seen in draws]

    # In half a second a hundred requests came: of these two a second are 1%.
    assert await rates(0.5, *[0.0] * 99) == [0.25] * 99 + [0.01]
    # After a second it follows the requests of that second: eight.
    assert await rates(*[0.125] * 8, 0.0) == [0.01] * 7 + [pytest.approx(2 / 8)] * 2
    assert await rates(1.0, 1.0) == [0.25, 0.25], "never more than where few come"
    await monitor.close()
    assert monitor.settings.sampling.cold_start_rate == 0.25


async def test_what_was_spent_is_looked_up_again_after_a_second(engine: AsyncEngine, draws: list[Seen]) -> None:
    now = 1500.0
    monitor = await monitor_of(engine, ScriptedTier(), clock=lambda: now)
    for number, wait in enumerate((0.0, 0.75, 0.25)):
        now += wait
        await store_request(engine, record(f"r-{number}"))
        monitor.offer(record(f"r-{number}"))
        await decided(monitor)
    await monitor.close()
    assert [seen.spending.serving_usd for seen in draws] == [1.0, 1.0, 3.0]


async def test_shadows_follow_their_rate_and_name_the_model_of_the_tier_that_is_judged(
    engine: AsyncEngine, draws: list[Seen]
) -> None:
    rate, panel = [0.0], (await monitor_of(engine, ScriptedTier())).panel
    monitor = AnswerMonitor(
        engine, ladder(ScriptedTier()), NO_OPINIONS, terms=ScriptedTerms(), panel=panel,
        shadow_rate=lambda: rate[0], clock=lambda: 1500.0,
    )  # fmt: skip
    monitor.offer(watched("none", 2))
    rate[0] = 1.0
    for name, would_be, tier in (("second", 2, 4), ("strongest", 4, 3), ("longer", 9, 4)):
        monitor.offer(watched(name, would_be, tier))
    await decided(monitor)
    await monitor.close()
    found = {row["request_id"]: (row["tier"], row["model"]) for row in await rows(engine, verifications)}
    assert found["second"] == (2, "model-2")
    assert (found["strongest"], found["longer"]) == ((4, "model-4"), (9, ""))
    assert "none" not in found
    assert [seen.sampling.shadow_rate for seen in draws][-1] == 1.0


async def test_a_probe_of_an_observed_request_is_of_the_tier_that_served(engine: AsyncEngine) -> None:
    settings = msgspec.structs.replace(ALL, sampling=msgspec.structs.replace(EVERY, probe_rate=1.0))
    monitor = await monitor_of(engine, ScriptedTier(), settings)
    monitor.offer(watched("r", 2))
    await decided(monitor)
    await monitor.close()
    [row] = await rows(engine, verifications)
    assert (row["sampled_reason"], row["tier"], row["model"]) == ("probe", 4, "model-4")


async def test_offers_are_counted_with_the_reason(engine: AsyncEngine) -> None:
    none = msgspec.structs.replace(EVERY, rates=(0.0,) * 4)
    monitor = await monitor_of(engine, ScriptedTier(), msgspec.structs.replace(ALL, sampling=none, max_offered=1))
    monitor.offer(record("a", api="completion"))
    monitor.offer(record("b"))
    monitor.refuse("target")
    assert monitor.not_sampled == {"not a chat": 1, "not drawn": 1, "target": 1}
    status = await monitor.status()
    assert (status.offered, status.dropped, status.not_sampled) == (3, 0, dict(monitor.not_sampled))
    assert monitor.judged_tiers == [1, 2, 3]
    assert [rate.tier for rate in status.upgrade_rates] == [None, 1, 2, 3]


async def test_an_answer_that_calls_tools_is_looked_at_with_its_turn_alone(engine: AsyncEngine) -> None:
    monitor = await monitor_of(engine, ScriptedTier())
    calling = record("r", finish_reason="tool_calls")
    await store_request(engine, calling)
    monitor.offer(calling)
    assert monitor.not_sampled == {"not kept": 1}
    monitor.offer(calling, turn=CALLING)
    assert monitor.not_sampled == {"not kept": 1}


async def test_a_judge_that_is_trusted_wakes_what_waits_for_one(engine: AsyncEngine) -> None:
    verifier = ScriptedTier(reply=always("tie"))
    judge = PairwiseJudge(verifier)
    settings = msgspec.structs.replace(NO_OPINIONS, poll_seconds=1e6)
    async with running_monitor(engine, verifier, settings, judges=[judge]) as monitor:
        await serve(monitor, engine, record("open", prompt="Tell me about Lyon.", answer="A town."))
        assert await rows(engine, verifications) == []
        monitor.panel = Panel([judge], {"pairwise": TRUSTED})

        async def is_done() -> bool:
            return [row["status"] for row in await rows(engine, verifications)] == ["done"]

        await eventually(is_done)


async def test_an_offer_and_a_failed_call_wake_the_monitor(engine: AsyncEngine) -> None:
    calls = Panel([ExactJudge()], {json_answers.NAME: msgspec.structs.replace(TRUSTED, judge=json_answers.NAME)})
    settings = msgspec.structs.replace(NO_OPINIONS, poll_seconds=1e6)
    monitor = AnswerMonitor(
        engine, ladder(ScriptedTier()), settings, terms=ScriptedTerms(), panel=calls, clock=lambda: 1500.0
    )
    await store_request(engine, record("r"))
    await monitor.start()
    await monitor.drain()
    monitor.offer(record("r"), turn=CALLING)

    async def stored(next_step: str | None) -> bool:
        return [row["next_step"] for row in await rows(engine, verifications)] == [next_step]

    await eventually(lambda: stored(None))
    monitor.calls_failed("alice", ["c"])
    await eventually(lambda: stored("failed"))
    await monitor.close()


async def test_the_budget_is_a_share_of_what_was_served_and_what_a_cold_start_may_spend(engine: AsyncEngine) -> None:
    for number in range(3):
        await store_request(engine, record(f"r-{number}"))
    sampling = SamplingSettings(budget_share=0.5, cold_start_usd=4.0)
    monitor = await monitor_of(engine, ScriptedTier(), MonitorSettings(sampling=sampling))
    assert (await monitor.status()).budget_usd == 0.5 * 3.0 + 4.0


async def test_an_answer_with_calls_waits_for_its_results_and_a_judge_of_calls(engine: AsyncEngine) -> None:
    called = 0

    def count() -> None:
        nonlocal called
        called += 1

    panel = (await monitor_of(engine, ScriptedTier())).panel
    monitor = AnswerMonitor(
        engine, ladder(ScriptedTier()), ALL, terms=ScriptedTerms(), panel=panel, on_no_judge=count, clock=lambda: 1500.0
    )
    for number in range(2):
        await store_request(engine, record(f"r-{number}"))
    monitor.offer(record("r-0"), turn=CALLING)
    await decided(monitor)
    assert (monitor.not_sampled, called, monitor._no_judge) == ({"no judge": 1}, 1, 1)
    calls = msgspec.structs.replace(TRUSTED, judge=json_answers.NAME)
    monitor.panel = Panel([ExactJudge(), SimilarityJudge()], {json_answers.NAME: calls})
    monitor.offer(record("r-1"), turn=CALLING)
    await decided(monitor)
    skipped, waits = await rows(engine, verifications)
    assert (skipped["status"], skipped["reason"]) == ("skipped", "no trusted judge can label such an answer")
    assert (waits["status"], waits["lease_until"]) == ("pending", 1500.0 + 120.0)
    monitor.calls_failed("alice", ["c"])
    await decided(monitor)
    told = (await rows(engine, verifications))[1]
    assert (told["next_step"], told["lease_until"]) == ("failed", None)
    await monitor.close()


@pytest.mark.parametrize(
    ("tooling", "may"),
    [(None, True), (TOOLING, True), (msgspec.structs.replace(TOOLING, choice="required"), False)],
)
async def test_a_turn_whose_tools_are_forced_needs_a_judge_of_calls(
    engine: AsyncEngine, tooling: Tooling | None, may: bool
) -> None:
    monitor = await monitor_of(engine, ScriptedTier())
    await store_request(engine, record("r"))
    monitor.offer(record("r"), turn=msgspec.structs.replace(TURN, tooling=tooling))
    await decided(monitor)
    await monitor.close()
    assert monitor.not_sampled == ({} if may else {"no judge": 1})
    [row] = await rows(engine, verifications)
    assert (row["status"], row["lease_until"]) == (("pending", None) if may else ("skipped", None))


async def test_a_tier_that_cannot_take_a_turn_is_not_asked_and_the_row_says_so(engine: AsyncEngine) -> None:
    panel = (await monitor_of(engine, ScriptedTier())).panel
    monitor = AnswerMonitor(
        engine, ladder(ScriptedTier()), ALL, terms=ScriptedTerms(can=False), panel=panel,
        clock=lambda: 1500.0,
    )  # fmt: skip
    for name, tooling in (("tools", TOOLING), ("plain", None)):
        await store_request(engine, record(name))
        monitor.offer(record(name), turn=msgspec.structs.replace(TURN, tooling=tooling))
    await decided(monitor)
    await monitor.close()
    found = {row["request_id"]: row["status"] for row in await rows(engine, verifications)}
    assert (found, monitor.not_sampled) == ({"tools": "skipped", "plain": "pending"}, {"unable": 1})


async def test_a_turn_waits_redacted_or_is_not_kept(engine: AsyncEngine) -> None:
    async def strike(text: str) -> str | None:
        return None if "secret" in text else text.replace("3", "X")

    panel = (await monitor_of(engine, ScriptedTier())).panel
    monitor = AnswerMonitor(
        engine, ladder(ScriptedTier()), ALL, terms=ScriptedTerms(), panel=panel, redact=strike, clock=lambda: 1500.0
    )
    for name, text in (("kept", "7"), ("lost", "a secret"), ("plain", "")):
        await store_request(engine, record(name))
        monitor.offer(record(name), turn=msgspec.structs.replace(TURN, text=text) if text else None)
    await decided(monitor)
    await monitor.close()
    found = {row["request_id"]: row for row in await rows(engine, verifications)}
    assert found["kept"]["turn"]["messages"][0]["blocks"] == [{"block": "text", "text": "What is X + 4?"}]
    assert (found["lost"]["status"], found["lost"]["turn"]) == ("skipped", None)
    assert (found["plain"]["status"], monitor.not_sampled) == ("pending", {"not kept": 1})


async def test_a_request_that_cannot_be_verified_is_given_up_though_there_is_no_money(engine: AsyncEngine) -> None:
    sampling = msgspec.structs.replace(EVERY, budget_share=0.0)
    monitor = await monitor_of(engine, ScriptedTier(), msgspec.structs.replace(ALL, sampling=sampling, max_attempts=1))
    poisoned = record("r", messages=[{"content": "no role"}])
    await store_request(engine, poisoned)
    await monitor._queue.add(poisoned, Draw(sampled=True, probability=1.0, reason="drawn"), 1400.0)
    await monitor.start()
    await monitor.drain()
    await monitor.close()
    assert [row["status"] for row in await rows(engine, verifications)] == ["failed"]


async def test_of_a_probe_the_verdicts_that_there_are_teach(engine: AsyncEngine) -> None:
    settings = msgspec.structs.replace(NO_OPINIONS, sampling=msgspec.structs.replace(EVERY, probe_rate=1.0))
    tiers = [ScriptedTier(1, reply=lambda request: "I cannot say."), *(ScriptedTier(number) for number in (2, 3, 4))]
    async with running_monitor(engine, tiers[-1], settings, tiers=tiers) as monitor:
        await serve(monitor, engine, record("r", tier=2))
        status = await monitor.status()
    assert {row["tier"]: row["label"] for row in await rows(engine, verifications)}[1] is None
    assert [row["no_worse"] for row in await rows(engine, training_rows)] == [[None, True, True, True]]
    assert "tier 2, familiar prompts" in status.evidence_of_shift


async def test_without_an_encoder_verdicts_are_stored_and_nothing_is_learned(engine: AsyncEngine) -> None:
    panel = (await monitor_of(engine, ScriptedTier())).panel
    monitor = AnswerMonitor(
        engine, ladder(ScriptedTier()), NO_OPINIONS, terms=ScriptedTerms(), panel=panel, clock=lambda: 1500.0
    )
    await monitor.start()
    await serve(monitor, engine, record("r"))
    await monitor.close()
    assert [row["label"] for row in await rows(engine, verifications)] == ["no_worse"]
    assert await rows(engine, training_rows) == []


async def test_a_stop_leaves_undecided_offers_in_the_queue_or_says_how_many_are_lost(
    engine: AsyncEngine, caplog: pytest.LogCaptureFixture
) -> None:
    monitor = await monitor_of(engine, ScriptedTier())
    for number in range(3):
        await store_request(engine, record(f"r-{number}"))
        monitor.offer(record(f"r-{number}"))
    await monitor._intake.start()
    await monitor.close()
    with pytest.raises(RuntimeError, match="monitor intake is not running"):
        await monitor.drain()
    assert [row["status"] for row in await rows(engine, verifications)] == ["pending"] * 3
    for number in range(2):
        monitor.offer(record(f"late-{number}"))
    with outage(engine):
        await monitor.close()
    assert "2 offers are lost, because the database is away" in caplog.text
    await monitor.close()
    assert len(await rows(engine, verifications)) == 3


class Sick(ScriptedTier):
    """Is not healthy."""

    def load(self) -> TierLoad:
        return TierLoad(healthy=False)


@pytest.mark.parametrize(
    ("tiers", "works"),
    [
        ([ScriptedTier(1), ScriptedTier(2), ScriptedTier(3), Sick(4)], False),
        ([Sick(1), Sick(2), Sick(3), ScriptedTier(4)], True),
    ],
)
async def test_nothing_starts_while_the_strongest_tier_is_away(
    engine: AsyncEngine, tiers: list[ScriptedTier], works: bool
) -> None:
    async with running_monitor(engine, ScriptedTier(), NO_OPINIONS, tiers=tiers) as monitor:
        await serve(monitor, engine, record("r"))
    assert bool(tiers[-1].seen) == works


@pytest.mark.parametrize(("tier", "starts"), [(1, True), (2, True), (4, False)])
async def test_a_verification_waits_while_users_wait_for_a_tier_that_it_asks(
    engine: AsyncEngine, tier: int, starts: bool
) -> None:
    tiers = [ScriptedTier(number) for number in (1, 2, 3, 4)]
    tiers[tier - 1].waiting = 1
    async with running_monitor(engine, tiers[-1], tiers=tiers) as monitor:
        await serve(monitor, engine, record("r"))
    assert bool(tiers[-1].seen) == starts


async def test_a_job_whose_tier_is_busy_holds_up_none_behind_it(engine: AsyncEngine) -> None:
    tiers = [ScriptedTier(number) for number in (1, 2, 3, 4)]
    tiers[1].waiting = 1
    probes = msgspec.structs.replace(EVERY, rates=(0.0,) * 4, probe_rate=1.0)
    async with running_monitor(
        engine, tiers[-1], msgspec.structs.replace(NO_OPINIONS, sampling=probes), tiers=tiers
    ) as monitor:
        await serve(monitor, engine, record("probed"))
    async with running_monitor(engine, tiers[-1], NO_OPINIONS, tiers=tiers) as monitor:
        await serve(monitor, engine, record("sampled"))
    status = {row["request_id"]: row["status"] for row in await rows(engine, verifications)}
    assert status == {"probed": "pending", "sampled": "done"}


@pytest.mark.parametrize(
    ("is_local", "waited", "starts_at"),
    [(True, 0.0, 1540.0), (True, 6.0, 1522.0), (True, 30.0, 1510.0), (False, 0.0, 1510.0)],
)
async def test_verification_keeps_local_tiers_busy_for_its_share_of_the_time(
    engine: AsyncEngine, is_local: bool, waited: float, starts_at: float
) -> None:
    """A verification of ten seconds, at a quarter of the time, is followed by thirty without one; of four, if it waited
    for six, by twelve."""
    now = 1500.0

    def say(request: GenerationRequest) -> str:
        nonlocal now
        now += 10.0
        return "7"

    verifier = ScriptedTier(reply=say)
    verifier.is_local, verifier.waited = is_local, waited
    settings = msgspec.structs.replace(NO_OPINIONS, machine_share=0.25)
    async with running_monitor(engine, verifier, settings, clock=lambda: now) as monitor:
        await serve(monitor, engine, record("one"))
        begun = []
        while len(verifier.seen) < 2:
            await serve(monitor, engine, record("two"))
            begun.append(now - 10.0)
            now += 1.0 if len(verifier.seen) < 2 else 0.0
    assert begun[-1] == starts_at


async def test_verifications_at_a_time_keep_a_machine_busy_once(engine: AsyncEngine) -> None:
    """Two side by side, ten seconds in all, at half of the time: ten seconds of rest."""
    now = 1500.0
    verifier = ScriptedTier()
    verifier.is_local, verifier.hold = True, asyncio.Event()
    settings = msgspec.structs.replace(NO_OPINIONS, machine_share=0.5, parallel=2)
    async with running_monitor(engine, verifier, settings, clock=lambda: now) as monitor:
        for name in ("one", "other"):
            await store_request(engine, served := record(name))
            monitor.offer(served)
        await eventually(lambda: len(verifier.seen) == 2)
        now += 10.0
        verifier.hold.set()
        begun = []
        while len(verifier.seen) < 3:
            await serve(monitor, engine, record("next"))
            begun.append(now)
            now += 1.0
    assert begun[-1] == 1520.0


async def test_several_verifications_run_at_a_time(engine: AsyncEngine) -> None:
    verifier = ScriptedTier()
    verifier.hold = asyncio.Event()
    async with running_monitor(engine, verifier, msgspec.structs.replace(NO_OPINIONS, parallel=2)) as monitor:
        for name in ("one", "two", "three"):
            await store_request(engine, record(name))
            monitor.offer(record(name))
        await eventually(lambda: len(verifier.seen) == 2)
        verifier.hold.set()
        await monitor.drain()
    assert [row["status"] for row in await rows(engine, verifications)] == ["done"] * 3


async def test_what_waited_for_a_day_is_given_up_and_a_failure_is_tried_again_later(
    engine: AsyncEngine, caplog: pytest.LogCaptureFixture
) -> None:
    now = 1500.0
    settings = msgspec.structs.replace(NO_OPINIONS, retry_seconds=30.0)
    verifier = ScriptedTier(faults=[unavailable()])
    async with running_monitor(engine, verifier, settings, clock=lambda: now) as monitor:
        await serve(monitor, engine, record("r"))
        [row] = await rows(engine, verifications)
        assert (row["status"], row["lease_until"], row["attempts"]) == ("pending", 1530.0, 1)
        assert "verification of r failed: " in caplog.text
        now += settings.expire_seconds - 1
        verifier.waiting = 1
        await monitor.drain()
        assert (await rows(engine, verifications))[0]["status"] == "pending"
        now += 2
        await monitor.drain()
    [row] = await rows(engine, verifications)
    assert (row["status"], row["reason"]) == ("failed", "out of attempts or time")


async def test_a_verification_that_is_stopped_costs_what_was_reserved_and_waits(engine: AsyncEngine) -> None:
    stuck = ScriptedTier()
    stuck.hold = asyncio.Event()
    async with running_monitor(engine, stuck, NO_OPINIONS) as monitor:
        await store_request(engine, record("r"))
        monitor.offer(record("r"))
        await stuck.entered.wait()
    [row] = await rows(engine, verifications)
    assert (row["status"], row["error"]) == ("pending", "the monitor was stopped")
    assert row["cost_usd"] == pytest.approx(4 * (10 + 1024) / 1000, rel=0.01)


async def test_labels_are_stored_with_the_fingerprints_and_alarms_are_in_the_log(
    engine: AsyncEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    shift = msgspec.structs.replace(ALL.shift, false_alarm_every=20.0)
    async with running_monitor(engine, ScriptedTier(), msgspec.structs.replace(ALL, shift=shift)) as monitor:
        await serve(monitor, engine, *(record(f"bad-{number}", answer="8") for number in range(8)))
        status = await monitor.status()
    assert "tier 1, familiar prompts: " in caplog.text
    assert (status.second_opinions.confirmed, status.second_opinions.uncertain) == (8, 0)
    assert len(TIERS) == 4
