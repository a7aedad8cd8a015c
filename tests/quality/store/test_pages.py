"""Lists of stored rows: complete, in order, filtered, and always found by an index."""

import random
from contextlib import suppress
from itertools import chain, combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import insert, text
from sqlalchemy.dialects import sqlite
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.audit import audit_events
from migrations.tables.quality import verifications
from migrations.tables.requests import requests
from quality.store.pages import (
    ARTEFACTS,
    BATCHES,
    EXPERIMENTS,
    REFUSED,
    REQUESTS,
    RETRAININGS,
    ROLLOUTS,
    TRANSITIONS,
    VERIFICATIONS,
    PageError,
)
from quality.store.queries import request_row
from tests.examples import examples
from tests.quality.store.records import make_record

LISTINGS = {
    "requests": REQUESTS,
    "refused": REFUSED,
    "verifications": VERIFICATIONS,
    "artefacts": ARTEFACTS,
    "transitions": TRANSITIONS,
    "runs": RETRAININGS,
    "rollouts": ROLLOUTS,
    "experiments": EXPERIMENTS,
    "batches": BATCHES,
}


async def store_events(engine: AsyncEngine, times: list[float]) -> None:
    rows = [
        {"created_at": at, "actor": "ann" if i % 2 else "bob", "action": "test", "subject": str(i)}
        for i, at in enumerate(times)
    ]
    async with engine.begin() as connection:
        await connection.execute(insert(audit_events), rows)


async def subjects(engine: AsyncEngine, limit: int, **chosen: str) -> list[list[int]]:
    """The pages of events from the first to the last."""
    pages, cursor = [], None
    while True:
        page = await TRANSITIONS.page(engine, chosen, limit=limit, cursor=cursor)
        pages.append([int(row["subject"]) for row in page.rows])
        cursor = page.next
        if cursor is None:
            return pages


async def test_pages_go_from_the_newest_to_the_oldest_and_none_is_left_out_or_twice(any_engine: AsyncEngine) -> None:
    # Several at the same time: only the key tells them apart.
    await store_events(any_engine, [1.0, 2.0, 2.0, 2.0, 3.5, 2.0, 0.1 + 0.2])

    assert await subjects(any_engine, 2) == [[4, 5], [3, 2], [1, 0], [6]]
    assert await subjects(any_engine, 100) == [[4, 5, 3, 2, 1, 0, 6]]
    assert await subjects(any_engine, 2, actor="ann") == [[5, 3], [1]]


async def test_rows_inserted_between_pages_shift_nothing(sqlite_engine: AsyncEngine) -> None:
    await store_events(sqlite_engine, [1.0, 2.0, 3.0])
    first = await TRANSITIONS.page(sqlite_engine, {}, limit=2)
    await store_events(sqlite_engine, [9.0])

    second = await TRANSITIONS.page(sqlite_engine, {}, limit=2, cursor=first.next)

    assert [row["created_at"] for row in first.rows + second.rows] == [3.0, 2.0, 1.0]


async def test_times_bound_a_list(sqlite_engine: AsyncEngine) -> None:
    await store_events(sqlite_engine, [1.0, 2.0, 3.0])

    page = await TRANSITIONS.page(sqlite_engine, {}, since=2.0, until=3.0)

    assert [row["created_at"] for row in page.rows] == [2.0]


@pytest.mark.parametrize("name", LISTINGS)
async def test_every_combination_of_filters_is_answered_by_an_index_without_sorting(
    sqlite_engine: AsyncEngine, name: str
) -> None:
    listing = LISTINGS[name]
    faceted = set(listing.facets.columns) if listing.facets is not None else set()
    plain = [column for column in listing.filters if column not in faceted]
    for columns in chain.from_iterable(combinations(plain, n) for n in range(len(plain) + 1)):
        chosen = {column: listing.kind(column)(1) for column in columns}
        for cursor in (None, "5.0:1"):
            plan = await plan_of(sqlite_engine, listing.query(chosen, cursor=cursor))
            # Rows of one moment may be sorted among themselves. All filters bind the index: none is tried row by row.
            assert "USING INDEX" in plan, (name, columns, cursor, plan)
            assert "TEMP B-TREE FOR ORDER BY" not in plan, (name, columns, cursor, plan)
            assert all(f"{column}=?" in plan for column in columns), (name, columns, cursor, plan)


async def store_verifications(engine: AsyncEngine, count: int) -> list[dict[str, Any]]:
    """Of every kind, several at a time; those who were never judged have no label and no judge."""
    rng = random.Random(5)
    rows = []
    for number in range(count):
        judge = rng.choice([None, "exact", "user"])
        rows.append(
            {
                "request_id": f"r{number}", "key_id": rng.choice([None, "ann", "bob"]), "tier": rng.randint(1, 4),
                "model": "m", "sampled_probability": 1.0, "sampled_reason": rng.choice(["sample", "a/b"]),
                "status": "pending" if judge is None else "done", "judge": judge,
                "label": None if judge is None else rng.choice(["worse", "no_worse"]), "cost_usd": 0.0,
                "reserved_usd": 0.0, "attempts": 1, "created_at": float(rng.randint(1, 9)),
            }
        )  # fmt: skip
    async with engine.begin() as connection:
        await connection.execute(insert(verifications), rows)
    return [row | {"verification_id": place + 1} for place, row in enumerate(rows)]


