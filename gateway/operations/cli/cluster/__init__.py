"""`aio cluster`: the cores of a catalogue on a Ray cluster."""

from importlib.util import find_spec
from typing import Any

import click

from gateway.operations.cli.group import LazyGroup

cluster = LazyGroup(
    name="cluster",
    help="Serve the cores of a catalogue from a Ray cluster (pip install 'aio-gateway[ray]').",
    package="gateway.operations.cli.cluster",
    commands={
        "up": (".deploy:up", "Start a cluster of several nodes on this machine, for trials."),
        "deploy": (".deploy:deploy", "Start the catalogue's cores, with this many replicas."),
        "status": (".deploy:status", "Show the replicas of every core with their nodes."),
        "down": (".deploy:down", "Stop the catalogue's cores, each once it has drained."),
    },
)

address_option = click.option(
    "--cluster",
    "address",
    metavar="ADDRESS",
    envvar="AIO_CLUSTER",
    default="auto",
    help="auto, HOST:PORT or ray://HOST:PORT.  [AIO_CLUSTER]",
)


def require_ray() -> None:
    """Raises a click error that says what to install."""
    if find_spec("ray") is None or find_spec("ray.serve") is None:
        raise click.ClickException("Ray is not installed: pip install 'aio-gateway[ray]'")


def joined(address: str) -> Any:
    """Join the cluster and return the fleet's module."""
    require_ray()
    from gateway.runtime.cluster import fleet
    from gateway.runtime.cluster.join import join

    join(address)
    return fleet
