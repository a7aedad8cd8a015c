"""What the commands share that put tables of measurements into a page."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click

page_option = click.option(
    "--page",
    "pages",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Markdown with marked places; filled in place. Repeatable: a table goes to its place.  [prints the tables]",
)


def show_tables(tables_of: Callable[[Path], Mapping[str, str]], results: Path, pages: Sequence[Path]) -> None:
    """Fill the tables of `results` into the places of `pages` that have their names, or print them. Raises
    `ClickException`."""
    from benchmarks.report.measured import MeasurementError
    from benchmarks.report.page import PageError, filled_pages

    try:
        tables = tables_of(results)
        if not pages:
            click.echo("\n\n".join(f"{name}\n\n{text}" for name, text in tables.items()))
            return
        texts = filled_pages([page.read_text(encoding="utf-8") for page in pages], tables)
        for page, text in zip(pages, texts, strict=True):
            page.write_text(text, encoding="utf-8")
        click.echo(f"{', '.join(map(str, pages))}: {', '.join(tables) or 'nothing measured yet'}")
    except (MeasurementError, PageError) as error:
        raise click.ClickException(str(error)) from error
