"""`python -m benchmarks report`: tables and plots of measurements, put into the pages that document them."""

from pathlib import Path

import click

from benchmarks.commands.pages import page_option, show_tables


@click.command()
@click.argument("results", type=click.Path(exists=True, file_okay=False, path_type=Path))
@page_option
@click.option(
    "--images", type=click.Path(file_okay=False, path_type=Path), help="Folder for plots; needs matplotlib.  [no plots]"
)
def report(results: Path, pages: tuple[Path, ...], images: Path | None) -> None:
    """Write down what the finished measurements in the folder RESULTS say.

    Example: python -m benchmarks report docs/measurements --page docs/results/performance.md --images docs/img
    """
    from benchmarks.report.page import parts_of

    show_tables(parts_of, results, pages)
    if images is not None:
        for path in _plots(results, images):
            click.echo(str(path))


def _plots(results: Path, images: Path) -> list[Path]:
    """Draw what there are measurements of. Raises `ClickException` without matplotlib and for other files."""
    from benchmarks.report.measured import MeasurementError

    try:
        from benchmarks.report.plots import draw_plots
    except ModuleNotFoundError as error:
        raise click.ClickException(f"plots need matplotlib: pip install 'aio-gateway[dev]' ({error})") from error
    try:
        return draw_plots(results, images)
    except MeasurementError as error:
        raise click.ClickException(str(error)) from error