async def test_verifications_by_any_combination_of_filters_are_all_there_and_in_order(
    any_engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quality.store.pages.MOST_AT_ONCE", 3)
    monkeypatch.setattr("quality.store.pages.LOOKED_THROUGH", 40)
    stored = await store_verifications(any_engine, 300)
    values = {"tier": 1, "status": "done", "label": "worse", "judge": "exact", "sampled_reason": "a/b", "key_id": "ann"}
    for columns in chain.from_iterable(combinations(values, n) for n in range(len(values) + 1)):
        chosen = {column: values[column] for column in columns}
        first = await VERIFICATIONS.page(any_engine, chosen, limit=7, since=2.0, until=9.0)
        second = await VERIFICATIONS.page(any_engine, chosen, limit=7, since=2.0, until=9.0, cursor=first.next)
        found = [row["verification_id"] for row in first.rows + (second.rows if first.next else [])]
        fitting = [row for row in stored if chosen.items() <= row.items() and 2.0 <= row["created_at"] < 9.0]
        fitting.sort(key=lambda row: (row["created_at"], row["verification_id"]), reverse=True)
        assert found == [row["verification_id"] for row in fitting][:14], columns


async def test_requests_by_any_combination_of_filters_are_all_there_and_in_order(
    any_engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quality.store.pages.MOST_AT_ONCE", 3)
    monkeypatch.setattr("quality.store.pages.LOOKED_THROUGH", 40)
    rng = random.Random(7)
    stored = [
        request_row(
            make_record(
                f"r{number:03}",
                created_at=float(rng.randint(1, 9)),
                tier=rng.randint(1, 2),
                status=rng.choice(["ok", "ok", "error"]),
                requested_model=rng.choice(["auto", "an/other/model"]),
                key_id=rng.choice([None, "ann", "bob"]),
            )
        )
        for number in range(300)
    ]
    # Of embeddings, which no tier answers.
    stored += [row | {"request_id": f"{row['request_id']}-e", "tier": None} for row in stored[:20]]
    async with any_engine.begin() as connection:
        await connection.execute(insert(requests), stored)
    values = {"tier": 1, "status": "error", "requested_model": "an/other/model", "key_id": "ann"}
    for columns in chain.from_iterable(combinations(values, n) for n in range(len(values) + 1)):
        chosen = {column: values[column] for column in columns}
        first = await REQUESTS.page(any_engine, chosen, limit=5)
        second = await REQUESTS.page(any_engine, chosen, limit=5, cursor=first.next)
        found = [row["request_id"] for row in first.rows + (second.rows if first.next else [])]
        fitting = [row for row in stored if chosen.items() <= row.items()]
        fitting.sort(key=lambda row: (row["created_at"], row["request_id"]), reverse=True)
        assert found == [row["request_id"] for row in fitting][:10], columns


async def test_a_filter_without_rows_gives_an_empty_page(any_engine: AsyncEngine) -> None:
    await store_verifications(any_engine, 10)
    page = await VERIFICATIONS.page(any_engine, {"judge": "exact", "status": "pending"})
    assert (page.rows, page.next) == ([], None)


@pytest.mark.parametrize("owner", [{}, {"key_id": "ann"}])
async def test_combinations_are_found_by_the_index_alone(sqlite_engine: AsyncEngine, owner: dict[str, str]) -> None:
    assert VERIFICATIONS.facets is not None
    query = VERIFICATIONS.facets.statement(["1/done/worse/exact/sample"], owner, {"limit": 9, "at": 5.0, "last": 1})
    plan = await plan_of(sqlite_engine, query)
    assert "USING INDEX ix_verifications" in plan
    assert f"({'key_id=? AND ' if owner else ''}facet=? AND created_at<?)" in plan
    # Only what the combinations give is merged by sorting.
    assert plan.count("TEMP B-TREE") == 1


async def plan_of(engine: AsyncEngine, query: Any) -> str:
    compiled = query.compile(dialect=sqlite.dialect(), compile_kwargs={"literal_binds": True})
    async with engine.connect() as connection:
        rows = await connection.execute(text(f"EXPLAIN QUERY PLAN {compiled}"))
        return "; ".join(str(row[-1]) for row in rows)


async def test_a_row_alone_is_shown_whole(sqlite_engine: AsyncEngine) -> None:
    await store_events(sqlite_engine, [1.0])

    whole = await TRANSITIONS.one(sqlite_engine, 1)

    assert whole is not None
    assert whole["subject"] == "0"
    assert await TRANSITIONS.one(sqlite_engine, 99) is None


@pytest.mark.parametrize(("bounds", "param"), [({"limit": 0}, "limit"), ({"limit": 10**6}, "limit")])
def test_limits_out_of_range_are_refused(bounds: dict[str, int], param: str) -> None:
    with pytest.raises(PageError) as refused:
        VERIFICATIONS.query({}, **bounds)
    assert refused.value.param == param


@settings(max_examples=examples(50))
@given(cursor=st.text(max_size=20))
def test_a_cursor_is_a_position_or_is_refused(cursor: str) -> None:
    for listing in (VERIFICATIONS, ARTEFACTS):
        with suppress(PageError):
            assert listing.query({}, cursor=cursor) is not None
