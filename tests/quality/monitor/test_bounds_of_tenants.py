"""What one tenant's traffic can cost verification, and that judges which get nowhere with it pause for it alone."""

import logging

import msgspec
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.quality import verifications
from quality.judges.pairwise import PairwiseJudge
from quality.judges.panel import Panel
from quality.judges.pauses import MOST_UNDECIDED, PAUSE_SECONDS
from quality.monitor.answer_monitor import AnswerMonitor
from quality.verification.queue import VerificationQueue
from quality.verification.sampling import Draw
from quality.verification.verifier import Verifier
from tests.quality.loop_world import ScriptedTerms, ScriptedTier, ladder, record, rows, store_request
from tests.quality.monitor.monitors import ALL, EVERY, monitor_of, running_monitor, serve

DRAWN = Draw(sampled=True, probability=1.0, reason="drawn")
# No tenant has money of its own, and all together have plenty.
STARTED = msgspec.structs.replace(EVERY, budget_share=0.0, cold_start_usd=1e6, start_usd=2.5)
UNCLEAR = "It is hard to say."


async def _statuses(engine: AsyncEngine) -> dict[str, str]:
    return {row["request_id"]: row["status"] for row in await rows(engine, verifications)}


async def _ask(monitor: AnswerMonitor, engine: AsyncEngine, key_id: str, names: list[str], answer: str = "7") -> None:
    for name in names:
        await serve(monitor, engine, record(name, key_id=key_id, answer=answer))


async def test_judges_that_decide_none_of_ten_answers_pause_for_that_tenant_alone_for_an_hour(
    engine: AsyncEngine, caplog: pytest.LogCaptureFixture
) -> None:
    now, strongest = 1500.0, ScriptedTier(reply=lambda request: UNCLEAR)
    async with running_monitor(engine, strongest, clock=lambda: now) as monitor:
        with caplog.at_level(logging.WARNING):
            await _ask(monitor, engine, "alice", [f"a-{number}" for number in range(MOST_UNDECIDED + 5)])
        asked = len(strongest.seen)
        assert asked == MOST_UNDECIDED
        assert monitor.not_sampled["judges pause"] == 5
        assert "judge exact decided on none of the last 10 answers of alice" in caplog.text

        await _ask(monitor, engine, "bob", ["b-0"])
        assert len(strongest.seen) == asked + 1, "another tenant's answers are judged"

        now += PAUSE_SECONDS - 1.0
        await _ask(monitor, engine, "alice", ["early"])
        assert len(strongest.seen) == asked + 1
        now += 1.0
        await _ask(monitor, engine, "alice", ["later"])
        assert len(strongest.seen) == asked + 2


async def test_a_label_starts_the_count_of_undecided_answers_again(engine: AsyncEngine) -> None:
    replies = [UNCLEAR] * 9 + ["7"] + [UNCLEAR] * 9 + ["7"]
    strongest = ScriptedTier(reply=lambda request: replies.pop(0))
    async with running_monitor(engine, strongest) as monitor:
        await _ask(monitor, engine, "alice", [f"a-{number}" for number in range(20)])
    assert monitor.not_sampled["judges pause"] == 0
    assert replies == []


async def test_waiting_jobs_whose_judges_pause_end_without_a_question(engine: AsyncEngine) -> None:
    strongest = ScriptedTier(reply=lambda request: UNCLEAR)
    queue = VerificationQueue(engine, EVERY, lease_seconds=600.0, max_attempts=3)
    names = [f"a-{number}" for number in range(MOST_UNDECIDED + 3)]
    for name in names:
        await store_request(engine, record(name))
        await queue.add(record(name), DRAWN, 1400.0)

    async with running_monitor(engine, strongest) as monitor:
        await monitor.drain()

    found = await _statuses(engine)
    assert [found[name] for name in names] == ["done"] * MOST_UNDECIDED + ["skipped"] * 3
    assert len(strongest.seen) == MOST_UNDECIDED


async def test_a_tenant_without_money_of_its_own_is_not_drawn_and_holds_up_no_other(engine: AsyncEngine) -> None:
    strongest = ScriptedTier()
    queue = VerificationQueue(engine, STARTED, lease_seconds=600.0, max_attempts=3)
    # More than a look at the queue passes over, each dearer than the start.
    for number in range(100):
        dear = record(f"m-{number}", key_id="mallory", prompt="word " * 700 + "What is 3 + 4?")
        await store_request(engine, dear)
        await queue.add(dear, DRAWN, 1400.0)
    await store_request(engine, record("honest", key_id="bob"))
    await queue.add(record("honest", key_id="bob"), DRAWN, 1450.0)
    settings = msgspec.structs.replace(ALL, sampling=STARTED, max_tokens=64)

    async with running_monitor(engine, strongest, settings) as monitor:
        await monitor.drain()
        assert (await _statuses(engine))["honest"] == "done"
        assert len(strongest.seen) == 1
        monitor.offer(record("m-new", key_id="mallory", prompt_tokens=700))
        await monitor.drain()

    assert monitor.not_sampled["no budget of its own"] == 1


async def test_a_prompt_of_more_tokens_than_its_text_lets_expect_is_reserved_for_them(engine: AsyncEngine) -> None:
    panel = (await monitor_of(engine, ScriptedTier())).panel
    judges = [*panel.judges, PairwiseJudge(ScriptedTier())]
    trusted = panel.calibrations | {"pairwise": panel.calibrations["exact"]}
    verifier = Verifier(ladder(ScriptedTier()), Panel(judges, trusted), ScriptedTerms(), max_tokens=64, opinions=0)
    await store_request(engine, record("r"))
    queue = VerificationQueue(engine, EVERY, lease_seconds=600.0, max_attempts=3)
    await queue.add(record("r"), DRAWN, 1400.0)
    job = await queue.next_job(1500.0)
    assert job is not None
    words = len(str(record("r").messages[0]["content"]).split())
    assert job.prompt_tokens == words

    dense = msgspec.structs.replace(job, prompt_tokens=words + 1000)

    # The strongest tier reads the prompt once to answer, and twice to judge; answers may be as dense in its control.
    assert verifier.bound_usd(dense) - verifier.bound_usd(job) == pytest.approx(4 * 4 * 1000 / 1000)


async def test_what_a_key_may_cost_outlives_a_restart(engine: AsyncEngine) -> None:
    strongest = ScriptedTier()
    queue = VerificationQueue(engine, STARTED, lease_seconds=600.0, max_attempts=3)
    for number in range(60):
        await store_request(engine, record(f"a-{number}"))
        await queue.add(record(f"a-{number}"), DRAWN, 1400.0)
    settings = msgspec.structs.replace(ALL, sampling=STARTED, max_tokens=64)
    asked = []
    for _ in range(3):
        async with running_monitor(engine, strongest, settings) as monitor:
            await monitor.drain()
        asked.append(len(strongest.seen))

    spent = sum(row["cost_usd"] for row in await rows(engine, verifications))
    # What each might have cost is far more than what it did; the rest went back.
    assert asked == [asked[0]] * 3
    assert 1.0 < spent <= 2.5
