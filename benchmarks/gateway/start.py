"""How fast a server is ready and how much memory it keeps: measured on real processes from outside."""

import asyncio
import statistics
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any

import click
import httpx
import msgspec

from benchmarks.gateway.process_figures import resident_bytes
from benchmarks.report.kept import echo_row
from gateway.base.settings import Settings
from gateway.operations.cli.options import cache_dir_option, catalog_option, json_option, settings_from, staged_progress
from gateway.planning.load_test.http_target import ServerProcess, launched, running_server, stopped
from gateway.planning.load_test.workload import Prompts
from tiers.catalog.load import load_catalog

MODELS = ("tier-1", "tier-2", "tier-1", "tier-3", "tier-1", "tier-4")
IN_FLIGHT = 8
Progress = Callable[[str, float], None]


async def bench_start(
    settings: Settings, *, starts: int, requests: int, samples: int, progress: Progress
) -> AsyncIterator[dict[str, Any]]:
    """Rows: time until ready over `starts` first starts, which repack weights, and as many warm ones per role; then
    memory, over `requests` requests.

    Every warm start but the first, which is not counted, finds repacked weights and compiled Python. Resident bytes are
    read `samples` times, evenly over the requests, of prompts that all differ, streamed and whole, on all tiers.
    """
    environment = {"AIO_LOG_LEVEL": "error", "AIO_MONITOR": "false"}
    yield await _first_row(settings, environment, starts, progress)
    yield await _ready_row(settings, environment, "all", starts, progress)
    async with running_cores(settings):
        yield await _ready_row(settings, environment, "gateway", starts, progress)
    async with running_server(settings, environment) as server:
        yield {"measure": "memory", "requests": 0, "resident_mb": round(resident_bytes(server.pid) / 1e6, 1)}
        async for done in _served(server, requests, max(1, requests // samples), progress):
            yield {"measure": "memory", "requests": done, "resident_mb": round(resident_bytes(server.pid) / 1e6, 1)}


async def _first_row(
    settings: Settings, environment: dict[str, str], starts: int, progress: Progress
) -> dict[str, Any]:
    """Every start has an empty folder of repacked weights; Python is compiled."""
    seconds = []
    for number in range(starts):
        with tempfile.TemporaryDirectory(prefix="aio-first-start-") as cache:
            fresh = msgspec.structs.replace(settings, cache_dir=cache)
            async with running_server(fresh, environment) as server:
                seconds.append(server.ready_seconds)
        progress("starting for the first time", (number + 1) / starts)
    return _row("first start", "all", seconds)


async def _ready_row(
    settings: Settings, environment: dict[str, str], role: str, starts: int, progress: Progress
) -> dict[str, Any]:
    seconds = []
    for number in range(starts + 1):
        async with running_server(settings, environment, role) as server:
            seconds.append(server.ready_seconds)
        progress(f"starting role {role}", (number + 1) / (starts + 1))
    return _row("ready", role, seconds[1:])


def _row(measure: str, role: str, seconds: list[float]) -> dict[str, Any]:
    named = {"min": min(seconds), "median": statistics.median(seconds), "max": max(seconds)}
    row: dict[str, Any] = {"measure": measure, "role": role, "starts": len(seconds)}
    return row | {f"seconds_{name}": round(value, 3) for name, value in named.items()}


async def _served(server: ServerProcess, requests: int, every: int, progress: Progress) -> AsyncIterator[int]:
    """Send requests a few at a time; yields the count done after each `every`."""
    prompts = Prompts(seed=11, shared_prefix=0)
    async with httpx.AsyncClient(base_url=server.url, timeout=600) as client:

        async def one(number: int) -> None:
            body = {
                "model": MODELS[number % len(MODELS)],
                "messages": [{"role": "user", "content": prompts.draw(20 + number % 100)}],
                "max_tokens": 8 + number % 16,
                "stream": number % 2 == 0,
            }
            (await client.post("/v1/chat/completions", json=body)).raise_for_status()

        numbers = iter(range(requests))
        done = 0
        while batch := list(islice(numbers, every)):
            pending = iter(batch)

            async def worker(pending: Any = pending) -> None:
                for number in pending:
                    await one(number)

            await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
            done += len(batch)
            progress("serving", done / requests)
            yield done


@asynccontextmanager
async def running_cores(settings: Settings) -> AsyncIterator[None]:
    """Launch `aio serve --role core` on its socket for every core of the catalogue; stop them at the end."""
    processes = []
    try:
        for core in load_catalog(settings.catalog).core_names:
            process = await launched(settings, {"AIO_GROUP": core}, "core")
            processes.append(process)
        yield
    finally:
        await asyncio.gather(*map(stopped, processes))


@click.command()
@click.option("--starts", type=click.IntRange(min=1), default=5, help="First ones, and warm ones per role.")
@click.option("--requests", type=click.IntRange(min=1), default=2000)
@click.option("--samples", type=click.IntRange(min=1), default=10, help="Readings of memory.")
@catalog_option
@cache_dir_option
@json_option
def start(starts: int, requests: int, samples: int, as_json: bool, **given: Any) -> None:
    """Time from launch to ready, and resident memory over many requests on all tiers."""
    with tempfile.TemporaryDirectory(prefix="aio-bench-") as folder:
        settings = settings_from(data_dir=folder, **given)
        asyncio.run(_run(settings, starts, requests, samples, as_json))


async def _run(settings: Any, starts: int, requests: int, samples: int, as_json: bool) -> None:
    with staged_progress("starting") as show:
        async for row in bench_start(settings, starts=starts, requests=requests, samples=samples, progress=show):
            echo_row(row, as_json)
