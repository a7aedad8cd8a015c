"""Two kept measurements of the same load as a table before and after (SPEC TB-09)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from benchmarks.report.markdown import markdown, ranged, times
from benchmarks.report.measured import Head, MeasurementError, Spread, machine_line
from benchmarks.report.measurement import Measurement, Row
from benchmarks.report.rounds import ratio_of_runs, spread
from gateway.cli.options import FILE

# What tells the rows of a measurement apart, but for the round.
_KEYS = (
    "transport", "load", "workload", "part", "arm", "profile", "system", "mode", "concurrency", "level", "rate",
    "offered", "streams",
)  # fmt: skip
_FIGURES = {
    "e2e_p50_ms": "latency p50, ms",
    "e2e_p95_ms": "latency p95, ms",
    "req_s": "requests/s",
    "out_tok_s": "output tokens/s",
}
_COST = "$ per million tokens"
# The code under test may differ, the machine may not.
_OF_THE_CODE = ("commit", "versions")

Key = tuple[tuple[str, Any], ...]


def before_after(
    before: Path, after: Path, usd_per_hour: tuple[float, float] | None = None, *, differing: bool = False
) -> str:
    """Markdown: latency, requests and tokens a second and the price of tokens at `usd_per_hour`, of each load that both
    files have, with the ratio and its 95% interval (Welch's t over the rounds' logarithms).

    Raises `MeasurementError` if one is unfinished, they are of different kinds, nothing is comparable, or machine or
    settings differ and `differing` does not allow it; then the differences stand above the table.
    """
    first, second = (_finished(path) for path in (before, after))
    if first.head.measurement != second.head.measurement:
        raise MeasurementError(
            f"{before} is of {first.head.measurement}, {after} of {second.head.measurement}; give two of one kind"
        )
    differences = list(_differences(first.head, second.head))
    if differences and not differing:
        raise MeasurementError(
            f"{before} and {after} were not measured alike: {'; '.join(differences)}. "
            "Give --differing to compare them all the same"
        )
    rows = list(_lines(first.rows, second.rows, usd_per_hour))
    if not rows:
        raise MeasurementError(f"{before} and {after} have no load with a latency or a rate in common")
    head = ["load", "figure", "before", "after", "after / before [95% interval]"]
    parts = [
        *([f"Not measured alike: {'; '.join(differences)}."] if differences else []),
        markdown(head, rows),
        *(f"{name}: {machine_line(each.head)}" for name, each in (("Before", first), ("After", second))),
    ]
    return "\n\n".join(parts)


def _finished(path: Path) -> Measurement:
    measurement = Measurement.read(path)
    if measurement.finished is None:
        raise MeasurementError(f"{path} is not finished; run its command again with --out {path}")
    return measurement


def _differences(before: Head, after: Head) -> Iterator[str]:
    """Machine and settings, field by field, in words."""
    old, new = (
        {name: value for name, value in head.machine.items() if name not in _OF_THE_CODE} for head in (before, after)
    )
    yield from _differing("machine", old, new)
    yield from _differing("settings", before.settings, after.settings)


def _differing(path: str, old: Any, new: Any) -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in dict.fromkeys((*old, *new)):
            yield from _differing(f"{path}.{name}", old.get(name), new.get(name))
    elif old != new:
        yield f"{path} {old!r} and {new!r}"


def _lines(before: list[Row], after: list[Row], usd_per_hour: tuple[float, float] | None) -> Iterator[list[str]]:
    """A line per load and figure."""
    old, new = _by_load(before), _by_load(after)
    for key in old:
        if key not in new:
            continue
        figures: dict[str, tuple[list[float | None], list[float | None]]] = {
            title: ([row.get(name) for row in old[key]], [row.get(name) for row in new[key]])
            for name, title in _FIGURES.items()
        }
        if usd_per_hour is not None:
            figures[_COST] = (_costs(old[key], usd_per_hour[0]), _costs(new[key], usd_per_hour[1]))
        for title, (values_before, values_after) in figures.items():
            was, becomes = spread(values_before), spread(values_after)
            if was is not None and becomes is not None:
                change = _change(ratio_of_runs(values_after, values_before))
                yield [_name(key), title, ranged(was), ranged(becomes), change]


def _change(change: Spread | None) -> str:
    """The ratio; a single round tells no interval."""
    if change is None:
        return "–"
    return times(change) if change.low else f"{change.median:.2f}× (a single round)"


def _by_load(rows: list[Row]) -> dict[Key, list[Row]]:
    rows_by_load: dict[Key, list[Row]] = {}
    for row in rows:
        key = tuple((name, row[name]) for name in _KEYS if row.get(name) is not None)
        rows_by_load.setdefault(key, []).append(row)
    return rows_by_load


def _name(key: Key) -> str:
    return ", ".join(f"{name} {value}" for name, value in key) or "all"


def _costs(rows: list[Row], usd_per_hour: float) -> list[float | None]:
    """Dollars for a million tokens, prompt and answer, at the rows' rates."""
    rates = [row.get("total_tok_s") for row in rows]
    return [usd_per_hour / 3600 / rate * 1e6 if rate else None for rate in rates]


@click.command()
@click.argument("before", type=FILE)
@click.argument("after", type=FILE)
@click.option(
    "--usd-per-hour",
    type=click.FloatRange(min=0, min_open=True),
    nargs=2,
    metavar="BEFORE AFTER",
    help="Price of the machine then and now.  [no cost]",
)
@click.option("--differing", is_flag=True, help="Compare other machines or settings too, and name what differs.")
def compare(before: Path, after: Path, usd_per_hour: tuple[float, float] | None, differing: bool) -> None:
    """Latency p50 and p95, requests/s, tokens/s and cost of two measurements of one kind, with intervals.

    Example: python -m benchmarks compare old/sweep.jsonl new/sweep.jsonl --usd-per-hour 0.10 0.10
    """

    try:
        click.echo(before_after(before, after, usd_per_hour, differing=differing))
    except MeasurementError as error:
        raise click.ClickException(str(error)) from error
