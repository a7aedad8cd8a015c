"""What a start does about cards that `aio bench device` has not measured."""

import os
import subprocess

import click

from gateway.base.configuration.default_catalog import CATALOG_FILE
from gateway.base.configuration.load import environment_of
from gateway.base.configuration.own_command import own_command
from gateway.base.settings import Settings
from tiers.catalog.catalog import Catalog


def measure_or_say_how(catalog: Catalog, settings: Settings) -> None:
    """Measure the catalogue's cards in a process of its own if the settings say so, else say how in a line; do nothing
    where all are measured. A measurement that fails is said and does not keep the server from starting."""
    if not any(group.device == "cuda" for group in catalog.served_groups):
        return
    from gateway.runtime.device_report import report_path, unmeasured_groups

    groups = unmeasured_groups(catalog, settings)
    if not groups:
        return
    option = "" if settings.catalog == CATALOG_FILE else f" --catalog {settings.catalog}"
    command = f"aio bench device{option}"
    if not settings.measure_cards:
        click.echo(
            f"not measured yet: {', '.join(groups)}; `{command}` does in about a minute, before a start "
            f"(AIO_MEASURE_CARDS=true: this start would)"
        )
        return
    click.echo(f"measuring {', '.join(groups)}, once: {report_path(settings)} will hold the figures")
    # Its memory on the cards is free again when it has ended.
    done = subprocess.run(  # noqa: S603 - our own program
        own_command("bench", "device"), env={**os.environ, **environment_of(settings)}, check=False
    )
    if done.returncode:
        click.echo(f"the cards were not measured, as said above; they are served all the same. Again: {command}")
