"""`aio cluster status`: what runs where."""

import sys
from contextlib import redirect_stdout
from typing import Any

import click

from gateway.operations.cli.cluster import address_option, joined
from gateway.operations.cli.options import catalog_option, echo_json, json_option, settings_from, table


@click.command()
@address_option
@catalog_option
@json_option
def status(address: str, as_json: bool, **options: Any) -> None:
    """Show every core's state in Ray Serve, and its replicas with node and address."""
    from tiers.catalog.load import load_catalog

    catalog = load_catalog(settings_from(**options).catalog)
    # Ray prints node events to standard output, whatever its logging settings.
    with redirect_stdout(sys.stderr):
        fleet = joined(address)
        states = fleet.serve_applications()
        cores = {core: (states.get(fleet.service_of(catalog, core), "not deployed"), fleet.announced(catalog, core))
                 for core in catalog.core_names}  # fmt: skip
    if as_json:
        echo_json(
            {
                core: {
                    "state": state,
                    "replicas": [
                        {
                            "name": one.name,
                            "node": one.node,
                            "pid": one.pid,
                            "address": str(one.address),
                            "leaving": one.leaving,
                            "role": one.role,
                        }
                        for one in replicas
                    ],
                }
                for core, (state, replicas) in cores.items()
            }
        )
        return
    rows = [
        [core, state, *((one.name, one.role, one.node, str(one.address)) if one else ("-",) * 4)]
        for core, (state, replicas) in cores.items()
        for one in (replicas or [None])
    ]
    click.echo(table(["core", "state", "replica", "role", "node", "address"], rows))
