"""`aio cluster`: the cores of a catalogue on a Ray cluster."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from importlib.util import find_spec
from typing import Any

import click

from gateway.cli.group import LazyGroup

cluster = LazyGroup(
    name="cluster",
    help="Serve the cores of a catalogue from a Ray cluster (pip install 'aio-gateway[ray]').",
    package="gateway.cli.cluster",
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


@contextmanager
def joined(address: str) -> Iterator[Any]:
    """Join the cluster; yields the fleet's module. Meanwhile standard output goes to standard error: Ray prints events
    of nodes there, whatever its logging settings."""
    require_ray()
    with redirect_stdout(sys.stderr):
        from gateway.runtime.cluster import fleet
        from gateway.runtime.cluster.join import join

        join(address)
        yield fleet
