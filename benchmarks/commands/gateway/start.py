"""`python -m benchmarks start`: start-up time and memory of real server processes."""

import asyncio
import tempfile
from typing import Any

import click
import msgspec

from gateway.operations.cli.options import cache_dir_option, catalog_option, json_option, settings_from, staged_progress


@click.command()
@click.option(
    "--starts", type=click.IntRange(min=1), default=5, show_default=True, help="First ones, and warm ones per role."
)
@click.option("--requests", type=click.IntRange(min=1), default=2000, show_default=True)
@click.option("--samples", type=click.IntRange(min=1), default=10, show_default=True, help="Readings of memory.")
@catalog_option
@cache_dir_option
@json_option
def start(starts: int, requests: int, samples: int, as_json: bool, **given: Any) -> None:
    """Time from launch to ready, and resident memory over many requests on all tiers."""
    with tempfile.TemporaryDirectory(prefix="aio-bench-") as folder:
        settings = settings_from(data_dir=folder, **given)
        asyncio.run(_run(settings, starts, requests, samples, as_json))


async def _run(settings: Any, starts: int, requests: int, samples: int, as_json: bool) -> None:
    from benchmarks.gateway.start import bench_start

    with staged_progress("starting") as show:
        async for row in bench_start(settings, starts=starts, requests=requests, samples=samples, progress=show):
            text = msgspec.json.encode(row).decode() if as_json else "  ".join(f"{k}={v}" for k, v in row.items())
            click.echo(text)
