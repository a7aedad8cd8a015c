"""Lists of what the quality loop stored: whole, in order, filtered, and always found by an index."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import insert, text
from sqlalchemy.dialects import sqlite
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables import audit_events
from quality.listings import ARTEFACTS, RETRAININGS, TRANSITIONS, VERIFICATIONS
from quality.pages import PageError

LISTINGS = {"verifications": VERIFICATIONS, "artefacts": ARTEFACTS, "transitions": TRANSITIONS, "runs": RETRAININGS}


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


async def test_what_comes_in_between_pages_moves_nothing(sqlite_engine: AsyncEngine) -> None:
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
async def test_every_filter_is_answered_by_an_index_without_sorting(sqlite_engine: AsyncEngine, name: str) -> None:
    listing = LISTINGS[name]
    for column in (None, *listing.filters):
        chosen = {} if column is None else {column: listing.kind(column)(1)}
        for cursor in (None, "5.0:1"):
            query = listing.query(chosen, cursor=cursor)
            plan = await plan_of(sqlite_engine, query)
            # Rows of one moment may be sorted among themselves.
            assert "USING INDEX" in plan, (name, column, cursor, plan)
            assert "TEMP B-TREE FOR ORDER BY" not in plan, (name, column, cursor, plan)


async def plan_of(engine: AsyncEngine, query: object) -> str:
    compiled = query.compile(dialect=sqlite.dialect(), compile_kwargs={"literal_binds": True})  # type: ignore[attr-defined]
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


@settings(max_examples=50)
@given(cursor=st.text(max_size=20))
def test_a_cursor_is_a_position_or_is_refused(cursor: str) -> None:
    for listing in (VERIFICATIONS, ARTEFACTS):
        with suppress(PageError):
            assert listing.query({}, cursor=cursor) is not None
