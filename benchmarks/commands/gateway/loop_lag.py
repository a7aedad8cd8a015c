"""`python -m benchmarks loop-lag`: what bodies of megabytes do to the streams of one gateway process."""

import asyncio
import secrets
import tempfile
from pathlib import Path
from typing import Any

import click
import msgspec

from gateway.operations.cli.options import json_option, settings_from, staged_progress

KINDS = ("prose", "code", "escaped", "image", "messages")


@click.command()
@click.option("--kind", "kinds", type=click.Choice(KINDS), multiple=True, default=KINDS, show_default=True)
@click.option("--streams", type=click.IntRange(min=1), default=32, show_default=True, help="Streams at once.")
@click.option("--rate", type=click.FloatRange(min=0.1), default=2.0, show_default=True, help="Bodies per second.")
@click.option("--seconds", type=click.FloatRange(min=0.1), default=20.0, show_default=True, help="Of every kind.")
@click.option("--step-ms", type=click.FloatRange(min=1), default=25.0, show_default=True, help="Pace of the streams.")
@click.option("--body-bytes", type=click.IntRange(min=4096), default=4 * 1024 * 1024, show_default=True)
@json_option
def loop_lag(as_json: bool, step_ms: float, **given: Any) -> None:
    """Lag of the event loop (aio_event_loop_lag_seconds) while streams run and large bodies arrive."""
    asyncio.run(_run(as_json, step_ms / 1e3, **given))


async def _run(as_json: bool, pace: float, **given: Any) -> None:
    from benchmarks.gateway.loop_lag import bench_loop_lag, paced_upstream
    from benchmarks.gateway.upstream import proxied_catalogue

    with tempfile.TemporaryDirectory(prefix="aio-bench-") as folder, staged_progress("starting") as show:
        async with paced_upstream(pace) as url:
            catalogue = Path(folder) / "catalogue.toml"
            # The context of no model bounds the texts.
            catalogue.write_text(proxied_catalogue(url, max_context=8_388_608), encoding="utf-8")
            settings = settings_from(catalog=str(catalogue), data_dir=folder)
            key = secrets.token_urlsafe(24)
            async for row in bench_loop_lag(settings, key, progress=show, **given):
                values = msgspec.structs.asdict(row)
                click.echo(msgspec.json.encode(row) if as_json else "  ".join(f"{k}={v}" for k, v in values.items()))
