"""The key whose requests have become dearest against its own week."""

import pytest
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.requests import requests
from quality.estimates.costs import BEFORE_SECONDS, LATELY_SECONDS, dearest_key
from tests.gateway.operations.dashboard.rows import SERVED

NOW = 1_900_000_000.0


async def add(engine: AsyncEngine, key: str | None, ago: float, usd: float, count: int = 20) -> None:
    rows = [
        SERVED | {"request_id": f"{key}-{ago}-{n}", "key_id": key, "created_at": NOW - ago, "cost_usd": usd}
        for n in range(count)
    ]
    async with engine.begin() as connection:
        await connection.execute(insert(requests), rows)


async def test_the_key_whose_requests_have_become_dearest_is_found_with_its_figures(engine: AsyncEngine) -> None:
    for key, before, lately in (("ada", 0.001, 0.004), ("bob", 0.1, 0.1), (None, 0.002, 0.001)):
        await add(engine, key, LATELY_SECONDS + 1, before, 40)
        await add(engine, key, 1, lately)
    found = await dearest_key(engine, NOW)
    assert found is not None
    assert (found.key_id, found.ratio) == ("ada", pytest.approx(4.0))
    said = "key ada: $0.004 a request in the last hour (20 requests), $0.001 in the week before (40)"
    assert found.text == said


@pytest.mark.parametrize(
    ("ago", "usd", "count"),
    [(LATELY_SECONDS + 1, 0.001, 19), (LATELY_SECONDS + BEFORE_SECONDS + 1, 0.001, 20), (LATELY_SECONDS + 1, 0.0, 20)],
    ids=["too few", "too long ago", "free"],
)
async def test_a_key_without_a_week_to_compare_with_says_nothing(
    engine: AsyncEngine, ago: float, usd: float, count: int
) -> None:
    await add(engine, "ada", ago, usd, count)
    await add(engine, "ada", 1, 1.0)
    assert await dearest_key(engine, NOW) is None


async def test_few_requests_of_the_last_hour_say_nothing(engine: AsyncEngine) -> None:
    await add(engine, "ada", LATELY_SECONDS + 1, 0.001)
    await add(engine, "ada", 1, 1.0, 19)
    assert await dearest_key(engine, NOW) is None


async def test_requests_without_a_key_are_named_so(engine: AsyncEngine) -> None:
    await add(engine, None, LATELY_SECONDS + 1, 0.001)
    await add(engine, None, 1, 0.01)
    found = await dearest_key(engine, NOW)
    assert found is not None
    assert found.text.startswith("requests without a key: $0.01 a request")
