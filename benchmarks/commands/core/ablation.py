"""`python -m benchmarks ablation`: what each technique of the core is worth, alone and in the full system."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.commands.kept import kept_options, show_measurement

if TYPE_CHECKING:
    from benchmarks.core.ablation import AblationOptions
    from benchmarks.report.measured import AblationResults


@click.command()
@click.option("--model", help="Model of the catalogue.  [its first]")
@click.option("--rounds", default=3, show_default=True, help="Times that every configuration is measured.")
@click.option("--requests", default=64, show_default=True, help="Requests per configuration; a multiple of 16.")
@click.option("--concurrency", default=32, show_default=True, help="In flight.")
@click.option("--small-requests", default=4, show_default=True, help="The same where torch computes.")
@click.option("--small-concurrency", default=2, show_default=True)
@click.option("--arena-mb", default=192, show_default=True, help="KV memory, the same for all.")
@click.option("--seed", default=7, show_default=True)
@click.option("--timeout", default=900.0, show_default=True, help="Seconds for one request.")
@kept_options
def ablation(**given: Any) -> None:
    """Every technique off in turn, alone, and one on top of the other, on a load that gives each something to do.

    Example: python -m benchmarks ablation --rounds 5 --out ablation.jsonl
    """
    from benchmarks.core.ablation import AblationOptions
    from benchmarks.report.ablation_tables import ablation_tables

    show_measurement(given, AblationOptions, _run, ablation_tables)


async def _run(
    settings: Any, model: str | None, options: "AblationOptions", out: Path | None, keep: bool
) -> "AblationResults":
    from benchmarks.core.ablation import ablate
    from benchmarks.report.measurement import Measurement
    from gateway.planning.load_test.open_core import model_of
    from tiers.catalog.load import load_catalog

    core = load_catalog(settings.catalog).core
    spec = model_of(core, model)
    measurement = Measurement.begin(
        "ablation", {"model": spec, "threads": core.threads, "options": options}, out, keep=keep
    )
    return await ablate(
        options,
        spec,
        measurement,
        cache_dir=settings.cache_path,
        slab_bytes=core.slab_bytes,
        threads=core.threads,
        progress=_show,
    )


def _show(label: str, done: int, total: int) -> None:
    click.echo(f"[{done}/{total}] {label}", err=True)
    sys.stderr.flush()
