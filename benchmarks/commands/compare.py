"""`python -m benchmarks compare`: two kept measurements as a report before and after."""

from pathlib import Path

import click


@click.command()
@click.argument("before", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("after", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--usd-per-hour",
    type=click.FloatRange(min=0, min_open=True),
    nargs=2,
    metavar="BEFORE AFTER",
    help="Price of the machine then and now.  [no cost]",
)
@click.option("--differing", is_flag=True, help="Compare other machines or settings too, and name what differs.")
def compare(before: Path, after: Path, usd_per_hour: tuple[float, float] | None, differing: bool) -> None:
    """Latency p50 and p95, requests/s, tokens/s and cost of two measurements of one kind, with intervals.

    Example: python -m benchmarks compare old/sweep.jsonl new/sweep.jsonl --usd-per-hour 0.10 0.10
    """
    from benchmarks.report.before_after import before_after
    from benchmarks.report.measured import MeasurementError

    try:
        click.echo(before_after(before, after, usd_per_hour, differing=differing))
    except MeasurementError as error:
        raise click.ClickException(str(error)) from error
