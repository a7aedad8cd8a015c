"""Fills the marked places of a Markdown page with what measurements say, so that no figure is typed by hand."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from benchmarks.cascade.savings import SavingResults, savings_table
from benchmarks.core.speculation import SpeculationResults, workloads_table
from benchmarks.gateway.soak.figures import SoakResults, soak_table
from benchmarks.report.ablation_tables import ablation_tables
from benchmarks.report.markdown import limit_table, markdown, number, sweep_table
from benchmarks.report.measured import (
    AblationResults,
    Head,
    LimitResults,
    MeasurementError,
    SweepResults,
    machine_line,
)
from benchmarks.report.measurement import Measurement, Results, read_finished, read_results, rows_of
from benchmarks.report.peer_tables import gateways_table, goals_table, results_of, systems_table
from benchmarks.sources.ages import read_marks
from gateway.cli.options import FILE, FOLDER, NEW_FOLDER

_PLACE = re.compile(r"(<!-- measured: (?P<name>[a-z0-9-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


class PageError(ValueError):
    """A page has no place for a part; the message names both."""


def places(page: str) -> list[str]:
    """Names of the marked places: `<!-- measured: NAME -->` to `<!-- end -->`, each on a line."""
    return [match["name"] for match in _PLACE.finditer(page)]


def filled(page: str, parts: Mapping[str, str]) -> str:
    """`page` with each part between its marks; places without a part stay as they are. Raises `PageError`."""
    if unknown := set(parts) - set(places(page)):
        raise PageError(f"the page has no place for {', '.join(sorted(unknown))}; it has {', '.join(places(page))}")

    def fill(match: re.Match[str]) -> str:
        part = parts.get(match["name"])
        return match[0] if part is None else f"{match[1]}\n{part}\n\n{match[3]}"

    return _PLACE.sub(fill, page)


def filled_pages(pages: Sequence[str], parts: Mapping[str, str]) -> list[str]:
    """`pages`, each with the parts that it has places for. Raises `PageError` for a part without a place."""
    if unknown := set(parts) - {name for page in pages for name in places(page)}:
        raise PageError(f"no page has a place for {', '.join(sorted(unknown))}")
    return [filled(page, {name: parts[name] for name in places(page) if name in parts}) for page in pages]


def parts_of(folder: Path) -> dict[str, str]:
    """The text of every part that the measurements in `folder` give, finished ones only. Raises `MeasurementError`.

    `NAME-KIND.jsonl` is the same measurement on another kind of machine; its parts end in `-KIND`.
    """
    marks = read_marks(folder)

    def aged(path: Path, text: str) -> str:
        mark = marks.get(path.name, "")
        return f"{text}\n\n**{mark}**" if mark else text

    parts = {name: aged(folder / f"{name}.jsonl", text) for name, text in _sweep_and_ablation(folder).items()}
    for name, draw in _MEASURED.items():
        for path in _of_each_kind(folder, name):
            if (measurement := read_finished(folder, path.stem)) is not None:
                kind = path.stem.removeprefix(name)
                texts = {f"{part}{kind}": text for part, text in draw(measurement, folder, kind).items()}
                first = next(iter(texts))
                parts |= texts | {first: aged(path, f"{texts[first]}\n\n{machine_line(measurement.head)}")}
    for name, columns in _LISTINGS.items():
        parts |= {path.stem: aged(path, _listing(path, columns)) for path in _of_each_kind(folder, name)}
    for path in _of_each_kind(folder, "kernels"):
        parts[path.stem] = aged(path, _kernels(path, each=path.stem == "kernels"))
    if (path := folder / "route.json").exists():
        parts["route"] = aged(path, _route(path))
    return parts


_SWEEP = "![Throughput over latency, and latencies over concurrency](../img/sweep.png)"
_ABLATION = (
    "![Effect of each technique alone and in the full system, and throughput as one is added to the other]"
    "(../img/ablation.png)"
)


def _sweep_and_ablation(folder: Path) -> dict[str, str]:
    tables = {}
    if sweep := read_results(folder, "sweep", SweepResults):
        tables["sweep"] = f"{sweep_table(sweep[1])}\n\n{_SWEEP}\n\n{machine_line(sweep[0])}"
    if ablation := read_results(folder, "ablation", AblationResults):
        head, results = ablation
        parts = [ablation_tables(results), *_small_load(head, results), _ABLATION, machine_line(head)]
        tables["ablation"] = "\n\n".join(parts)
    return tables


def _small_load(head: Head, results: AblationResults) -> list[str]:
    """What the mark of some rows means, if any has it."""
    if not any(rung.small for rung in results.ladder) and not any(effect.small for effect in results.effects):
        return []
    options = head.settings["options"]
    load = f"{options['small_requests']} requests, {options['small_concurrency']} in flight"
    return [f"Rows with ¹ are on a small load ({load})."]


def _of_each_kind(folder: Path, name: str) -> list[Path]:
    """The files of one measurement: of the first kind of machine, and `NAME-KIND.jsonl` of the others."""
    return sorted([*folder.glob(f"{name}.jsonl"), *folder.glob(f"{name}-*.jsonl")])


_PEERS = "![Output tokens per second of each engine at 1, 8 and 32 requests in flight](../img/peers.png)"


def _peers(measurement: Measurement, folder: Path, kind: str) -> dict[str, str]:
    results = results_of(measurement.rows)
    goals = goals_table(results, _bounds(folder, kind))
    parts = {"goals": goals if kind else f"{goals}\n\n{_PEERS}", "peers": systems_table(results)}
    gateways = gateways_table(measurement.rows)
    return parts | ({"gateways": f"{gateways}\n\n{_versions(measurement)}"} if gateways else {})


def _versions(measurement: Measurement) -> str:
    return f"Of the same run; peers: {', '.join(measurement.head.settings['peers'].values())}."


def _bounds(folder: Path, kind: str) -> dict[str, float]:
    """What the machine allows, by name, as `python -m benchmarks kernels` measured it; {} if it was not."""
    path = folder / f"kernels{kind}.jsonl"
    bounds: dict[str, float] = next((row["bounds"] for row in rows_of(path) if "bounds" in row), {})
    return bounds


def _kernels(path: Path, *, each: bool) -> str:
    """The machine's peaks and bounds; then, if `each`, every kernel with its bound."""
    rows = rows_of(path)
    peaks = [[name, _cell(value)] for row in rows for name, value in row.get("machine", {}).items()]
    allowed = [[name, _cell(value)] for row in rows for name, value in row.get("bounds", {}).items()]
    columns = ("scheme", "projection", "rows", "us", "gmac_s", "gb_s", "bound", "of_bound")
    kernels = [[_cell(row.get(name)) for name in columns] for row in rows if each and "scheme" in row]
    heads = (["peak of the machine", "measured"], ["bound", "tokens/s"], list(columns))
    tables = zip(heads, (peaks, allowed, kernels), strict=True)
    return "\n\n".join(markdown(head, cells) for head, cells in tables if cells)


