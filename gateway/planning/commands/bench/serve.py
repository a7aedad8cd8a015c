"""`aio bench serve`: a server over HTTP under load, one row per load, with the columns of `aio bench core`."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import click
import msgspec

from gateway.operations.cli.options import cache_dir_option, catalog_option, json_option, settings_from
from gateway.planning.commands.bench import ManyNumbers, load_options, show_progress

if TYPE_CHECKING:
    from gateway.planning.load_test import BenchOptions


@click.command(cls=ManyNumbers)
@click.option("--model", default="tier-1", show_default=True, help="What requests ask for.")
@click.option("--url", help="A server that runs already, plain HTTP.  [launches `aio serve`]")
@load_options
@catalog_option
@cache_dir_option
@json_option
def serve(model: str, url: str | None, catalog: str | None, cache_dir: str | None, as_json: bool, **given: Any) -> None:
    """Measure streamed completions over HTTP, from a process on the server's CPUs.

    Example: aio bench serve --concurrency 1 8 32 --json
    """
    from gateway.planning.load_test import BenchOptions

    try:
        options = BenchOptions(**given)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    with tempfile.TemporaryDirectory(prefix="aio-bench-") as folder:
        settings = settings_from(catalog=catalog, cache_dir=cache_dir, data_dir=folder)
        asyncio.run(_run(settings, url, model, options, as_json))


async def _run(settings: Any, url: str | None, model: str, options: "BenchOptions", as_json: bool) -> None:
    from gateway.planning.load_test import row_text, run_bench
    from gateway.planning.load_test.http_target import HttpTarget

    async with _server(settings, url) as address:
        target = HttpTarget(address, model)
        async for row in run_bench(target, options, show_progress):
            row = {"model": model, **row}
            click.echo(msgspec.json.encode(row) if as_json else row_text(row))
        target.close()


@contextlib.asynccontextmanager
async def _server(settings: Any, url: str | None) -> AsyncIterator[str]:
    from gateway.processes.server_process import running_server
    from gateway.runtime.engines.running_engines import running_engines
    from tiers.catalog.load import load_catalog

    if url is not None:
        yield url
        return
    catalog = load_catalog(settings.catalog)
    async with (
        running_server(settings, {"AIO_MONITOR": "false"}) as server,
        running_engines(catalog, settings.data_path, owned=False) as engines,
    ):
        # A server is ready before its engines, and other tiers must not be measured in their place.
        await engines.ready()
        yield server.url
