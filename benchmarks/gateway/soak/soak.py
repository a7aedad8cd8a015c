"""A gateway under mixed traffic for so long: memory, files and added latency, minute by minute."""

import asyncio
import itertools
import re
import secrets
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import httpx
import msgspec

from benchmarks.gateway.soak.figures import Look, Minute, SoakResults, changes_of, look, minute_of, soak_table
from benchmarks.gateway.soak.traffic import EMBEDDER, MOST_TOKENS, Traffic
from benchmarks.gateway.soak.upstream import soak_upstream
from benchmarks.gateway.upstream import proxied_catalogue
from benchmarks.report.kept import out_option
from benchmarks.report.measurement import Measurement
from benchmarks.running_server import ServerProcess, running_server
from gateway.cli.options import echo_answer, json_option, settings_from

KEY_VARIABLE = "AIO_SOAK_KEY"
# Of looks at the process; a minute's figures are medians of them.
_LOOK_SECONDS = 5.0
# In which a server that has answered all closes what it kept open.
QUIET_SECONDS = 12.0
_EMBEDDINGS = """
[[embeddings]]
name = "{name}"
url = "{url}"
model = "mock"
input_usd_per_million = 0.02
"""
# Limits and budgets that count and never refuse.
KEYS_FILE = f"""
[[teams]]
name = "soak"
budgets = {{ day = 1000000, month = 10000000 }}

[[keys]]
name = "soak"
team = "soak"
secret_env = "{KEY_VARIABLE}"
requests_per_minute = 1000000
tokens_per_minute = 1000000000
concurrency = 1000
budgets = {{ total = 10000000 }}
"""
Say = Callable[[str], None]
_LAG = re.compile(r"^aio_ledger_lag_records ([\d.]+)", re.MULTILINE)


class SoakOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`warm`: minutes at the beginning that do not count; `every`: seconds of a row, a minute in earnest; `rate`:
    draws per second, at most `concurrency` at once. Raises `ValueError`."""

    minutes: float = 30.0
    warm: float = 5.0
    rate: float = 20.0
    concurrency: int = 16
    every: float = 60.0
    seed: int = 7

    def __post_init__(self) -> None:
        if self.warm >= self.minutes:
            raise ValueError(f"warm is {self.warm:g} minutes of {self.minutes:g}; it must be shorter")


def soaked_catalogue(url: str) -> str:
    """Four tiers and a model of embeddings, all of the upstream at `url`, that take and give megabytes."""
    tiers = proxied_catalogue(url, max_context=8_388_608, max_tokens=MOST_TOKENS)
    return tiers + _EMBEDDINGS.format(name=EMBEDDER, url=url)


async def soak(
    server: ServerProcess, direct: str, key: str, data: Path, options: SoakOptions, measurement: Measurement, say: Say
) -> SoakResults:
    """Ask the server, whose upstream is at `direct` and whose files are in `data`, and add a row for each minute."""
    traffic = Traffic(server.url, direct, key, options.seed)
    before = look(server.pid, data)
    began = time.monotonic()
    asking = asyncio.create_task(_ask(traffic, options, began))
    rows: list[Minute] = []
    end = began + options.minutes * 60
    while time.monotonic() < end and not asking.done():
        looks = await _looks(server.pid, data, min(began + (len(rows) + 1) * options.every, end))
        passed = (time.monotonic() - began) / 60
        rows.append(minute_of(looks, passed, traffic.requests, traffic.take_seconds()))
        measurement.add(msgspec.to_builtins(rows[-1]))
        say(_line(rows[-1], traffic))
    await asking
    await traffic.close()
    await asyncio.sleep(QUIET_SECONDS)
    await caught_up(server.url)
    results = _results(rows, options, traffic, before, look(server.pid, data))
    measurement.finish(msgspec.to_builtins(results))
    return results


async def _ask(traffic: Traffic, options: SoakOptions, began: float) -> None:
    """Draw and ask at the given rate until the end; late draws follow as fast as `concurrency` allows."""
    end = began + options.minutes * 60
    dues = (began + number / options.rate for number in itertools.count())

    async def some() -> None:
        while (due := next(dues)) < end and time.monotonic() < end:
            await asyncio.sleep(due - time.monotonic())
            await traffic.send(*traffic.next())

    await asyncio.gather(*(some() for _ in range(options.concurrency)))


async def _looks(pid: int, data: Path, until: float) -> list[Look]:
    """One look every few seconds, the last one then."""
    looks: list[Look] = []
    while not looks or time.monotonic() < until:
        await asyncio.sleep(min(_LOOK_SECONDS, max(until - time.monotonic(), 0.0)))
        looks.append(await asyncio.to_thread(look, pid, data))
    return looks


def _results(rows: list[Minute], options: SoakOptions, traffic: Traffic, before: Look, after: Look) -> SoakResults:
    counted = [row for row in rows if row.minute > options.warm] or rows[-1:]
    grown, answered = counted[-1].data - counted[0].data, counted[-1].requests - counted[0].requests
    return SoakResults(
        minutes=rows[-1].minute,
        warm=options.warm,
        requests=traffic.requests,
        changes=changes_of(counted),
        data_per_request=round(grown / answered, 1) if answered else 0.0,
        kinds=dict(sorted(traffic.kinds.items())),
        failures=dict(sorted(traffic.failures.items())),
        before=before,
        after=after,
    )


def _line(row: Minute, traffic: Traffic) -> str:
    return (
        f"{row.minute:.1f} min: {row.requests:,} requests, {row.resident / 1e6:.1f} MB (most "
        f"{row.resident_most / 1e6:.1f}), {row.open_files} files, {row.threads} threads, "
        f"{row.data / 1e6:.1f} MB of data, {sum(traffic.failures.values())} failures"
    )


async def caught_up(url: str) -> None:
    """Return once the server's database has every record."""
    async with httpx.AsyncClient(base_url=url) as client:
        # Polled: it happens in another process.
        while (lag := _LAG.search((await client.get("/metrics")).text)) and float(lag[1]):  # noqa: ASYNC110
            await asyncio.sleep(0.1)


