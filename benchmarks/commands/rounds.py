"""What benchmarks in alternating rounds show: how far they are, and a figure with its range."""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from gateway.operations.cli.options import table

if TYPE_CHECKING:
    from benchmarks.report.measured import Spread


def show_round(done: int, total: int) -> None:
    """On standard error; on a terminal each takes the place of the one before."""
    click.echo(f"round {done} of {total}", err=True, nl=not sys.stderr.isatty())
    if sys.stderr.isatty():
        click.echo("\r", err=True, nl=False)


def figure(value: "Spread | None", digits: int) -> str:
    """Median (low to high), each with so many decimals."""
    return "-" if value is None else f"{value.median:.{digits}f} ({value.low:.{digits}f} to {value.high:.{digits}f})"


def pairs_table(ways: tuple[str, str], found: "Mapping[str, tuple[Spread, Spread, Spread]]") -> str:
    """By quantity: the medians of both ways, of seconds, in microseconds, and their ratio with its interval."""
    rows = [
        [name, *(f"{way.median * 1e6:,.1f} us" for way in (one, other)), f"{r.median:.2f} ({r.low:.2f}-{r.high:.2f})"]
        for name, (one, other, r) in found.items()
    ]
    return table(["of one", *ways, "ratio (95%)"], rows)
