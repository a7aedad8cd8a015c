"""Retention: rows beyond age or number are deleted, needed rows stay, in batches on every database."""

from typing import Any

import pytest
from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.quality import training_rows, verifications
from migrations.tables.requests import refused_requests, requests, routing_decisions
from quality.privacy import Purged, Retention, RetentionLimits
from quality.store.queries import RefusalCount, RefusalKind, add_refused, delete_key_data, get_request, insert_records
from tests.quality.store.records import make_record

DAY = 86_400.0
NOW = 1_000 * DAY


def retention(engine: AsyncEngine, **limits: Any) -> Retention:
    given = {"text_days": None, "days": None} | limits
    return Retention(engine, RetentionLimits(**given), batch=2, pause_seconds=0.0, clock=lambda: NOW)


async def serve(engine: AsyncEngine, **ages: float) -> None:
    """A request per name, so many days old, each with a done verification and a training row."""
    async with engine.begin() as connection:
        for name, days in ages.items():
            at = NOW - days * DAY
            await insert_records(connection, [make_record(name, created_at=at)])
            await connection.execute(insert(verifications), verification(name, at, "done"))
            row = {"request_id": name, "source": "verification", "feature_spec": "f", "embedding": b"", "no_worse": []}
            await connection.execute(insert(training_rows), row | {"weights": [], "created_at": at})


def verification(name: str, at: float, status: str) -> dict[str, Any]:
    return {
        "request_id": name, "tier": 1, "model": "m", "sampled_probability": 1.0, "sampled_reason": "sample",
        "status": status, "cost_usd": 0.0, "reserved_usd": 0.0, "attempts": 1, "created_at": at,
        "verifier_answer": "a text", "judged_answer": "a text", "reason": "because of a text", "label": "worse",
    }  # fmt: skip


async def left(engine: AsyncEngine, table: Any) -> set[str]:
    async with engine.connect() as connection:
        return set((await connection.execute(select(table.c.request_id))).scalars())


async def test_nothing_goes_without_limits(engine: AsyncEngine) -> None:
    await serve(engine, old=900.0)

    assert await retention(engine).purge() == Purged()


async def test_old_rows_go_with_their_routing_and_verifications_and_training_has_limits_of_its_own(
    engine: AsyncEngine,
) -> None:
    await serve(engine, a=90.0, b=80.0, c=70.0, d=31.0, new=29.0)

    purged = await retention(engine, days=30.0, training_days=75.0).purge()

    assert purged == Purged(requests=4, verifications=4, training_rows=2)
    for table in (requests, routing_decisions, verifications):
        assert await left(engine, table) == {"new"}
    assert await left(engine, training_rows) == {"c", "d", "new"}


async def test_only_so_many_rows_stay_the_newest(engine: AsyncEngine) -> None:
    await serve(engine, a=5.0, b=4.0, c=3.0, d=2.0, e=1.5)

    purged = await retention(engine, rows=2, training_rows=1).purge()

    assert purged == Purged(requests=3, verifications=3, training_rows=4)
    assert await left(engine, requests) == {"d", "e"}
    assert await left(engine, training_rows) == {"e"}


async def test_rows_that_the_current_budget_counts_are_kept(engine: AsyncEngine) -> None:
    await serve(engine, a=0.9, b=0.5)

    await retention(engine, rows=0, days=0.0).purge()

    assert await left(engine, verifications) == {"a", "b"}


async def test_texts_go_before_their_rows(engine: AsyncEngine) -> None:
    await serve(engine, a=9.0, b=8.0, c=7.5, new=1.0)

    purged = await retention(engine, text_days=7.0).purge()

    assert purged == Purged(texts=6)
    old, new = await get_request(engine, "a"), await get_request(engine, "new")
    assert old is not None
    assert new is not None
    assert (old.messages, old.answer, old.reasoning) == (None, None, None)
    assert new.answer == "Bern."
    async with engine.connect() as connection:
        query = select(*(verifications.c[name] for name in ("verifier_answer", "judged_answer", "reason", "label")))
        kept = (await connection.execute(query.order_by(verifications.c.created_at))).all()
    assert kept == [(None, None, None, "worse")] * 3 + [("a text", "a text", "because of a text", "worse")]
    # The second time there is nothing left to do.
    assert await retention(engine, text_days=7.0).purge() == Purged()


async def test_with_no_days_for_texts_they_stay_until_they_are_verified(engine: AsyncEngine) -> None:
    seconds = 1 / DAY
    await serve(engine, fresh=5 * seconds, done=90 * seconds)
    async with engine.begin() as connection:
        await insert_records(connection, [make_record("waiting", created_at=NOW - 2 * DAY)])
        await connection.execute(insert(verifications), verification("waiting", NOW - 2 * DAY, "pending"))

    await retention(engine, text_days=0.0, days=1.0).purge()

    for name, has_text in (("fresh", True), ("done", False), ("waiting", True)):
        record = await get_request(engine, name)
        assert record is not None
        assert (record.answer is not None) is has_text, name
    assert await left(engine, training_rows) == {"fresh", "done"}


def test_limits_below_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="rows is -1"):
        RetentionLimits(rows=-1)


async def test_counts_of_refused_requests_go_by_age_by_number_and_with_their_user(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def counted(key_id: str, days: float) -> tuple[float, RefusalKind, RefusalCount]:
        return NOW - days * DAY, RefusalKind(key_id, 429, "rate_limit_exceeded", "", ""), RefusalCount(1, NOW, "r")

    async def keys() -> set[str]:
        async with engine.connect() as connection:
            return set((await connection.execute(select(refused_requests.c.key_id))).scalars())

    await add_refused(engine, [counted("old", 40), *(counted(name, age) for age, name in enumerate("abc"))])
    await retention(engine, days=30.0).purge()
    assert await keys() == {"a", "b", "c"}
    monkeypatch.setattr("quality.privacy.MOST_REFUSED", 2)
    await retention(engine, days=30.0).purge()
    assert await keys() == {"a", "b"}
    await delete_key_data(engine, "a", now=NOW)
    assert await keys() == {"b"}


async def test_beyond_its_bytes_the_oldest_requests_go_those_with_labels_last(sqlite_engine: AsyncEngine) -> None:
    await serve(sqlite_engine, labelled=300.0)
    async with sqlite_engine.begin() as connection:
        for age in range(200, 100, -1):
            record = make_record(f"r{age}", created_at=NOW - age * DAY, answer="a" * 10_000)
            await insert_records(connection, [record])
    full = await retention(sqlite_engine)._used_bytes()

    limited = retention(sqlite_engine, gigabytes=(full - 400_000) / 1e9)
    purged = await limited.purge()

    assert 30 <= purged.requests < 60
    assert await limited._used_bytes() <= full - 400_000
    kept = {"labelled", *(f"r{age}" for age in range(101, 201 - purged.requests))}
    assert await left(sqlite_engine, requests) == await left(sqlite_engine, routing_decisions) == kept
    assert (await limited.purge()).requests == 0
    everything = await retention(sqlite_engine, gigabytes=0.0).purge()
    assert everything.requests == len(kept)
