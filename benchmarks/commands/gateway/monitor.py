"""`python -m benchmarks monitor`: what the quality monitor adds to a request."""

import asyncio
import tempfile
from pathlib import Path

import click

from gateway.operations.cli.options import catalog_option, echo_json, json_option, settings_from, table


@click.command()
@click.option("--requests", type=click.IntRange(min=100), default=20_000, show_default=True, help="To offer.")
@catalog_option
@json_option
def monitor(requests: int, catalog: str | None, as_json: bool) -> None:
    """Microseconds of CPU time of the event loop's thread per finished request, on its path and in the background."""
    from benchmarks.gateway.monitor import bench_monitor
    from tiers.catalog.load import load_catalog

    settings = settings_from(catalog=catalog)
    with tempfile.TemporaryDirectory(prefix="aio-bench-") as folder:
        cost = asyncio.run(bench_monitor(load_catalog(settings.catalog), Path(folder), requests))
    if as_json:
        echo_json(cost)
        return
    rows = [[name, str(getattr(cost, name))] for name in cost.__struct_fields__]
    click.echo(table(["figure", "value"], rows))
