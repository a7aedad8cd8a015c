"""`python -m benchmarks report`: tables and plots of measurements, put into the page that documents them."""

from pathlib import Path

import click


@click.command()
@click.argument("results", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--page",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Markdown with marked places; filled in place.  [prints the tables]",
)
@click.option(
    "--images", type=click.Path(file_okay=False, path_type=Path), help="Folder for plots; needs matplotlib.  [no plots]"
)
def report(results: Path, page: Path | None, images: Path | None) -> None:
    """Write down what the finished measurements in the folder RESULTS say.

    Example: python -m benchmarks report docs/measurements --page docs/results/performance.md --images docs/img
    """
    from benchmarks.report.measured import MeasurementError
    from benchmarks.report.page import PageError, filled, parts_of

    try:
        parts = parts_of(results)
        if page is None:
            click.echo("\n\n".join(f"{name}\n\n{text}" for name, text in parts.items()))
        else:
            page.write_text(filled(page.read_text(encoding="utf-8"), parts), encoding="utf-8")
            click.echo(f"{page}: {', '.join(parts) or 'nothing measured yet'}")
        if images is not None:
            for path in _plots(results, images):
                click.echo(str(path))
    except (MeasurementError, PageError) as error:
        raise click.ClickException(str(error)) from error


def _plots(results: Path, images: Path) -> list[Path]:
    """Draw what there are measurements of. Raises `ClickException` without matplotlib."""
    try:
        from benchmarks.report.plots import draw_plots
    except ModuleNotFoundError as error:
        raise click.ClickException(f"plots need matplotlib: pip install 'aio-gateway[dev]' ({error})") from error
    return draw_plots(results, images)
