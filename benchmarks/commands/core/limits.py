"""`python -m benchmarks limits`: the most voice bots at a time, or query rewrites a second."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.commands.kept import kept_options, show_measurement

if TYPE_CHECKING:
    from benchmarks.core.limits import LimitOptions
    from benchmarks.report.measured import LimitResults


@click.command()
@click.option("--model", help="Model of the catalogue.  [its first]")
@click.option(
    "--profile",
    type=click.Choice(["voice", "rewrite"]),
    default="voice",
    show_default=True,
    help="1,950 words in and 200 tokens out, streamed; or 10 to 20 each way, whole, at a rate.",
)
@click.option("--rounds", default=3, show_default=True, help="Searches.")
@click.option("--most", default=256, show_default=True, help="In flight, or requests a second, to try at most.")
@click.option("--tokens-s", default=30.0, show_default=True, help="Voice: what every stream is to exceed.")
@click.option("--p99-ms", default=95.0, show_default=True, help="Rewrite: milliseconds of whole answers at p99.")
@click.option("--seconds", default=10.0, show_default=True, help="Rewrite: of arrivals at each rate.")
@click.option("--requests", default=4, show_default=True, help="Requests of a load at least.")
@click.option("--prompt-tokens", type=int, help="Words per prompt.  [the profile's]")
@click.option("--output-tokens", type=int, help="[the profile's]")
@click.option("--seed", default=7, show_default=True)
@click.option("--timeout", default=600.0, show_default=True, help="Seconds for one request.")
@kept_options
def limits(**given: Any) -> None:
    """Search for the highest load at which every stream is fast enough, or p99 is low enough.

    Example: python -m benchmarks limits --profile rewrite --p99-ms 300 --out rewrite.jsonl
    """
    from benchmarks.core.limits import LimitOptions
    from benchmarks.report.markdown import limit_table

    show_measurement(given, LimitOptions, _run, limit_table)


async def _run(
    settings: Any, model: str | None, options: "LimitOptions", out: Path | None, keep: bool
) -> "LimitResults":
    from benchmarks.core.limits import find_limit
    from benchmarks.report.measurement import Measurement
    from gateway.planning.load_test.open_core import core_target, model_of
    from tiers.catalog.load import load_catalog

    core = load_catalog(settings.catalog).core
    spec = model_of(core, model)
    given = {"model": spec, "arena_bytes": core.arena_bytes, "options": options}
    measurement = Measurement.begin("limits", given, out, keep=keep)
    async with core_target(core, spec, settings.cache_path) as target:
        return await find_limit(target, options, measurement, lambda line: click.echo(line, err=True))
