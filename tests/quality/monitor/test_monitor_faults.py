"""The monitor through failing tiers, poisoned requests and restarts."""

import asyncio

import msgspec
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.quality import verifications
from quality.verification.training_rows import EncodedPrompt
from tests.quality.loop_world import ScriptedTier, record, rows, store_request, unavailable
from tests.quality.monitor.monitors import ALL, monitor_of, running_monitor, serve


async def test_a_failing_verifier_is_retried_until_it_rules(
    engine: AsyncEngine,
) -> None:
    verifier = ScriptedTier(faults=[unavailable(), unavailable()])
    async with running_monitor(engine, verifier) as monitor:
        await serve(monitor, engine, record("req-1"))

    [verdict] = await rows(engine, verifications)
    assert (verdict["status"], verdict["attempts"], verdict["label"], verdict["error"]) == ("done", 3, "no_worse", None)


async def test_a_verifier_that_keeps_failing_is_given_up_with_the_reason(engine: AsyncEngine) -> None:
    async with running_monitor(engine, ScriptedTier(faults=[unavailable()] * 3)) as monitor:
        await serve(monitor, engine, record("req-1"), record("req-2"))

    bad, good = await rows(engine, verifications)
    assert (bad["status"], good["status"]) == ("failed", "done")
    assert "the core is gone" in bad["error"]


async def test_an_answer_that_never_comes_ends_with_the_lease(engine: AsyncEngine) -> None:
    stuck = ScriptedTier()
    stuck.hold = asyncio.Event()
    async with running_monitor(
        engine, stuck, msgspec.structs.replace(ALL, lease_seconds=0.01, max_attempts=1)
    ) as monitor:
        await serve(monitor, engine, record("req-1"))

    [verdict] = await rows(engine, verifications)
    assert verdict["status"] == "failed"
    # What the aborted answer cost is not known; what was reserved counts: two answers of tier 4, and one of tier 3.
    assert verdict["cost_usd"] == pytest.approx((4 + 4 + 3) * (10 + 1024) / 1000)


async def test_a_failing_encoder_counts_as_a_failed_attempt(engine: AsyncEngine) -> None:
    async def broken(messages: list[dict[str, str]]) -> EncodedPrompt:
        raise RuntimeError("no such table")

    async with running_monitor(engine, ScriptedTier(), encode=broken) as monitor:
        await serve(monitor, engine, record("req-1"))

    [verdict] = await rows(engine, verifications)
    assert verdict["status"] == "failed"
    assert "no such table" in verdict["error"]


async def test_a_poisoned_request_does_not_block_the_queue(engine: AsyncEngine) -> None:
    async with running_monitor(engine, ScriptedTier()) as monitor:
        await serve(monitor, engine, record("req-1", messages=[{"content": "no role"}]), record("req-2"))

    assert [row["status"] for row in await rows(engine, verifications)] == ["failed", "done"]


async def test_a_restart_goes_on_with_what_was_queued_and_what_was_under_way(engine: AsyncEngine) -> None:
    stuck = ScriptedTier()
    stuck.hold = asyncio.Event()
    async with running_monitor(engine, stuck) as first:
        for i in range(3):
            await store_request(engine, record(f"req-{i}"))
            first.offer(record(f"req-{i}"))
        await asyncio.wait_for(stuck.entered.wait(), 30.0)

    async with running_monitor(engine, ScriptedTier()) as second:
        await second.drain()

    assert [row["status"] for row in await rows(engine, verifications)] == ["done"] * 3


async def test_draining_a_monitor_that_does_not_run_is_an_error(engine: AsyncEngine) -> None:
    monitor = await monitor_of(engine, ScriptedTier())

    with pytest.raises(RuntimeError, match="call start"):
        await monitor.drain()
