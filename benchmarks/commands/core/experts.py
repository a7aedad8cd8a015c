"""`python -m benchmarks experts`: decode steps of a mixture of experts on the CPU."""

import click
import msgspec

from gateway.operations.cli.options import cache_dir_option, json_option, settings_from
from gateway.planning.commands.bench import ManyNumbers, numbers_of


@click.command(cls=ManyNumbers)
@click.option(
    "--streams", callback=numbers_of(int), metavar="N...", default="1 8 32", show_default=True, help="Tokens of a step."
)
@click.option("--rounds", type=click.IntRange(min=1), default=31, show_default=True, help="Steps of either model.")
@cache_dir_option
@json_option
def experts(streams: tuple[int, ...], rounds: int, as_json: bool, cache_dir: str | None) -> None:
    """Milliseconds of a decode step with 8 experts and 2 of them a token, and of a dense model with as many active
    bytes, and what reading the touched experts would take."""
    from benchmarks.core.experts import bench_experts

    settings = settings_from(cache_dir=cache_dir)
    for row in bench_experts(settings.cache_path, streams=streams, rounds=rounds):
        values = msgspec.structs.asdict(row)
        click.echo(msgspec.json.encode(row) if as_json else "  ".join(f"{k}={v}" for k, v in values.items()))
