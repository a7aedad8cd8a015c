"""Stage timings of answers from the ledger: medians of answers made by a tier only."""

import msgspec
import pytest
from records import make_record
from sqlalchemy.ext.asyncio import AsyncEngine

from quality.estimates.served import answer_timings
from quality.records.record import Record, Timings
from quality.store.queries import insert_records


def answered(number: int, *, tier: int = 1, decode_ms: float | None = 900.0, **changes: object) -> Record:
    timings = Timings(
        route_ms=number, ttft_ms=70.0, e2e_ms=1000.0 + number, overhead_ms=2.0 * number,
        queue_ms=10.0, prefill_ms=50.0, decode_ms=decode_ms,
    )  # fmt: skip
    record = make_record(f"r-{tier}-{number}-{len(changes)}", tier=tier, completion_tokens=101, timings=timings)
    return msgspec.structs.replace(record, created_at=100.0 + number, **changes)


async def stored(engine: AsyncEngine, *records: Record) -> None:
    async with engine.begin() as connection:
        await insert_records(connection, records)


async def test_medians_are_of_the_answers_of_a_tier_within_the_stretch(engine: AsyncEngine) -> None:
    await stored(engine, *(answered(number) for number in range(1, 10)), answered(3, tier=2))

    found = await answer_timings(engine, 102.0, 106.0, tier=1)

    assert found is not None
    assert (found.answers, found.route_ms, found.stream_ms) == (4, 3.5, 3.5)
    assert (found.queue_ms, found.prefill_ms, found.token_ms) == (10.0, 50.0, 9.0)
    assert found.e2e_p95_ms == pytest.approx(1004.85)
    every = await answer_timings(engine, 102.0, 106.0)
    assert every is not None
    assert every.answers == 5


async def test_failures_kept_answers_and_single_tokens_say_nothing_of_a_tier(engine: AsyncEngine) -> None:
    await stored(
        engine,
        answered(1, status="error"),
        answered(2, cache="hit"),
        answered(3, completion_tokens=1),
        answered(4, decode_ms=None, tier=2),
    )
    assert await answer_timings(engine, 0.0, 1e9) is None
