"""What the commands share that put tables of measurements into a page."""

from collections.abc import Callable, Mapping
from pathlib import Path

import click

page_option = click.option(
    "--page",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Markdown with marked places; filled in place.  [prints the tables]",
)


def show_tables(tables_of: Callable[[Path], Mapping[str, str]], results: Path, page: Path | None) -> None:
    """Fill the tables of `results` into the places of `page` that have their names, or print them. Raises
    `ClickException`."""
    from benchmarks.report.measured import MeasurementError
    from benchmarks.report.page import PageError, filled

    try:
        tables = tables_of(results)
        if page is None:
            click.echo("\n\n".join(f"{name}\n\n{text}" for name, text in tables.items()))
        else:
            page.write_text(filled(page.read_text(encoding="utf-8"), tables), encoding="utf-8")
            click.echo(f"{page}: {', '.join(tables) or 'nothing measured yet'}")
    except (MeasurementError, PageError) as error:
        raise click.ClickException(str(error)) from error
