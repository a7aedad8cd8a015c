"""How fast a server is ready: measured on real processes from outside."""

import asyncio
import statistics
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import click
import msgspec

from benchmarks.report.kept import echo_row
from benchmarks.running_server import launched, running_server, stopped
from gateway.base.settings import Settings
from gateway.cli.options import json_option, setting_options, settings_from, staged_progress
from tiers.catalog.load import load_catalog

Progress = Callable[[str, float], None]


async def bench_start(settings: Settings, starts: int, progress: Progress) -> AsyncIterator[dict[str, Any]]:
    """Rows: time until ready over `starts` first starts, which repack weights, and as many warm ones per role.

    Every warm start but the first, which is not counted, finds repacked weights and compiled Python.
    """
    environment = {"AIO_LOG_LEVEL": "error", "AIO_MONITOR": "false"}
    yield await _first_row(settings, environment, starts, progress)
    yield await _ready_row(settings, environment, "all", starts, progress)
    async with running_cores(settings):
        yield await _ready_row(settings, environment, "gateway", starts, progress)


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
@setting_options("catalog", "cache_dir")
@json_option
def start(starts: int, as_json: bool, **arguments: Any) -> None:
    """Time from launch to ready."""
    with tempfile.TemporaryDirectory(prefix="aio-bench-") as folder:
        settings = settings_from(data_dir=folder, **arguments)
        asyncio.run(_run(settings, starts, as_json))


async def _run(settings: Any, starts: int, as_json: bool) -> None:
    with staged_progress("starting") as show:
        async for row in bench_start(settings, starts, show):
            echo_row(row, as_json)
