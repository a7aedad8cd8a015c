"""`aio cluster deploy` and `aio cluster down`."""

from typing import Any

import click

from gateway.cli.cluster import address_option, joined
from gateway.cli.options import cache_dir_option, catalog_option, data_dir_option, settings_from


@click.command()
@address_option
@catalog_option
@data_dir_option
@cache_dir_option
@click.option("--replicas", type=click.IntRange(min=1), default=1, show_default=True, help="Of every core, at least.")
@click.option("--most", type=click.IntRange(min=1), help="Of every core, under load.  [--replicas]")
@click.option("--cpus", type=click.FloatRange(min=0), default=1.0, show_default=True, help="Per rank of a core.")
@click.option("--up-seconds", type=click.FloatRange(min=0), default=10.0, show_default=True, help="Before more start.")
@click.option("--down-seconds", type=click.FloatRange(min=0), default=300.0, show_default=True, help="Before any goes.")
def deploy(
    address: str,
    replicas: int,
    most: int | None,
    cpus: float,
    up_seconds: float,
    down_seconds: float,
    **given: Any,
) -> None:
    """Start the catalogue's cores and wait until they serve; what is there already takes the new numbers.

    Folders are the nodes' own: --data-dir for knobs that were kept, --cache-dir for repacked weights.
    """
    from tiers.catalog_file import load_catalog

    settings = settings_from(**given)
    catalog = load_catalog(settings.catalog)
    if most is not None and most < replicas:
        raise click.UsageError(f"--most {most} is fewer than --replicas {replicas}")
    fleet = joined(address)
    scale = fleet.Scale(
        fewest=replicas, most=most or replicas, cpus=cpus, up_seconds=up_seconds, down_seconds=down_seconds
    )
    fleet.deploy(catalog, settings, scale, anew=True)
    for core in catalog.core_names:
        click.echo(f"{fleet.service_of(catalog, core)} serves")


@click.command()
@address_option
@catalog_option
def down(address: str, **given: Any) -> None:
    """Take the catalogue's cores down; answers that run may end first."""
    from tiers.catalog_file import load_catalog

    catalog = load_catalog(settings_from(**given).catalog)
    for name in joined(address).remove(catalog):
        click.echo(f"{name} is down")
