"""`python -m benchmarks scheduling`: what a step of the core costs besides the model."""

import click
import msgspec

from gateway.cli.bench import ManyNumbers, numbers_of
from gateway.cli.options import json_option


@click.command(cls=ManyNumbers)
@click.option(
    "--sequences",
    callback=numbers_of(int),
    metavar="N...",
    default="32 256",
    show_default=True,
    help="Sequences that decode one token each.",
)
@click.option(
    "--prompt-tokens",
    callback=numbers_of(int),
    metavar="N...",
    default="128 1024",
    show_default=True,
    help="Lengths of the prompts that the prefix cache is asked for.",
)
@click.option("--repeats", default=100, show_default=True, help="Measurements per figure; the least is shown.")
@json_option
def scheduling(sequences: tuple[int, ...], prompt_tokens: tuple[int, ...], repeats: int, as_json: bool) -> None:
    """Microseconds of scheduling, bookkeeping and commit per decode step, and of the prefix cache per request."""
    from benchmarks.core.scheduling import bench_scheduling

    for row in bench_scheduling(sequences=sequences, prompts=prompt_tokens, repeats=repeats):
        click.echo(msgspec.json.encode(row) if as_json else "  ".join(f"{key}={value}" for key, value in row.items()))
