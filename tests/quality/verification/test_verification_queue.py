"""The queue: leases that survive crashes, one holder at a time, and spending that never exceeds the budget."""

import asyncio
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.audit import erasures
from migrations.tables.quality import training_rows, verifications
from migrations.tables.tenancy import api_keys, teams
from quality.store.database import migrate, open_database
from quality.store.queries import insert_records
from quality.verification.feedback import Feedback, FeedbackDesk
from quality.verification.job import Ruling, VerificationJob
from quality.verification.queue import VerificationQueue
from quality.verification.sampling import Draw, SamplingSettings
from tests.examples import examples
from tests.quality.loop_world import record, rows, store_request
from tests.quality.store.records import make_embedding

LEASE = 100.0
NOW = 2000.0
DRAWN = Draw(sampled=True, probability=0.05, reason="drawn")
RULING = Ruling(
    tier=1,
    model="model-1",
    verifier_tier=4,
    verifier_model="model-4",
    label="no_worse",
    judge="exact",
    judge_reliability=1.0,
    scores={"exact": 1.0},
    verifier_answer="7",
    reason="7 agrees with 7",
    cost_usd=0.5,
)


def _queue(engine: AsyncEngine, share: float = 1e9, max_attempts: int = 3) -> VerificationQueue:
    return VerificationQueue(
        engine, SamplingSettings(budget_share=share, probe_share=0.0), lease_seconds=LEASE, max_attempts=max_attempts
    )


async def _waiting_job(queue: VerificationQueue, engine: AsyncEngine, request_id: str = "req-1") -> VerificationJob:
    await store_request(engine, record(request_id, created_at=NOW))
    await queue.add(record(request_id), DRAWN, NOW)
    job = await queue.next_job(NOW)
    assert job is not None
    return job


async def test_a_job_comes_back_with_the_texts_of_its_request(any_engine: AsyncEngine) -> None:
    job = await _waiting_job(_queue(any_engine), any_engine)

    assert (job.request_id, job.served_tier, job.answer, job.attempts) == ("req-1", 1, "7", 0)
    assert job.purpose == "sample"
    assert job.messages[0]["role"] == "user"


async def test_a_job_waits_until_the_ledger_has_stored_its_request(engine: AsyncEngine) -> None:
    queue = _queue(engine)
    await queue.add(record("req-1"), DRAWN, NOW)

    assert await queue.next_job(NOW) is None
    await store_request(engine, record("req-1"))
    assert await queue.next_job(NOW) is not None


async def test_a_request_is_queued_once(any_engine: AsyncEngine) -> None:
    queue = _queue(any_engine)

    assert await queue.add(record("req-1"), DRAWN, NOW)
    assert not await queue.add(record("req-1"), DRAWN, NOW)
    assert len(await rows(any_engine, verifications)) == 1


