"""`python -m benchmarks soak`: a gateway under mixed traffic for half an hour."""

import asyncio
import secrets
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.commands.kept import out_option
from gateway.operations.cli.options import echo_json, json_option, settings_from

if TYPE_CHECKING:
    from benchmarks.gateway.soak.figures import SoakResults
    from benchmarks.gateway.soak.soak import SoakOptions


@click.command()
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), default=30.0, show_default=True)
@click.option(
    "--warm", type=click.FloatRange(min=0), default=5.0, show_default=True, help="Minutes at first that do not count."
)
@click.option("--rate", type=click.FloatRange(min=0.1), default=20.0, show_default=True, help="Draws per second.")
@click.option("--concurrency", type=click.IntRange(min=1), default=16, show_default=True, help="Most at once.")
@click.option("--every", type=click.FloatRange(min=0.1), default=60.0, show_default=True, help="Seconds of a row.")
@click.option("--seed", default=7, show_default=True)
@click.option("--most-growth", type=float, default=5.0, show_default=True, help="Percent of memory, files and threads.")
@out_option
@json_option
def soak(most_growth: float, out: Path | None, as_json: bool, **given: Any) -> None:
    """Whole answers, streams, streams that are left, tools, agents' sessions, bodies and answers of 1 MB, embeddings,
    feedback and refused requests, in a fixed mix, through one `aio serve` with stored keys, budgets, records, cache
    and quality loop, to a server that answers at once.

    Compares the first third of the minutes after the warm-up with the last. Exits with 1 if memory, open files or
    threads grow by more than --most-growth, or if an answer is not the one that a request has to get.

    Example: python -m benchmarks soak --out docs/measurements/soak.jsonl
    """
    from benchmarks.gateway.soak.soak import SoakOptions
    from benchmarks.report.soak_table import soak_table

    try:
        options = SoakOptions(**given)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if out is not None:
        # One that was cut short was of another process.
        out.unlink(missing_ok=True)
    results = asyncio.run(_run(options, out))
    if as_json:
        echo_json(results)
    else:
        click.echo(soak_table(results))
    for name, growth in results.not_flat(most_growth / 100).items():
        click.secho(f"\n{name} grew by {growth:.1%}, which is more than {most_growth:g}%", fg="red", err=True)
    if results.failures or results.not_flat(most_growth / 100):
        raise SystemExit(1)


async def _run(options: "SoakOptions", out: Path | None) -> "SoakResults":
    from benchmarks.gateway.soak.soak import KEY_VARIABLE, KEYS_FILE, soak, soaked_catalogue
    from benchmarks.gateway.soak.upstream import soak_upstream
    from benchmarks.report.measurement import Measurement
    from gateway.processes.server_process import running_server

    key = secrets.token_urlsafe(24)
    measurement = Measurement.begin("soak", {"options": options}, out)
    with tempfile.TemporaryDirectory(prefix="aio-bench-") as folder:
        async with AsyncExitStack() as stack:
            direct = await stack.enter_async_context(soak_upstream())
            catalogue, keys_file, data = (Path(folder) / name for name in ("catalogue.toml", "keys.toml", "data"))
            catalogue.write_text(soaked_catalogue(direct), encoding="utf-8")
            keys_file.write_text(KEYS_FILE, encoding="utf-8")
            settings = settings_from(catalog=str(catalogue), data_dir=str(data))
            environment = {KEY_VARIABLE: key, "AIO_KEYS_FILE": str(keys_file)}
            server = await stack.enter_async_context(running_server(settings, environment))
            return await soak(server, direct, key, data, options, measurement, lambda line: click.echo(line, err=True))
