"""Queues of lines, once of each kind."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.gateway.batches.queue_bench import Bench, bench


@pytest_asyncio.fixture(params=["sqlite", "postgresql", "redis"])
async def queues(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    if request.param == "postgresql":
        # Its fixture runs its own event loop.
        url = await asyncio.to_thread(request.getfixturevalue("postgres_server").emptied_database)
    else:
        url = request.getfixturevalue("sqlite_url")
    redis = request.getfixturevalue("redis_server") if request.param == "redis" else None
    async with bench(url, redis) as made:
        yield made
