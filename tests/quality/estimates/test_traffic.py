"""The traffic over time: buckets hold what happened in them, whichever database counts (SPEC OB-12)."""

from typing import Any

import msgspec
import pytest
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.tenancy.changes import Order
from gateway.tenancy.keys.key_commands import KeyTerms, create_key
from migrations.tables.quality import verifications
from migrations.tables.requests import refused_requests
from quality.estimates.traffic import SPANS, Span, read_traffic
from quality.estimates.verified_sample import PEOPLE
from quality.store.queries import RefusalCount, RefusalKind, add_refused
from tests.gateway.operations.dashboard.rows import insert_requests
from tests.quality.estimates.test_estimates import plans_of

NOW = 1_800_000_030.0
MINUTE = 60.0


def row(number: int, ago: float, **fields: Any) -> dict[str, Any]:
    usual = {"ttft_ms": 100.0, "cost_usd": 0.5, "baseline_cost_usd": 2.0}
    return {"request_id": f"r{number}", "created_at": NOW - ago, **usual, **fields}


async def refuse(engine: AsyncEngine, *refusals: tuple[float, int, str, int]) -> None:
    """Store refusals: the minute's age, status, code and count."""
    alike = {"key_id": "k", "reason": "", "path": "", "last_at": NOW, "last_request_id": "", "last_message": None}
    rows = [
        {"refusal_id": str(n), "created_at": (NOW - ago) // MINUTE * MINUTE, "status": status, "code": code, **alike}
        | {"count": count}
        for n, (ago, status, code, count) in enumerate(refusals)
    ]
    async with engine.begin() as connection:
        await connection.execute(insert(refused_requests), rows)


async def test_each_bucket_has_what_happened_in_it(any_engine: AsyncEngine) -> None:
    await insert_requests(
        any_engine,
        row(1, 5, tier=1),
        row(2, 29, tier=2),
        row(3, 31, tier=2, status="error", ttft_ms=None),
        row(4, 95, tier=2, status="aborted"),
        row(5, 20 * MINUTE, tier=1),
        row(6, 7, tier=None, ttft_ms=None),
    )
    await refuse(any_engine, (40, 429, "budget", 3), (40, 401, "no_key", 5), (100, 429, "budget", 4))

    traffic = await read_traffic(any_engine, "15m", NOW)

    assert len(traffic.buckets) == 15
    latest = {round((NOW - bucket.at) // MINUTE): bucket for bucket in traffic.buckets[-3:]}
    assert [latest[age].answered for age in (0, 1, 2)] == [{1: 1, 2: 1}, {}, {2: 1}]
    assert [latest[age].failed for age in (0, 1, 2)] == [0, 1, 0]
    assert [latest[age].refused for age in (0, 1, 2)] == [0, 8, 4]
    assert [latest[age].cost_usd for age in (0, 1, 2)] == [1.0, 0.5, 0.5]
    assert latest[1].ttft_p50 is None
    together = traffic.together
    assert (together.answered, together.failed, together.refused) == ({1: 1, 2: 2}, 1, 12)
    assert (together.cost_usd, together.strongest_usd) == (2.0, 8.0)
    assert together.admitted == 4
    assert [(cause.status, cause.code, cause.count) for cause in traffic.causes] == [
        (429, "budget", 7), (401, "no_key", 5)
    ]  # fmt: skip


async def test_the_keys_of_a_cause_come_the_most_refused_first(any_engine: AsyncEngine) -> None:
    named = (await create_key(any_engine, "nightly", None, KeyTerms(), Order(actor="test", now=1.0))).key_id
    usual = RefusalKind(None, 429, "budget", "", "")
    counts = {named: 5, "of-settings": 9, None: 7, "few": 2, "fewer": 1}
    await add_refused(
        any_engine,
        [
            (NOW // MINUTE * MINUTE, msgspec.structs.replace(usual, key_id=key), RefusalCount(n))
            for key, n in counts.items()
        ],
    )

    [cause] = (await read_traffic(any_engine, "1h", NOW)).causes

    assert cause.count == 24
    assert [(key.key_id, key.name, key.count) for key in cause.keys] == [
        ("of-settings", "of-settings", 9), (None, None, 7), (named, "nightly", 5)
    ]  # fmt: skip
    assert cause.other_keys == 2


@pytest.mark.parametrize("span", SPANS)
async def test_a_span_begins_and_ends_where_its_buckets_do(sqlite_engine: AsyncEngine, span: Span) -> None:
    length, seconds = SPANS[span]
    await insert_requests(sqlite_engine, row(1, 0), row(2, length - seconds), row(3, length + seconds))

    traffic = await read_traffic(sqlite_engine, span, NOW)

    assert traffic.buckets[-1].at <= NOW < traffic.buckets[-1].at + seconds
    assert {late.at - early.at for early, late in zip(traffic.buckets, traffic.buckets[1:], strict=False)} == {seconds}
    assert len(traffic.buckets) * seconds == length
    assert sum(bucket.answered.get(1, 0) for bucket in traffic.buckets) == 2


async def test_verdicts_count_where_they_were_given_and_those_of_people_do_not(any_engine: AsyncEngine) -> None:
    alike = {
        "tier": 1, "model": "m", "sampled_probability": 1.0, "sampled_reason": "sample", "status": "done",
        "cost_usd": 0.0, "reserved_usd": 0.0, "attempts": 1, "created_at": NOW - 5000,
    }  # fmt: skip
    given = [
        (20, "no_worse", "exact"), (20, "worse", "pairwise"), (70, "tie", "pairwise"), (70, "uncertain", "pairwise"),
        (70, "worse", PEOPLE), (20 * MINUTE, "worse", "exact"),
    ]  # fmt: skip
    rows = [
        {**alike, "request_id": str(n), "finished_at": NOW - ago, "label": label, "judge": judge}
        for n, (ago, label, judge) in enumerate(given)
    ]
    async with any_engine.begin() as connection:
        await connection.execute(insert(verifications), rows)

    traffic = await read_traffic(any_engine, "15m", NOW)

    assert [(bucket.verified, bucket.worse) for bucket in traffic.buckets[-2:]] == [(1, 0), (2, 1)]
    assert (traffic.together.verified, traffic.together.worse) == (3, 1)


async def test_times_to_the_first_token_are_near_their_quantiles(sqlite_engine: AsyncEngine) -> None:
    await insert_requests(sqlite_engine, *(row(n, 1, ttft_ms=float(n)) for n in range(1, 1001)))

    together = (await read_traffic(sqlite_engine, "15m", NOW)).together

    assert together.ttft_p50 == pytest.approx(0.5, rel=0.2)
    assert together.ttft_p95 == pytest.approx(0.95, rel=0.2)


@pytest.mark.parametrize("milliseconds", [0.0, 2.0, 1e7])
async def test_times_beyond_the_classes_count_in_the_outer_ones(
    sqlite_engine: AsyncEngine, milliseconds: float
) -> None:
    await insert_requests(sqlite_engine, row(1, 1, ttft_ms=milliseconds))
    p95 = (await read_traffic(sqlite_engine, "15m", NOW)).together.ttft_p95
    assert p95 is not None
    assert 0 < p95 <= 70


async def test_it_is_read_from_indexes_alone(sqlite_engine: AsyncEngine) -> None:
    plans = await plans_of(sqlite_engine, lambda engine: read_traffic(engine, "7d", NOW))
    of_requests = [line for line in plans if "requests" in line and "refused" not in line]
    assert of_requests == ["SEARCH requests USING COVERING INDEX ix_requests_traffic (created_at>?)"]