Draw = Callable[[Measurement, Path, str], dict[str, str]]


def _table(name: str, kind: type[Results], show: Callable[[Results], str]) -> Draw:
    return lambda measurement, *_: {name: show(msgspec.convert(measurement.results, kind))}


_MEASURED: dict[str, Draw] = {
    "peers": _peers,
    "workloads": _table("workloads", SpeculationResults, workloads_table),
    "voice": _table("voice", LimitResults, limit_table),
    "rewrite": _table("rewrite", LimitResults, limit_table),
    "savings": _table("savings", SavingResults, savings_table),
    "soak": _table("soak", SoakResults, soak_table),
}


def _route(path: Path) -> str:
    try:
        shown = json.loads(path.read_text(encoding="utf-8"))
        row = ["the whole decision", *(f"{shown['decision']['cpu_ms'][p]:.3f}" for p in ("p50", "p90", "p99"))]
    except (ValueError, KeyError, TypeError) as error:
        raise MeasurementError(f"{path} is no output of `python -m benchmarks route --json`: {error!r}") from error
    return markdown([f"{shown['prompts']:,} prompts", "p50 ms", "p90 ms", "p99 ms"], [row])


# Commands' JSON lines as tables: columns of the rows, and their titles.
_LISTINGS = {
    "proxy": {
        "target": "target", "stream": "streamed", "loop": "loop", "offered": "offered", "req_s": "answers/s",
        "p50_ms": "p50 ms", "p99_ms": "p99 ms", "ok": "answered", "errors": "errors",
    },
    "step": {
        "step": "step", "sequences": "sequences", "tokens": "tokens", "total_ms": "total ms", "linears_ms": "linears",
        "attention_ms": "attention", "rotary_ms": "rotary embedding, cache write",
        "rows_ms": "norms, quantised activations", "head_ms": "vocabulary projection", "rest_ms": "rest",
    },
    "start": {
        "measure": "measure", "role": "role", "seconds_median": "seconds to ready, median", "seconds_min": "least",
        "seconds_max": "most", "requests": "requests served", "resident_mb": "resident MB",
    },
}  # fmt: skip


def _listing(path: Path, columns: Mapping[str, str]) -> str:
    return markdown(list(columns.values()), [[_cell(row.get(name)) for name in columns] for row in rows_of(path)])


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return number(value) if isinstance(value, float) else str(value)


page_option = click.option(
    "--page",
    "pages",
    multiple=True,
    type=FILE,
    help="Markdown with marked places; filled in place. Repeatable: a table goes to its place.  [prints the tables]",
)


def show_tables(tables_of: Callable[[Path], Mapping[str, str]], results: Path, pages: Sequence[Path]) -> None:
    """Fill the tables of `results` into the places of `pages` that have their names, or print them. Raises
    `ClickException`."""

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


@click.command()
@click.argument("results", type=FOLDER)
@page_option
@click.option("--images", type=NEW_FOLDER, help="Folder for plots; needs matplotlib.  [no plots]")
def report(results: Path, pages: tuple[Path, ...], images: Path | None) -> None:
    """Write down what the finished measurements in the folder RESULTS say.

    Example: python -m benchmarks report docs/measurements --page docs/results/performance.md --images docs/img
    """
    show_tables(parts_of, results, pages)
    if images is not None:
        for path in _plots(results, images):
            click.echo(str(path))


def _plots(results: Path, images: Path) -> list[Path]:
    """Draw what there are measurements of. Raises `ClickException` without matplotlib and for other files."""

    try:
        from benchmarks.report.plots import draw_plots
    except ModuleNotFoundError as error:
        raise click.ClickException(f"plots need matplotlib: pip install 'aio-gateway[dev]' ({error})") from error
    try:
        return draw_plots(results, images)
    except MeasurementError as error:
        raise click.ClickException(str(error)) from error
