"""`python -m benchmarks sweep`: the core's latency-throughput curve from one request to hundreds, and its knee."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.commands.kept import kept_options, show_measurement
from gateway.planning.commands.bench import ManyNumbers, numbers_of, show_progress

if TYPE_CHECKING:
    from benchmarks.core.sweep import SweepOptions
    from benchmarks.report.measured import SweepResults


@click.command(cls=ManyNumbers)
@click.option("--model", help="Model of the catalogue.  [its first]")
@click.option(
    "--levels",
    callback=numbers_of(int),
    metavar="N...",
    default="1 2 4 8 16 32 64 128 256",
    show_default=True,
    help="In flight.",
)
@click.option("--rounds", default=3, show_default=True, help="Times that every level is measured.")
@click.option("--per-level", default=2, show_default=True, help="Requests per unit of concurrency.")
@click.option("--requests", default=16, show_default=True, help="Requests of a level at least.")
@click.option("--prompt-tokens", default=128, show_default=True, help="Words per prompt, about one token each.")
@click.option("--output-tokens", default=64, show_default=True)
@click.option("--seed", default=7, show_default=True)
@click.option("--timeout", default=600.0, show_default=True, help="Seconds for one request.")
@kept_options
def sweep(**given: Any) -> None:
    """A closed loop at every level, in rounds that begin with one request at a time, with room for all to run at once.

    Example: python -m benchmarks sweep --levels 1 8 64 --rounds 3 --out sweep.jsonl
    """
    from benchmarks.core.sweep import SweepOptions
    from benchmarks.report.markdown import sweep_table

    show_measurement(given, SweepOptions, _run, sweep_table)


async def _run(
    settings: Any, model: str | None, options: "SweepOptions", out: Path | None, keep: bool
) -> "SweepResults":

    from benchmarks.core.core_memory import roomy
    from benchmarks.core.sweep import sweep as run_sweep
    from benchmarks.report.measurement import Measurement
    from gateway.planning.load_test.open_core import core_target, model_of
    from tiers.catalog.load import load_catalog

    catalog = load_catalog(settings.catalog)
    spec = model_of(catalog.core, model)
    most, length = max(options.levels), options.prompt_tokens + options.output_tokens
    core, knobs = roomy(catalog.core, spec, settings.cache_path, sequences=most, tokens_each=length)
    given = {"model": spec, "arena_bytes": core.arena_bytes, "options": options}
    measurement = Measurement.begin("sweep", given, out, keep=keep)
    async with core_target(core, spec, settings.cache_path, knobs) as target:
        return await run_sweep(target, options, measurement, show_progress)