async def test_an_erased_users_request_is_not_queued(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await connection.execute(insert(erasures).values(key_id="alice", erased_at=1500.0))

    assert not await _queue(engine).add(record("req-1", created_at=1400.0), DRAWN, NOW)
    assert await _queue(engine).add(record("req-2", created_at=1600.0), DRAWN, NOW)


async def test_only_one_of_two_workers_gets_a_job(any_engine: AsyncEngine) -> None:
    job = await _waiting_job(_queue(any_engine), any_engine)

    claims = await asyncio.gather(*(_queue(any_engine).claim(job, 0.1, NOW) for _ in range(5)))

    assert sorted(claims) == ["claimed", "taken", "taken", "taken", "taken"]


async def test_a_dead_workers_job_is_taken_over_after_its_lease_and_its_reservation_is_billed(
    any_engine: AsyncEngine,
) -> None:
    dead, alive = _queue(any_engine), _queue(any_engine)
    job = await _waiting_job(dead, any_engine)
    await dead.claim(job, 0.25, NOW)

    assert await alive.next_job(NOW + LEASE - 1) is None
    again = await alive.next_job(NOW + LEASE)
    assert again is not None
    assert await alive.claim(again, 0.5, NOW + LEASE) == "claimed"

    [row] = await rows(any_engine, verifications)
    assert (row["attempts"], row["cost_usd"], row["reserved_usd"]) == (2, 0.25, 0.5)


async def test_a_worker_that_lost_its_lease_writes_nothing(engine: AsyncEngine) -> None:
    slow, quick = _queue(engine), _queue(engine)
    job = await _waiting_job(slow, engine)
    await slow.claim(job, 0.1, NOW)
    again = await quick.next_job(NOW + LEASE)
    assert again is not None
    await quick.claim(again, 0.1, NOW + LEASE)
    learned = {
        "request_id": "req-1",
        "source": "verification",
        "feature_spec": "test",
        "embedding": b"",
        "no_worse": [True],
        "weights": [1.0],
        "created_at": NOW,
    }

    assert not await slow.finish(job, [RULING], learned, NOW + LEASE + 1)
    assert await rows(engine, training_rows) == []
    assert await quick.finish(again, [RULING], learned, NOW + LEASE + 1)
    assert len(await rows(engine, training_rows)) == 1


async def test_a_finished_job_holds_the_ruling_and_all_that_was_spent(engine: AsyncEngine) -> None:
    queue = _queue(engine)
    job = await _waiting_job(queue, engine)
    await queue.claim(job, 0.75, NOW)

    await queue.finish(job, [RULING], None, NOW + 5)

    [row] = await rows(engine, verifications)
    assert (row["status"], row["label"], row["judge"], row["verifier_answer"]) == ("done", "no_worse", "exact", "7")
    assert (row["cost_usd"], row["reserved_usd"], row["finished_at"]) == (0.5, 0.0, NOW + 5)
    assert await queue.next_job(NOW + 1e6) is None


async def test_a_failed_attempt_waits_for_its_retry_and_the_last_one_is_final(engine: AsyncEngine) -> None:
    queue = _queue(engine, max_attempts=2)
    job = await _waiting_job(queue, engine)
    await queue.claim(job, 0.1, NOW)
    await queue.give_back(job, "the core is gone", 0.02, NOW + 30, NOW)

    assert await queue.next_job(NOW + 29) is None
    again = await queue.next_job(NOW + 30)
    assert again is not None
    await queue.claim(again, 0.1, NOW + 30)
    await queue.give_back(again, "the core is gone", 0.02, NOW + 60, NOW + 31)

    [row] = await rows(engine, verifications)
    assert (row["status"], row["error"], row["reason"]) == ("failed", "the core is gone", "gave up after 2 attempts")
    assert row["cost_usd"] == pytest.approx(0.04)


async def test_sweeping_fails_jobs_that_no_worker_will_finish(engine: AsyncEngine) -> None:
    queue = _queue(engine, max_attempts=1)
    job = await _waiting_job(queue, engine)
    await queue.claim(job, 0.1, NOW)
    await queue.add(record("never-stored"), DRAWN, NOW - 500)

    assert await queue.sweep(NOW + 1, expire_before=NOW - 100) == 1
    assert await queue.sweep(NOW + LEASE, expire_before=NOW - 100) == 1

    assert [row["status"] for row in await rows(engine, verifications)] == ["failed", "failed"]


async def test_a_claim_beyond_the_budget_is_refused_and_the_job_stays(any_engine: AsyncEngine) -> None:
    # One request of a dollar: at 5%, five cents.
    queue = _queue(any_engine, share=0.05)
    job = await _waiting_job(queue, any_engine)

    assert await queue.claim(job, 0.06, NOW) == "no budget"
    assert await queue.claim(job, 0.05, NOW) == "claimed"


async def test_workers_that_claim_at_once_share_one_budget(any_engine: AsyncEngine) -> None:
    queue = _queue(any_engine, share=0.1)
    for i in range(4):
        await store_request(any_engine, record(f"req-{i}", created_at=NOW))
        await queue.add(record(f"req-{i}"), DRAWN, NOW + i)
    jobs = []
    for row in await rows(any_engine, verifications):
        base = await queue.next_job(NOW + 10)
        assert base is not None
        jobs.append(
            VerificationJob(
                **{
                    **{f: getattr(base, f) for f in base.__struct_fields__},
                    "verification_id": row["verification_id"],
                    "request_id": row["request_id"],
                }
            )
        )

    # Four dollars served, 40 cents to spend, 15 cents each: two fit.
    claims = await asyncio.gather(*(_queue(any_engine, share=0.1).claim(job, 0.15, NOW) for job in jobs))

    assert sorted(claims) == ["claimed", "claimed", "no budget", "no budget"]


async def test_a_probe_leaves_a_row_per_judged_tier_and_counts_once_in_a_budget_of_its_own(
    any_engine: AsyncEngine,
) -> None:
    settings = SamplingSettings(budget_share=1.0, probe_share=0.5)
    queue = VerificationQueue(any_engine, settings, lease_seconds=LEASE, max_attempts=3)
    await store_request(any_engine, record("req-1", tier=2, created_at=NOW))
    await queue.add(record("req-1", tier=2), msgspec.structs.replace(DRAWN, purpose="probe"), NOW)
    job = await queue.next_job(NOW)
    assert job is not None
    assert await queue.claim(job, 0.6, NOW) == "no budget"
    assert await queue.claim(job, 0.5, NOW) == "claimed"
    rulings = [
        msgspec.structs.replace(RULING, tier=tier, model=f"model-{tier}", cost_usd=cost)
        for tier, cost in ((2, 0.2), (1, 0.05), (3, 0.1))
    ]

    assert await queue.finish(job, rulings, None, NOW + 5)
    spending = await queue.spending(NOW + 5)

    found = sorted(await rows(any_engine, verifications), key=lambda row: row["tier"])
    assert [(row["tier"], row["model"], row["status"]) for row in found] == [
        (1, "model-1", "done"),
        (2, "model-2", "done"),
        (3, "model-3", "done"),
    ]
    assert {(row["sampled_reason"], row["sampled_probability"], row["finished_at"]) for row in found} == {
        ("probe", 0.05, NOW + 5)
    }
    assert (spending.committed_usd, spending.verifications, spending.probes) == (0.0, 0, 1)
    assert spending.probe_usd == pytest.approx(0.35)


async def test_embeddings_pay_for_no_verification(any_engine: AsyncEngine) -> None:
    await store_request(any_engine, record("req-1", created_at=NOW))
    async with any_engine.begin() as connection:
        await insert_records(connection, [make_embedding(created_at=NOW, cost_usd=50.0)])

    spending = await _queue(any_engine).spending(NOW)

    assert (spending.serving_usd, spending.answered) == (1.0, {1: 1})


async def test_a_request_with_several_rows_counts_once_and_what_is_under_way_counts_whatever_its_age(
    any_engine: AsyncEngine,
) -> None:
    queue = _queue(any_engine)
    first = await _waiting_job(queue, any_engine)
    await queue.claim(first, 0.5, NOW)
    # Of an answer of tier 2 that was asked for, tier 1 is judged as well.
    await queue.finish(first, [RULING, msgspec.structs.replace(RULING, tier=2, cost_usd=0.25)], None, NOW)
    later = NOW + 86_000
    second = await _waiting_job(queue, any_engine, "req-2")
    await queue.claim(second, 0.125, NOW)

    today, next_day = await queue.spending(later), await queue.spending(later + 86_000)

    assert (today.committed_usd, today.verifications, today.answered) == (0.875, 1, {1: 2})
    assert (next_day.committed_usd, next_day.verifications, next_day.answered) == (0.125, 0, {})


async def test_user_feedback_does_not_lower_the_mean_price_of_a_verification(engine: AsyncEngine) -> None:
    queue = _queue(engine)
    job = await _waiting_job(queue, engine)
    await queue.claim(job, 0.5, NOW)
    await queue.finish(job, [RULING], None, NOW)
    await store_request(engine, record("req-2", created_at=NOW))
    await FeedbackDesk(engine, None, 4, clock=lambda: NOW).take(record("req-2"), Feedback(score=1.0))

    spending = await queue.spending(NOW)

    assert (spending.committed_usd, spending.verifications) == (0.5, 1)


async def test_spending_outside_the_window_is_forgotten(engine: AsyncEngine) -> None:
    queue = _queue(engine)
    job = await _waiting_job(queue, engine)
    await queue.claim(job, 0.5, NOW)
    await queue.finish(job, [RULING], None, NOW)

    today, next_week = await queue.spending(NOW), await queue.spending(NOW + 7 * 86_400)

    assert (today.serving_usd, today.committed_usd, today.verifications, today.answered) == (1.0, 0.5, 1, {1: 1})
    assert (next_week.serving_usd, next_week.committed_usd, next_week.verifications) == (0.0, 0.0, 0)


_STEPS = st.lists(
    st.tuples(st.sampled_from(["serve", "claim", "claim", "finish", "crash", "fail"]), st.floats(0, 1)), max_size=25
)


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=_STEPS, share=st.sampled_from([0.05, 0.3, 1.0]))
def test_whatever_happens_spent_and_reserved_money_never_passes_the_budget(
    steps: list[tuple[str, float]], share: float
) -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            url = f"sqlite:///{Path(folder) / 'aio.sqlite3'}"
            await migrate(url)
            engine = open_database(url)
            try:
                await _play(engine, steps, share)
            finally:
                await engine.dispose()

    asyncio.run(run())


