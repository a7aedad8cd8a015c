"""`python -m benchmarks mix`: a workload whose prompts go to the tiers in given shares."""

from pathlib import Path
from typing import Any

import click

from gateway.operations.cli.options import catalog_option, data_dir_option, settings_from
from gateway.planning.commands.plan import percent_shares


@click.command()
@click.argument("output", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--mix", callback=percent_shares, default="60/20/15/5", show_default=True, help="Percent of the prompts by tier."
)
@click.option("--rows", type=click.IntRange(min=1), default=1000, show_default=True, help="Prompts.")
@click.option("--quality-target", type=float, help="Of the routing that decides, 0 to 1.  [AIO_QUALITY_TARGET]")
@click.option("--prompts", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A log to draw from.")
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Public data.  [AIO_DATA]")
@click.option("--seed", default=0, show_default=True)
@catalog_option
@data_dir_option
def mix(
    output: Path,
    mix: tuple[float, ...],
    rows: int,
    prompts: Path | None,
    data: Path | None,
    seed: int,
    **given: Any,
) -> None:
    """Write prompts, a line of JSON each, that the gateway's routing sends to its tiers in the shares of --mix.

    They come from the public outcomes, or from a log as `aio backtest` reads it.
    """
    import msgspec

    from benchmarks.gateway.mixed_workload import MixError, mixed_workload
    from classifier.training.data.dataset import data_folder, load_outcomes
    from gateway.planning.backtests.backtest import dry_routing
    from gateway.planning.backtests.log import read_log
    from inference_core.io.files import atomic_file

    if prompts is not None:
        texts = [row.last_user_text for row in read_log(prompts)]
    else:
        texts = [row.prompt for row in load_outcomes(data or data_folder())]
    try:
        made = mixed_workload(dry_routing(settings_from(**given)), texts, mix, rows, seed)
    except MixError as error:
        raise click.ClickException(str(error)) from error
    with atomic_file(output) as file:
        for one in made:
            file.write(msgspec.json.encode(one) + b"\n")
    by_tier = ", ".join(f"tier {k} {sum(one.tier == k for one in made)}" for k in range(1, len(mix) + 1))
    click.echo(f"{len(made)} prompts ({by_tier}) -> {output}")