@click.command()
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), default=30.0)
@click.option("--warm", type=click.FloatRange(min=0), default=5.0, help="Minutes at first that do not count.")
@click.option("--rate", type=click.FloatRange(min=0.1), default=20.0, help="Draws per second.")
@click.option("--concurrency", type=click.IntRange(min=1), default=16, help="Most at once.")
@click.option("--every", type=click.FloatRange(min=0.1), default=60.0, help="Seconds of a row.")
@click.option("--seed", default=7)
@click.option("--most-growth", type=float, default=5.0, help="Percent of memory, files and threads.")
@out_option
@json_option
def soak_command(most_growth: float, out: Path | None, as_json: bool, **arguments: Any) -> None:
    """Whole answers, streams, streams that are left, tools, agents' sessions, bodies and answers of 1 MB, embeddings,
    feedback and refused requests, in a fixed mix, through one `aio serve` with stored keys, budgets, records, cache
    and quality loop, to a server that answers at once.

    Compares the first third of the minutes after the warm-up with the last. Exits with 1 if memory, open files or
    threads grow by more than --most-growth, or if an answer is not the one that a request has to get.

    Example: python -m benchmarks soak --out docs/measurements/soak.jsonl
    """

    try:
        options = SoakOptions(**arguments)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if out is not None:
        # One that was cut short was of another process.
        out.unlink(missing_ok=True)
    results = asyncio.run(_run(options, out))
    echo_answer(as_json, results, soak_table(results))
    for name, growth in results.not_flat(most_growth / 100).items():
        click.secho(f"\n{name} grew by {growth:.1%}, which is more than {most_growth:g}%", fg="red", err=True)
    if results.failures or results.not_flat(most_growth / 100):
        raise SystemExit(1)


async def _run(options: "SoakOptions", out: Path | None) -> "SoakResults":
    measurement = Measurement.begin("soak", {"options": options}, out)
    key = secrets.token_urlsafe(24)
    with tempfile.TemporaryDirectory(prefix="aio-bench-") as folder:
        catalogue, keys_file, data = (Path(folder) / name for name in ("catalogue.toml", "keys.toml", "data"))
        keys_file.write_text(KEYS_FILE, encoding="utf-8")
        async with soak_upstream() as direct:
            catalogue.write_text(soaked_catalogue(direct), encoding="utf-8")
            settings = settings_from(catalog=str(catalogue), data_dir=str(data))
            async with running_server(settings, {KEY_VARIABLE: key, "AIO_KEYS_FILE": str(keys_file)}) as server:
                say = partial(click.echo, err=True)
                return await soak(server, direct, key, data, options, measurement, say)