async def _play(engine: AsyncEngine, steps: list[tuple[str, float]], share: float) -> None:
    queue, now, held = _queue(engine, share), NOW, []
    for number, (step, size) in enumerate(steps):
        now += 1
        if step == "serve":
            served = record(f"req-{number}", created_at=now, cost_usd=size)
            await store_request(engine, served)
            await queue.add(served, DRAWN, now)
        elif step == "claim":
            job = await queue.next_job(now)
            bound = size / 10
            if job is not None and await queue.claim(job, bound, now) == "claimed":
                held.append((job, bound))
        elif step == "crash":
            now += LEASE
            held.clear()
        elif held and step == "finish":
            job, bound = held.pop()
            spent = Ruling(**{**{f: getattr(RULING, f) for f in RULING.__struct_fields__}, "cost_usd": bound * size})
            await queue.finish(job, [spent], None, now)
        elif held:
            job, bound = held.pop()
            await queue.give_back(job, "fault", bound * size, now, now)
        spending = await queue.spending(now)
        assert spending.committed_usd <= share * spending.serving_usd + 1e-12


async def test_a_claim_reserves_the_most_that_it_may_cost_where_the_expected_price_fits(engine: AsyncEngine) -> None:
    sampling = SamplingSettings(budget_share=1.0, probe_share=0.0, most_usd=5.0)
    queue = VerificationQueue(engine, sampling, lease_seconds=100.0, max_attempts=3)
    one, two, three = await _waiting_jobs(queue, engine, "one", "two", "three")
    assert await queue.claim(one, 2.4, 1000.0, 0.5) == "claimed"
    assert (await queue.spending(1000.0)).committed_usd == 2.4
    # The expected price fits into three dollars; with the highest, the cap might be exceeded.
    assert await queue.claim(two, 2.7, 1000.0, 0.5) == "no budget"
    assert await queue.claim(two, 2.5, 1000.0, 0.5) == "claimed"
    await queue.finish(one, [RULING], None, 1000.0)
    await queue.finish(two, [RULING], None, 1000.0)
    assert (await queue.spending(1000.0)).committed_usd == 1.0, "what they did not cost went back"
    assert await queue.claim(three, 2.1, 1000.0, 2.1) == "no budget"
    assert await queue.claim(three, 2.1, 1000.0, 2.0) == "claimed"


