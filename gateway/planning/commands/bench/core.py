"""`aio bench core`: the core in this process under load, one row per load."""

import asyncio
import json
from typing import TYPE_CHECKING, Any

import click
import msgspec

from gateway.operations.cli.options import cache_dir_option, catalog_option, json_option, settings_from
from gateway.planning.commands.bench import ManyNumbers, load_options, show_progress
from gateway.runtime.cores.knob_profiles import PROFILES

if TYPE_CHECKING:
    from gateway.planning.load_test import BenchOptions


@click.command(cls=ManyNumbers)
@click.option("--model", help="Model of the catalogue.  [its first]")
@click.option("--set", "changes", multiple=True, metavar="KNOB=VALUE", help="A live knob, as JSON; may be repeated.")
@click.option("--profile", type=click.Choice(list(PROFILES)), help="A set of live knobs; --set has precedence.")
@load_options
@catalog_option
@cache_dir_option
@json_option
def core(
    model: str | None,
    changes: tuple[str, ...],
    profile: str | None,
    catalog: str | None,
    cache_dir: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Measure the core without HTTP; the rows have the columns of the load generator for servers.

    Example: aio bench core --concurrency 1 8 32 --prompt-tokens 128 --output-tokens 64 --json
    """
    from gateway.planning.load_test import BenchOptions

    try:
        options = BenchOptions(**given)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    settings = settings_from(catalog=catalog, cache_dir=cache_dir)
    asyncio.run(_run(settings, model, profile, _knob_changes(changes), options, as_json))


def _knob_changes(given: tuple[str, ...]) -> dict[str, Any]:
    try:
        return {name: json.loads(value) for name, _, value in (text.partition("=") for text in given)}
    except ValueError as error:
        raise click.UsageError(f"--set takes KNOB=VALUE with a value in JSON: {error}") from error


async def _run(
    settings: Any,
    model: str | None,
    profile: str | None,
    changes: dict[str, Any],
    options: "BenchOptions",
    as_json: bool,
) -> None:
    from gateway.planning.load_test import row_text, run_bench
    from gateway.planning.load_test.open_core import core_target, model_of
    from inference_core.engine.live_knobs import changed_knobs, start_knobs
    from tiers.catalog.load import load_catalog

    catalog = load_catalog(settings.catalog)
    spec = model_of(catalog.core, model)
    start = start_knobs(catalog.core)[spec.name]
    named = {} if profile is None else PROFILES[profile].core_changes(start)
    knobs = changed_knobs(start, named | changes, start)
    async with core_target(catalog.core, spec, settings.cache_path, knobs) as target:
        async for row in run_bench(target, options, show_progress):
            row = {"model": spec.name, **({} if profile is None else {"profile": profile}), **row}
            click.echo(msgspec.json.encode(row) if as_json else row_text(row))
