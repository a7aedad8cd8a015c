"""`aio cluster up`: real Ray nodes on one machine."""

import click

from gateway.operations.cli.cluster import require_ray


@click.command()
@click.option(
    "--nodes", type=click.IntRange(min=1), default=2, show_default=True, help="Nodes in addition to the head."
)
@click.option("--cpus", type=click.IntRange(min=1), default=1, show_default=True, help="CPUs that each node offers.")
@click.option("--gpus", type=click.IntRange(min=0), default=0, show_default=True, help="GPUs that each node offers.")
def up(nodes: int, cpus: int, gpus: int) -> None:
    """Start a head without work and N nodes, and run them until interrupted.

    These are real Ray nodes in separate processes; for several machines, see docs/cluster.md.
    """
    require_ray()
    from gateway.runtime.cluster.join import LocalCluster

    with LocalCluster(nodes, cpus=cpus, gpus=gpus) as local:
        click.echo(f"a head and {nodes} nodes of {cpus} CPU(s) at {local.address}; serve on them:\n")
        click.echo(f"  aio serve --cluster {local.address}\n")
        local.wait_for_interrupt()
