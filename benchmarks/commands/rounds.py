"""What benchmarks in alternating rounds show: how far they are, and a figure with its range."""

import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from gateway.reporting.measured import Spread


def show_round(done: int, total: int) -> None:
    """On standard error; on a terminal each takes the place of the one before."""
    click.echo(f"round {done} of {total}", err=True, nl=not sys.stderr.isatty())
    if sys.stderr.isatty():
        click.echo("\r", err=True, nl=False)


def figure(value: "Spread | None", digits: int) -> str:
    """Median (low to high), each with so many decimals."""
    return "-" if value is None else f"{value.median:.{digits}f} ({value.low:.{digits}f} to {value.high:.{digits}f})"
