"""`python -m benchmarks profiles`: what each profile of live knobs trades."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.commands.kept import kept_options, show_measurement

if TYPE_CHECKING:
    from benchmarks.core.profiles import ProfileOptions, ProfileResults


@click.command()
@click.option("--model", help="Model of the catalogue.  [its first]")
@click.option("--rounds", default=3, show_default=True, help="Times that every profile is measured.")
@click.option("--requests", default=192, show_default=True, help="Requests per profile; a multiple of 16.")
@click.option("--concurrency", default=96, show_default=True, help="In flight.")
@click.option("--seed", default=7, show_default=True)
@click.option("--timeout", default=900.0, show_default=True, help="Seconds for one request.")
@kept_options
def profiles(**given: Any) -> None:
    """The profiles of `aio knobs profile`, set live one after the other, under the same mixed load, in rounds.

    Example: python -m benchmarks profiles --rounds 3 --out profiles.jsonl
    """
    from benchmarks.core.profiles import ProfileOptions
    from benchmarks.report.tables import profiles_table

    show_measurement(given, ProfileOptions, _run, profiles_table)


async def _run(
    settings: Any, model: str | None, options: "ProfileOptions", out: Path | None, keep: bool
) -> "ProfileResults":
    from benchmarks.core.core_memory import layout_in
    from benchmarks.core.profiles import compare_profiles
    from benchmarks.report.measurement import Measurement
    from gateway.planning.load_test.open_core import core_target, model_of
    from inference_core.engine.live_knobs import start_knobs
    from tiers.catalog.core_spec import core_spec
    from tiers.catalog.load import load_catalog

    # As `aio serve` starts it: tuned to the objectives of the tiers.
    core = core_spec(load_catalog(settings.catalog))
    spec = model_of(core, model)
    knobs = start_knobs(core)[spec.name]
    given = {"model": spec, "knobs": knobs, "arena_bytes": core.arena_bytes, "options": options}
    measurement = Measurement.begin("profiles", given, out, keep=keep)
    async with core_target(core, spec, settings.cache_path) as target:
        layout = layout_in(spec, settings.cache_path)
        return await compare_profiles(
            target, spec.name, layout, options, measurement, lambda line: click.echo(line, err=True)
        )
