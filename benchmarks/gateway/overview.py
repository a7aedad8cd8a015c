"""What opening the overview asks of the database: the reading of each span, and how long the event loop is held up."""

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import click
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from benchmarks.report.kept import echo_row
from gateway.cli.options import json_option
from migrations.tables.requests import requests
from quality.estimates.traffic import SPANS, Span, read_traffic
from quality.store.database import database_opened, migrate

READINGS = 5
BATCH = 5_000
WEEK_SECONDS = 604_800.0
TICK_SECONDS = 0.001
_RECORD: dict[str, Any] = {
    "api": "chat", "requested_model": "auto", "stream": False, "http_status": 200, "model": "m", "attempts": [],
    "messages": [{"role": "user", "content": "x" * 800}], "answer": "y" * 900, "prompt_tokens": 200,
    "completion_tokens": 200, "cached_tokens": 0, "reasoning_tokens": 0, "baseline_cost_usd": 0.01, "route_ms": 0.1,
    "e2e_ms": 900.0, "overhead_ms": 0.5,
}  # fmt: skip


def records(count: int, now: float) -> Iterator[dict[str, Any]]:
    """Yield rows of requests of the week that ends `now`, on four tiers, one in thirty of them failed."""
    drawn = random.Random(1)
    for number in range(count):
        yield _RECORD | {
            "request_id": f"r{number}",
            "created_at": now - drawn.random() * WEEK_SECONDS,
            "tier": drawn.choice((1, 1, 1, 2, 2, 3, 4)),
            "status": "error" if drawn.random() < 1 / 30 else "ok",
            "ttft_ms": drawn.lognormvariate(5, 1),
            "cost_usd": drawn.random() / 100,
        }


async def bench_overview(database: AsyncEngine, span: Span, now: float) -> dict[str, Any]:
    """Return the seconds of a reading of the span, and the longest time for which the event loop was held up."""
    seconds, lags = [], []
    for _ in range(READINGS):
        lag = asyncio.create_task(_longest_tick())
        began = time.perf_counter()
        traffic = await read_traffic(database, span, now)
        seconds.append(time.perf_counter() - began)
        lag.cancel()
        lags.append(await lag)
    return {
        "measure": "overview",
        "span": span,
        "requests": sum(traffic.together.answered.values()),
        "milliseconds": round(statistics.median(seconds) * 1e3, 1),
        "milliseconds_max": round(max(seconds) * 1e3, 1),
        "loop_held_up_ms": round(max(lags) * 1e3, 1),
    }


async def _longest_tick() -> float:
    """Return, when cancelled, the longest time by which a short sleep was late."""
    longest = 0.0
    try:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(TICK_SECONDS)
            longest = max(longest, time.perf_counter() - began - TICK_SECONDS)
    except asyncio.CancelledError:
        return longest


@click.command()
@click.option("--records", "count", type=click.IntRange(min=1), default=100_000, help="Stored requests, of one week.")
@json_option
def overview(count: int, as_json: bool) -> None:
    """What opening the overview asks of a SQLite database."""
    asyncio.run(_run(count, as_json))


async def _run(count: int, as_json: bool) -> None:
    now = time.time()
    with tempfile.TemporaryDirectory(prefix="aio-bench-") as folder:
        url = f"sqlite:///{Path(folder) / 'store.db'}"
        await migrate(url)
        async with database_opened(url) as database:
            async with database.begin() as connection:
                made = records(count, now)
                while rows := list(islice(made, BATCH)):
                    await connection.execute(insert(requests), rows)
            for span in SPANS:
                echo_row(await bench_overview(database, span, now), as_json)
