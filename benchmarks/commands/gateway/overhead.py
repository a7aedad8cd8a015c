"""`python -m benchmarks overhead`: microseconds of Python per token between the core and the wire."""

import sys
import tempfile
from typing import Any

import click
import msgspec

from gateway.operations.cli.options import catalog_option, json_option, settings_from, staged_progress


@click.command()
@click.option("--streams", type=click.IntRange(min=1), default=32, show_default=True, help="Streams at once.")
@click.option("--tokens", type=click.IntRange(min=1), default=96, show_default=True, help="Tokens per stream.")
@click.option("--step-ms", type=click.FloatRange(min=0.1), default=20.0, show_default=True, help="Pace of the core.")
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True)
@catalog_option
@json_option
def overhead(streams: int, tokens: int, step_ms: float, repeats: int, catalog: str | None, as_json: bool) -> None:
    """CPU time of the event loop's thread per token and per request, over a core that computes nothing."""
    with tempfile.TemporaryDirectory(prefix="aio-bench-") as folder:
        settings = settings_from(catalog=catalog, data_dir=folder, monitor=False)
        row = _run(settings, streams, tokens, step_ms / 1e3, repeats)
    click.echo(msgspec.json.encode(row) if as_json else "  ".join(f"{key}={value}" for key, value in row.items()))


def _run(settings: Any, streams: int, tokens: int, step_seconds: float, repeats: int) -> dict[str, Any]:
    import asyncio

    from benchmarks.gateway.overhead import bench_overhead

    with staged_progress("streaming") as show:
        work = bench_overhead(
            settings, streams=streams, tokens=tokens, step_seconds=step_seconds, repeats=repeats, progress=show
        )
        if sys.platform == "win32":
            return asyncio.run(work)
        import uvloop

        return uvloop.run(work)
