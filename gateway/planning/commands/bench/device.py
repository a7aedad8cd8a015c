"""`aio bench device`: what the catalogue's cards do, kept next to the catalogue."""

import asyncio
from typing import Any

import click

from gateway.operations.cli.options import (
    cache_dir_option,
    catalog_option,
    data_dir_option,
    json_option,
    settings_from,
)


@click.command()
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="Time to measure; the models' loading comes on top.",
)
@catalog_option
@data_dir_option
@cache_dir_option
@json_option
def device(seconds: float, as_json: bool, **options: Any) -> None:
    """Measure a catalogue's GPU groups: memory bandwidth, prompts, generated tokens, gain of captured steps.

    The figures go to a file next to the catalogue, with notes on what is below half of the cards' roofline.

    The cards must be free: stop `aio serve` first.
    """
    from gateway.runtime.cores.next_core import require_machine
    from gateway.runtime.device_report import report_path
    from gateway.runtime.hub_models import fetch_core_models
    from tiers.catalog.load import load_catalog

    settings = settings_from(**options)
    catalog = load_catalog(settings.catalog)
    names = [group.name for group in catalog.served_groups]
    if not names:
        raise click.ClickException(
            f"catalogue '{catalog.name}' has no GPU group that a tier uses; `aio init` proposes some for the cards here"
        )
    fetch_core_models(catalog, names)
    for name in names:
        # One by one: several groups of several cards are measured after each other.
        asyncio.run(require_machine(catalog, settings, [name]))
    from gateway.planning.load_test.measured_groups import measure_groups, report_bytes, report_text
    from inference_core.io.atomic_file import atomic_file

    report = measure_groups(catalog, settings.cache_path, seconds, lambda text: click.echo(text, err=True))
    path = report_path(settings)
    with atomic_file(path) as file:
        file.write(report_bytes(report))
    click.echo(report_bytes(report).decode() if as_json else report_text(report))
    click.echo(f"wrote {path}", err=True)
