"""`python -m benchmarks lists`: pages of the admin API over many rows, by every combination of filters."""

import asyncio
import sys
import tempfile
from typing import TYPE_CHECKING, Any

import click

from gateway.operations.cli.options import echo_json, json_option, settings_from, staged_progress, table

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from benchmarks.gateway.lists import ListTime


@click.command()
@click.option("--rows", type=click.IntRange(min=1), default=1_000_000, show_default=True, help="In each listed table.")
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True, help="Of every query.")
@click.option("--database-url", metavar="URL", help="An empty database to fill.  [a SQLite file that is deleted]")
@click.option("--only", metavar="LIST", help="Fill and time one list alone, as requests.  [all, and every page]")
@json_option
def lists(rows: int, repeats: int, database_url: str | None, only: str | None, as_json: bool) -> None:
    """Fill a database and time the lists of /admin/api over HTTP: every combination of filters, common and rare."""
    from benchmarks.gateway.lists import LISTS, DatabaseInUseError, bench_lists

    if only is not None and only not in LISTS:
        raise click.BadParameter(f"there are {', '.join(LISTS)}", param_hint="--only")

    with tempfile.TemporaryDirectory(prefix="aio-bench-") as folder, staged_progress("filling") as progress:
        given: dict[str, Any] = {
            "data_dir": folder,
            "monitor": True,
            "verification_budget": 0.0,
            "api_keys": "",
        }
        settings = settings_from(**given, database_url=database_url or "")
        try:
            found = _run(bench_lists(settings, rows=rows, repeats=repeats, progress=progress, only=only))
        except DatabaseInUseError as error:
            raise click.ClickException(str(error)) from error
    if as_json:
        echo_json(found)
    else:
        click.echo(_shown(found))


def _run(work: "Coroutine[Any, Any, list[ListTime]]") -> "list[ListTime]":
    """On the event loop that `aio serve` has."""
    if sys.platform == "win32":
        return asyncio.run(work)
    import uvloop

    return uvloop.run(work)


def _shown(found: "list[ListTime]") -> str:
    rows = [
        [
            one.endpoint,
            f"{one.rows:,}",
            str(one.queries),
            str(one.requests),
            f"{one.p50_ms:.1f} ms",
            f"{one.p99_ms:.1f} ms",
            f"{one.slowest_best_ms:.1f} ms",
            one.slowest,
        ]
        for one in found
    ]
    return table(["list", "rows", "queries", "requests", "p50", "p99", "slowest query, best", "which"], rows)
