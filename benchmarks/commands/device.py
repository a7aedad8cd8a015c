"""`python -m benchmarks device`: tables of what `make bench-gpu` printed, put into the page that documents them."""

from pathlib import Path

import click

from benchmarks.report.device_tables import device_tables
from benchmarks.report.page import filled


@click.command()
@click.argument("results", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--page",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Markdown with marked places; filled in place.  [prints the tables]",
)
def device(results: Path, page: Path | None) -> None:
    """Write down what `make bench-gpu > RESULTS` measured on a card.

    Example: python -m benchmarks device docs/measurements/gpu-h200.jsonl --page docs/results/performance-gpu.md
    """
    tables = device_tables(results)
    if page is None:
        click.echo("\n\n".join(tables.values()))
    else:
        page.write_text(filled(page.read_text(encoding="utf-8"), tables), encoding="utf-8")
