"""`aio backtest`: what routing would have done with a log of prompts, its cost and its quality."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.operations.cli.options import (
    QUALITY_METAVAR,
    catalog_option,
    data_dir_option,
    echo_json,
    json_option,
    quality_of,
    settings_from,
    table,
)

if TYPE_CHECKING:
    from gateway.planning.backtests.backtest import Report


@click.command()
@click.argument("log", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--quality",
    "targets",
    multiple=True,
    type=quality_of,
    metavar=QUALITY_METAVAR,
    help="Quality target (repeatable).  [0.8 0.85 0.9 0.95 0.99]",
)
@click.option(
    "--tier", "names", multiple=True, metavar="NAME=NUMBER", help="Tier of a name in the scores; may be repeated."
)
@click.option(
    "--training",
    type=click.Path(file_okay=False, path_type=Path),
    help="Also write the labelled rows into this folder, for `aio classifier train --data`.",
)
@click.option("--example", is_flag=True, help="Write LOG from the public outcomes instead of reading one.")
@click.option("--rows", type=click.IntRange(min=1), default=2000, show_default=True, help="Most rows of the example.")
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Public data.  [AIO_DATA]")
@catalog_option
@data_dir_option
@json_option
def backtest(
    log: Path,
    targets: tuple[float, ...],
    names: tuple[str, ...],
    training: Path | None,
    example: bool,
    rows: int,
    data: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Route every prompt of LOG (JSON lines, may be gzipped) offline; print split, cost and quality per target.

    Nothing is sent: the active classifier decides, prices are the catalogue's, quality comes from the labels in LOG.
    """
    from gateway.planning.backtests.backtest import TARGETS, Backtest
    from gateway.planning.backtests.dry_run import dry_routing
    from gateway.planning.backtests.log import TierNames, read_log, training_rows, write_example, write_training

    if example:
        from classifier.training.data.dataset import data_folder

        click.echo(f"{write_example(log, data or data_folder(), rows)} rows -> {log}")
        return
    settings = settings_from(**options)
    routing = dry_routing(settings)
    known = TierNames(len(routing.served.catalog.tiers), dict(map(_named_tier, names)))
    tested = Backtest(routing, known, targets or TARGETS)
    for row in read_log(log):
        tested.add(row)
    report = tested.report()
    echo_json(report) if as_json else click.echo(_text(report))
    if training is not None:
        written = write_training(training, training_rows(read_log(log), known))
        click.echo(f"{written} labelled rows; aio classifier train --data {training} trains on them", err=True)


def _named_tier(given: str) -> tuple[str, int]:
    from tiers.catalog.tier_spec import MAX_TIERS

    name, equals, number = given.rpartition("=")
    if not equals or not name or not number.isdigit() or not 1 <= int(number) <= MAX_TIERS:
        raise click.UsageError(f"--tier {given}: give NAME=NUMBER, the number from 1 to {MAX_TIERS}")
    return name, int(number)


def _text(report: "Report") -> str:
    tiers = len(report.targets[0].split)
    head = ["target", *(f"tier {k}" for k in range(1, tiers + 1)), "$ per request", "saving", "predicted"]
    rows = []
    for one in report.targets:
        cells = [f"{one.quality_target:.2f}", *(f"{share:.1%}" for share in one.split)]
        rows.append([*cells, f"{one.cost_per_request_usd:.6f}", _interval(one.saving), f"{one.predicted_no_worse:.1%}"])
    mean = report.strongest_cost_usd / report.rows
    lines = [
        f"{report.rows:,} requests, decided by {report.classifier} ({report.kind}); on the strongest tier alone "
        f"${report.strongest_cost_usd:.6f}, ${mean:.6f} per request",
    ]
    if report.estimated_answers:
        lines.append(f"{report.estimated_answers:,} rows have no answer length: priced at the catalogue's")
    if report.priced:
        lines.append(f"paid for the {report.priced:,} rows with a price: ${report.paid_usd:.6f}")
    return "\n".join([*lines, "", table(head, rows), "", *_quality(report)])


def _quality(report: "Report") -> Sequence[str]:
    if not report.labelled:
        return ["no row has labels of the strongest tier and another, so nothing is measured"]
    rows = []
    for one in report.targets:
        if one.labelled is not None:
            good = one.labelled.no_worse
            shown = f"{good.count / good.total:.1%} [{good.low:.1%}, {good.high:.1%}]"
            gain = _interval(one.labelled.gain, sign="+")
            rows.append([f"{one.quality_target:.2f}", shown, gain, _interval(one.labelled.saving)])
    labels = ", ".join(f"tier {k} {count:,}" for k, count in enumerate(report.tiers_labelled, start=1))
    head = ["target", "no worse than the strongest", "more than random assignment", "saving there"]
    return [f"measured on the {report.labelled:,} labelled rows (labels: {labels}), 95% intervals", table(head, rows)]


def _interval(found: Any, sign: str = "") -> str:
    return f"{found.value:{sign}.1%} [{found.low:{sign}.1%}, {found.high:{sign}.1%}]"
