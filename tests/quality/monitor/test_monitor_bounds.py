"""The monitor takes from users neither time nor more money than its budget."""

import asyncio
import time

import msgspec
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.quality import verifications
from quality.monitor.worker import MonitorSettings
from quality.records.record import Record
from quality.verification.queue import VerificationQueue
from quality.verification.sampling import Draw, SamplingSettings
from tests.quality.loop_world import ScriptedTier, record, rows, store_request
from tests.quality.monitor.monitors import ALL, EVERY, monitor_of, running_monitor, serve


def unfamiliar(request_id: str) -> Record:
    """An answer to a prompt of which no label is known, in a catalogue of which nothing was measured."""
    served = record(request_id)
    inputs = served.decision.inputs
    prediction = msgspec.structs.replace(inputs.prediction, kind="prior", novelty=1.0)
    decision = msgspec.structs.replace(served.decision, inputs=msgspec.structs.replace(inputs, prediction=prediction))
    return msgspec.structs.replace(served, decision=decision)


async def test_verification_runs_as_idle_work_and_greedily(engine: AsyncEngine) -> None:
    verifier = ScriptedTier()
    async with running_monitor(engine, verifier) as monitor:
        await serve(monitor, engine, record("req-1"))

    [request] = verifier.seen
    assert (request.priority, request.sampling.temperature, request.deadline) == (3, 0.0, None)


async def test_nothing_starts_while_users_wait_for_the_verifier(engine: AsyncEngine) -> None:
    verifier = ScriptedTier()
    verifier.waiting = 1
    async with running_monitor(engine, verifier) as monitor:
        await serve(monitor, engine, record("req-1"))
        assert verifier.seen == []

        verifier.waiting = 0
        await monitor.drain()

    assert len(verifier.seen) == 1


async def test_offering_does_no_work_on_the_callers_path(engine: AsyncEngine) -> None:
    monitor = await monitor_of(engine, ScriptedTier())

    begun = time.perf_counter()
    for i in range(50):
        monitor.offer(record(f"req-{i}"))

    assert time.perf_counter() - begun < 1.0
    assert await rows(engine, verifications) == []


async def test_offers_beyond_the_bound_are_dropped_and_counted(engine: AsyncEngine) -> None:
    monitor = await monitor_of(engine, ScriptedTier(), msgspec.structs.replace(ALL, max_offered=3))

    for i in range(5):
        monitor.offer(record(f"req-{i}"))

    assert (await monitor.status()).dropped == 2


async def test_of_many_requests_a_second_a_cold_start_looks_at_few(engine: AsyncEngine) -> None:
    now = 1500.0
    sampling = SamplingSettings(rates=(0.0,) * 4, probe_rate=0.0, cold_start_rate=0.25, cold_start_usd=1.0)
    settings = MonitorSettings(sampling=sampling, max_offered=10_000)
    monitor = await monitor_of(engine, ScriptedTier(), settings, clock=lambda: now)

    def looked_at(seconds: int, per_second: int) -> int:
        nonlocal now
        before = monitor.not_sampled.total()
        for i in range(seconds * per_second):
            now += 1.0 / per_second
            monitor.offer(unfamiliar(f"req-{now}-{i}"))
        return seconds * per_second - (monitor.not_sampled.total() - before)

    assert looked_at(1, 1000) == pytest.approx(27, abs=15), "nothing is known of the first hundred"
    assert looked_at(100, 1000) == pytest.approx(200, abs=60)
    assert looked_at(50, 20) == pytest.approx(100, abs=40)
    assert looked_at(50, 4) == pytest.approx(50, abs=25)


async def test_records_without_texts_are_never_verified(engine: AsyncEngine) -> None:
    verifier = ScriptedTier()
    async with running_monitor(engine, verifier) as monitor:
        await serve(monitor, engine, record("req-1", messages=None, answer=None))

    assert await rows(engine, verifications) == []
    assert verifier.seen == []


async def test_a_spent_budget_stops_sampling(engine: AsyncEngine) -> None:
    # A reference answer may cost up to 4 * (10 + 1024) / 1000 dollars; 5% of one dollar does not pay for that.
    async with running_monitor(
        engine, ScriptedTier(), MonitorSettings(sampling=msgspec.structs.replace(EVERY, budget_share=0.05))
    ) as monitor:
        await serve(monitor, engine, record("req-1"))

    assert await rows(engine, verifications) == []


async def test_a_probe_that_its_budget_does_not_cover_holds_up_no_other_verification(any_engine: AsyncEngine) -> None:
    served = [record(f"req-{i}", created_at=1400.0) for i in range(2)]
    for one in served:
        await store_request(any_engine, one)
    sampling = msgspec.structs.replace(EVERY, budget_share=1.0, probe_share=0.0)
    settings = msgspec.structs.replace(ALL, sampling=sampling, max_tokens=64)
    monitor = await monitor_of(any_engine, ScriptedTier(), settings)
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
    replicas = [await monitor_of(any_engine, ScriptedTier(), settings) for _ in range(3)]
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
