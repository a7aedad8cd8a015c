"""`python -m benchmarks sources`: the sources' tables next to measurements, as one page."""

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
@click.option("--page", type=click.Path(dir_okay=False, path_type=Path), help="Page to write.  [print it]")
def sources(measurements: Path, page: Path | None) -> None:
    """Make the page from measurements.

    Example: python -m benchmarks sources --page docs/results/report.md
    """
    from benchmarks.report.measured import MeasurementError
    from benchmarks.sources.report import report

    try:
        text = report(measurements)
    except MeasurementError as error:
        raise click.ClickException(str(error)) from error
    if page is None:
        click.echo(text, nl=False)
    else:
        page.write_text(text, encoding="utf-8")
