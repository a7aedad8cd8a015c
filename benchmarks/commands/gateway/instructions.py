"""`python -m benchmarks instructions`: what a request costs, to about 1%."""

import asyncio
import tempfile
from pathlib import Path

import click
import msgspec

from gateway.operations.cli.options import json_option


@click.command()
@click.option("--requests", type=click.IntRange(min=1), default=800, show_default=True, help="Counted ones.")
@click.option("--warm", type=click.IntRange(min=1), default=400, show_default=True, help="Requests before them.")
@json_option
def instructions(requests: int, warm: int, as_json: bool) -> None:
    """Thousand instructions of the gateway's process per request, whole and streamed, counted by valgrind."""
    from benchmarks.gateway.instructions import ValgrindError, instructions_per_request
    from gateway.processes.announcement import ServerStartError

    for stream in (False, True):
        with tempfile.TemporaryDirectory(prefix="aio-bench-") as folder:
            work = instructions_per_request(Path(folder), stream=stream, warm=warm, requests=requests)
            try:
                found = asyncio.run(work)
            except (ValgrindError, ServerStartError) as error:
                raise click.ClickException(str(error)) from error
        row = {"stream": stream, "requests": requests, "thousand_instructions": round(found / 1e3)}
        click.echo(msgspec.json.encode(row) if as_json else "  ".join(f"{k}={v}" for k, v in row.items()))
