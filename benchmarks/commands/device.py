"""`python -m benchmarks device`: tables of what `make bench-gpu` printed, put into the page that documents them."""

from pathlib import Path

import click

from benchmarks.commands.pages import page_option, show_tables


@click.command()
@click.argument("results", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@page_option
def device(results: Path, pages: tuple[Path, ...]) -> None:
    """Write down what `make bench-gpu > RESULTS` measured on a card.

    Example: python -m benchmarks device docs/measurements/gpu-h200.jsonl --page docs/results/performance-gpu.md
    """
    from benchmarks.report.device_tables import device_tables

    show_tables(device_tables, results, pages)