async def _waiting_jobs(
    queue: VerificationQueue, engine: AsyncEngine, *names: str, key_id: str | None = "alice", **of_request: float
) -> list[VerificationJob]:
    jobs = list[VerificationJob]()
    for name in names:
        asked = record(name, key_id=key_id, **({"cost_usd": 1.0} | of_request))
        await store_request(engine, asked)
        await queue.add(asked, DRAWN, 1000.0)
    for job in await queue.next_jobs(1000.0, (), 100):
        if job.request_id in names:
            jobs.append(job)
    return jobs


def _bounded(engine: AsyncEngine, **changes: float) -> VerificationQueue:
    sampling = msgspec.structs.replace(
        SamplingSettings(saving_share=0.2, cold_start_usd=1e6, start_usd=0.25), **changes
    )
    return VerificationQueue(engine, sampling, lease_seconds=LEASE, max_attempts=3)


async def test_a_keys_verification_is_paid_from_its_own_saving_and_once_from_a_start(any_engine: AsyncEngine) -> None:
    queue = _bounded(any_engine)
    # A dollar served and a dollar saved: twenty cents of its own. Another key's savings do not count.
    (one,) = await _waiting_jobs(queue, any_engine, "one")
    await _waiting_jobs(queue, any_engine, "rich", key_id="bob", baseline_cost_usd=1000.0)

    assert await queue.claim(one, 0.46, 1000.0, 0.01) == "no budget of its own"
    assert await queue.claim(one, 0.45, 1000.0, 0.01) == "claimed"
    await queue.finish(one, [msgspec.structs.replace(RULING, cost_usd=0.25)], None, 1000.0)

    # The next day a restarted process knows that the start is spent, and that what was reserved went back.
    tomorrow = 1000.0 + 86_401.0
    queue = _bounded(any_engine)
    asked = record("two", cost_usd=1.0, baseline_cost_usd=2.0, created_at=tomorrow)
    await store_request(any_engine, asked)
    await queue.add(asked, DRAWN, tomorrow)
    two = next(job for job in await queue.next_jobs(tomorrow, (), 10) if job.request_id == "two")
    assert await queue.claim(two, 0.21, tomorrow, 0.01) == "no budget of its own"
    assert await queue.claim(two, 0.2, tomorrow, 0.01) == "claimed"


