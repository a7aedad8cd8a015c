"""Rows inserted by a prepared statement are those that SQLAlchemy's own insert stores, and each statement is prepared
once."""

import msgspec
from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.requests import requests
from quality.store import queries
from quality.store.queries import insert_if_absent, request_row
from tests.quality.store.records import make_embedding, make_record

RECORDS = [
    make_record("r-1", answer="a\x00b", messages=[{"role": "user", "content": "\x00?"}], tags={"project": "x"}),
    make_record("r-2", answer=None, messages=None, error="TierError: \x00", stream=True),
    make_embedding("e-1"),
]


async def test_the_rows_are_those_of_an_ordinary_insert(engine: AsyncEngine) -> None:
    found = []
    for prepared in (True, False):
        async with engine.connect() as connection:
            rows = [request_row(record) for record in RECORDS]
            if prepared:
                await insert_if_absent(connection, requests, rows)
            else:
                await connection.execute(insert(requests), rows)
            stored = (await connection.execute(select(requests).order_by(requests.c.request_id))).mappings().all()
            found.append([dict(row) for row in stored])
            await connection.rollback()
    assert found[0] == found[1]
    assert [row["answer"] for row in found[0]] == [None, "a\ufffdb", None]


async def test_a_row_that_is_there_stays_and_no_statement_is_prepared_again(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await insert_if_absent(connection, requests, [request_row(RECORDS[0])])
        known = queries._prepared.cache_info().misses
        changed = [msgspec.structs.replace(record, model="another") for record in RECORDS]
        await insert_if_absent(connection, requests, map(request_row, changed))
        found = await connection.execute(select(requests.c.request_id, requests.c.model))
        models = {row.request_id: row.model for row in found}
    assert models == {"r-1": RECORDS[0].model, "r-2": "another", "e-1": "another"}
    assert queries._prepared.cache_info().misses == known
