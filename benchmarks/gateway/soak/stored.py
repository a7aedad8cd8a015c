"""What one request takes of the database's file: the soak's requests, then the pages of each table and index."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import msgspec

from benchmarks.gateway.soak.soak import caught_up, soaked_server
from benchmarks.gateway.soak.traffic import Traffic
from benchmarks.report.kept import out_option
from benchmarks.report.markdown import markdown
from benchmarks.report.measurement import Measurement
from gateway.operations.cli.options import echo_json, json_option

AT_ONCE = 8
"""Draws that are asked for at the same time."""


class StoredBytes(msgspec.Struct, frozen=True, kw_only=True):
    """What the file grew by after the warm-up, in bytes: in all, and by table and index.

    `requests` were sent; `rows` of them are in the table `requests`, since some are refused. `per_request`: of the
    rows.
    """

    requests: int
    rows: int
    grown: int
    per_request: float
    parts: dict[str, int]
    failures: dict[str, int]


def part_bytes(database: Path) -> Counter[str]:
    """Return the bytes of the pages of every table and index in a SQLite file."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return Counter(dict(connection.execute("SELECT name, SUM(pgsize) FROM dbstat GROUP BY name")))


def _row_count(database: Path) -> int:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        count: int = connection.execute("SELECT COUNT(*) FROM requests").fetchone()[0]
    return count


async def measure_stored(draws: int, warm: int, kind: str | None, environment: Mapping[str, str]) -> StoredBytes:
    """Send `draws` of the soak's mix, or of one `kind` of it, after `warm` others, and compare the pages."""
    async with soaked_server(environment) as (server, direct, key, data):
        traffic = Traffic(server.url, direct, key, seed=7)
        database = data / "aio.sqlite3"
        await _send(traffic, warm, kind, server.url)
        sent, rows, before = traffic.requests, _row_count(database), part_bytes(database)
        await _send(traffic, draws, kind, server.url)
        await traffic.close()
        after = part_bytes(database)
        rows = _row_count(database) - rows
    parts = {name: grown for name, size in after.most_common() if (grown := size - before[name])}
    grown = sum(parts.values())
    return StoredBytes(
        requests=traffic.requests - sent,
        rows=rows,
        grown=grown,
        per_request=round(grown / rows, 1) if rows else 0.0,
        parts=dict(sorted(parts.items(), key=lambda part: -part[1])),
        failures=dict(traffic.failures),
    )


async def _send(traffic: Traffic, draws: int, kind: str | None, url: str) -> None:
    numbers = iter(range(draws))

    async def some() -> None:
        for _ in numbers:
            drawn, random = traffic.next()
            await traffic.send(kind or drawn, random)

    await asyncio.gather(*(some() for _ in range(AT_ONCE)))
    await caught_up(url)


def stored_table(found: StoredBytes) -> str:
    """Bytes per stored request, by table and index."""
    rows = [[name, f"{size / found.rows:,.0f}"] for name, size in found.parts.items()]
    rows.append(["all", f"{found.per_request:,.0f}"])
    table = markdown(["table or index", "bytes per stored request"], rows)
    return f"{table}\n\n{found.requests:,} requests, of which {found.rows:,} are stored."


@click.command()
@click.option("--draws", type=click.IntRange(min=1), default=4000, show_default=True, help="Draws of the soak's mix.")
@click.option("--warm", type=click.IntRange(min=0), default=1000, show_default=True, help="Draws before them.")
@click.option("--kind", help="Only this kind of the mix, such as `whole`.")
@click.option("--texts/--no-texts", default=False, show_default=True, help="Whether texts are stored.")
@out_option
@json_option
def stored(draws: int, warm: int, kind: str | None, texts: bool, out: Path | None, as_json: bool) -> None:
    """Bytes of the database's file per stored request, by table and index, under the soak's mix of requests.

    Example: python -m benchmarks stored --kind whole
    """
    options: dict[str, Any] = {"draws": draws, "warm": warm, "kind": kind, "texts": texts}
    measurement = Measurement.begin("stored", options, out)
    found = asyncio.run(measure_stored(draws, warm, kind, {"AIO_STORE_TEXTS": str(texts).lower()}))
    measurement.finish(msgspec.to_builtins(found))
    if as_json:
        echo_json(found)
    else:
        click.echo(stored_table(found))
    if found.failures:
        raise click.ClickException(f"wrong answers: {found.failures}")