async def test_the_keys_of_a_team_have_one_budget_and_those_without_a_key_all_of_it(any_engine: AsyncEngine) -> None:
    await _add_keys(any_engine, "crew", "ann", "abe")
    queue = _bounded(any_engine)
    (one,) = await _waiting_jobs(queue, any_engine, "one", key_id="ann", cost_usd=0.0, baseline_cost_usd=0.0)
    (two,) = await _waiting_jobs(queue, any_engine, "two", key_id="abe", cost_usd=0.0, baseline_cost_usd=0.0)
    (mine,) = await _waiting_jobs(queue, any_engine, "mine", key_id=None, cost_usd=0.0, baseline_cost_usd=0.0)

    assert (one.tenant, two.tenant, mine.tenant) == ("crew", "crew", "")
    assert await queue.claim(one, 0.2, 1000.0) == "claimed"
    assert await queue.claim(two, 0.06, 1000.0) == "no budget of its own"
    assert await queue.claim(two, 0.05, 1000.0) == "claimed"
    assert await queue.claim(mine, 5.0, 1000.0) == "claimed"


async def test_what_probes_cost_counts_for_their_key_too(engine: AsyncEngine) -> None:
    queue = _bounded(engine)
    probed = record("probed", cost_usd=0.0, baseline_cost_usd=0.0)
    await store_request(engine, probed)
    await queue.add(probed, msgspec.structs.replace(DRAWN, purpose="probe"), 999.0)
    probe = await queue.next_job(1000.0)
    assert probe is not None
    (sample,) = await _waiting_jobs(queue, engine, "sample", cost_usd=0.0, baseline_cost_usd=0.0)

    assert await queue.claim(probe, 0.2, 1000.0) == "claimed"
    assert await queue.claim(sample, 0.1, 1000.0) == "no budget of its own"


async def test_workers_that_claim_at_once_share_what_one_key_may_cost(any_engine: AsyncEngine) -> None:
    names = [f"r-{number}" for number in range(6)]
    jobs = await _waiting_jobs(_bounded(any_engine), any_engine, *names, cost_usd=0.0, baseline_cost_usd=0.0)

    claims = await asyncio.gather(*(_bounded(any_engine).claim(job, 0.1, 1000.0, 0.01) for job in jobs))

    assert sorted(claims) == ["claimed"] * 2 + ["no budget of its own"] * 4


async def _add_keys(engine: AsyncEngine, team: str, *key_ids: str) -> None:
    async with engine.begin() as connection:
        await connection.execute(insert(teams).values(team_id=team, name=team, created_at=1.0))
        for key_id in key_ids:
            await connection.execute(
                insert(api_keys).values(
                    key_id=key_id, name=key_id, team_id=team, prefix=key_id, digest=key_id, scopes=["inference"],
                    consent=True, priority_ceiling=0, created_at=1.0,
                )
            )  # fmt: skip
