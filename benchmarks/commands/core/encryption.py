"""`python -m benchmarks encryption`: what TLS costs between a gateway and a core."""

import asyncio
import os

import click

from benchmarks.commands.rounds import pairs_table
from gateway.operations.cli.options import echo_json, json_option, staged_progress


@click.command()
@click.option("--rounds", type=click.IntRange(min=2), default=10, show_default=True, help="Pairs, after one more.")
@json_option
def encryption(rounds: int, as_json: bool) -> None:
    """A core that computes nothing, and its client, in this process, by TCP on loopback with and without TLS.

    The tokens of a step of 16 streams, a frame of KV blocks as they are handed over, and a connection: both ends' work
    together.
    """
    from benchmarks.core.encryption import bench_encryption

    load = os.getloadavg()[0]
    with staged_progress("plain and TLS") as progress:
        found = asyncio.run(bench_encryption(rounds, progress))
    if as_json:
        echo_json({"load_average": load, "seconds": found})
        return
    click.echo(f"load average before: {load:.1f}")
    click.echo(pairs_table(("plain", "TLS"), {name: (one.plain, one.tls, one.ratio) for name, one in found.items()}))
