"""`python -m benchmarks messages`: the core's messages over its Unix socket, and over shared memory."""

import asyncio
import os
import sys

import click

from benchmarks.commands.rounds import pairs_table
from gateway.operations.cli.options import echo_json, json_option, staged_progress


@click.command()
@click.option("--rounds", type=click.IntRange(min=2), default=10, show_default=True, help="Pairs, after one more.")
@click.option(
    "--messages", type=click.IntRange(min=1), default=1000, show_default=True, help="Of each load in a round."
)
@json_option
def messages(rounds: int, messages: int, as_json: bool) -> None:
    """Two processes, as a gateway and its core, which compute nothing: a request there, the tokens of a step back.

    The messages and their encoding are the product's; the ring in shared memory exists for this comparison only.
    """
    from benchmarks.core.messages import bench_messages

    if not hasattr(os, "eventfd"):
        raise click.ClickException(f"eventfd is needed to wake a reader of shared memory; {sys.platform} has none.")
    load = os.getloadavg()[0]
    with staged_progress("messages") as progress:
        found = asyncio.run(bench_messages(rounds, messages, progress))
    if as_json:
        echo_json({"load_average": load, "seconds": found})
        return
    click.echo(f"load average before: {load:.1f}")
    click.echo(
        pairs_table(
            ("socket", "shared memory"), {name: (one.socket, one.ring, one.ratio) for name, one in found.items()}
        )
    )
