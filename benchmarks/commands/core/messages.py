"""`python -m benchmarks messages`: the core's messages over its Unix socket, and over shared memory."""

import asyncio
import os
import sys

import click

from gateway.cli.options import echo_json, json_option, staged_progress, table


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
    rows = [
        [
            name,
            _us(one.socket.median),
            _us(one.ring.median),
            f"{one.ratio.median:.2f} ({one.ratio.low:.2f}-{one.ratio.high:.2f})",
        ]
        for name, one in found.items()
    ]
    click.echo(table(["of one", "socket", "shared memory", "ratio (95%)"], rows))


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f} us"
