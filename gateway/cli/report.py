"""`aio report`: the sources' tables beside what was measured, as one page."""

from pathlib import Path

import click


@click.command()
@click.option(
    "--measurements",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path("docs/measurements"),
    show_default=True,
    help="Folder of measurements.",
)
@click.option("--page", type=click.Path(dir_okay=False, path_type=Path), help="Write it there.  [prints it]")
def report(measurements: Path, page: Path | None) -> None:
    """Make the report from what was measured.

    Example: aio report --page docs/report.md
    """
    from gateway.reporting.report import report as made
    from inference_core.bench.measurement import MeasurementError

    try:
        text = made(measurements)
    except MeasurementError as error:
        raise click.ClickException(str(error)) from error
    if page is None:
        click.echo(text, nl=False)
    else:
        page.write_text(text, encoding="utf-8")
