"""`python -m benchmarks edge`: decisions and first tokens on the fast path for short prompts and without it."""

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import click

from gateway.operations.cli.options import (
    cache_dir_option,
    catalog_option,
    data_dir_option,
    echo_json,
    json_option,
    settings_from,
    staged_progress,
    table,
)

if TYPE_CHECKING:
    from benchmarks.gateway.edge import EdgeRow


@click.command()
@click.option("--requests", type=click.IntRange(min=1), default=200, show_default=True, help="Each way.")
@click.option("--prompt-tokens", type=click.IntRange(2, 4096), default=29, show_default=True)
@click.option("--new-tokens", type=click.IntRange(1, 4096), default=16, show_default=True, help="Length of an answer.")
@catalog_option
@data_dir_option
@cache_dir_option
@json_option
def edge(requests: int, prompt_tokens: int, new_tokens: int, as_json: bool, **given: Any) -> None:
    """Answer short prompts by the fast path and by the ordinary route in turn, with the catalogue's own tiers."""
    from benchmarks.gateway.edge import bench_edge

    with staged_progress("loading") as show:
        work = bench_edge(
            settings_from(**given, monitor=False),
            requests=requests,
            prompt_tokens=prompt_tokens,
            new_tokens=new_tokens,
            progress=show,
        )
        rows = asyncio.run(work) if sys.platform == "win32" else _fast(work)
    echo_json(rows) if as_json else click.echo(_text(rows))


def _fast(work: Any) -> "list[EdgeRow]":
    import uvloop

    rows: list[EdgeRow] = uvloop.run(work)
    return rows


def _text(rows: "list[EdgeRow]") -> str:
    head = ["path", "requests", "tiers", "decided p50", "p99 (ms)", "first token p50", "p99 (ms)"]
    cells = [
        [
            row.path,
            str(row.requests),
            ", ".join(map(str, row.tiers)),
            *(f"{ms:.3f}" for times in (row.decided, row.first_token) for ms in (times.p50, times.p99)),
        ]
        for row in rows
    ]
    return table(head, cells)
