"""The latency-throughput curve: a closed loop at every concurrency, in rounds, and its knee (SPEC BS-11, TB-07)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import msgspec

from benchmarks.core.load_rows import load_row, roomy
from benchmarks.report.kept import kept_options, require_at_least_one, show_measurement
from benchmarks.report.markdown import sweep_table
from benchmarks.report.measured import Spread, SweepPoint, SweepResults
from benchmarks.report.measurement import Measurement, Row
from benchmarks.report.rounds import geometric_interval, spread
from gateway.cli.options import by_words
from gateway.cli.planning.bench import ManyNumbers, show_progress
from gateway.planning.load_test.run import BenchTarget, LoadRun, ProgressHook, core_target, model_of
from gateway.planning.load_test.workload import Load, Prompts, jobs_of
from tiers.catalog.core_spec import core_spec
from tiers.catalog.load import load_catalog


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """One load of a closed loop: `concurrency` in flight gave `throughput` at `latency`, in any units."""

    concurrency: int
    throughput: float
    latency: float


def knee(points: Sequence[OperatingPoint]) -> OperatingPoint:
    """The point farthest above the straight line from the curve's start to its end (Kneedle, Satopaa et al. 2011).

    Throughput over latency, both scaled to their range, so the choice depends on how far the curve was measured. Of
    equals the lowest concurrency. Raises `ValueError` for fewer than three points.
    """
    if len(points) < 3:
        raise ValueError(f"a knee needs at least 3 points, not {len(points)}")
    curve = sorted(points, key=lambda point: point.concurrency)
    across = _scaled([point.latency for point in curve])
    up = _scaled([point.throughput for point in curve])
    heights = [y - x for x, y in zip(across, up, strict=True)]
    return curve[heights.index(max(heights))]


def saturation(points: Sequence[OperatingPoint]) -> float:
    """The concurrency at which the two asymptotes of a closed loop meet (Denning and Buzen 1978): N* = X_max R_1.

    Below it a server is limited by what is offered, above it by what it can do. By Little's law R_1 = N_1 / X_1 at the
    lowest load measured. Raises `ValueError` without points.
    """
    if not points:
        raise ValueError("saturation needs at least 1 point")
    lowest = min(points, key=lambda point: point.concurrency)
    return lowest.concurrency * max(point.throughput for point in points) / lowest.throughput


def _scaled(values: list[float]) -> list[float]:
    """To the range 0…1; all 0 if they do not differ."""
    low, span = min(values), max(values) - min(values)
    return [(value - low) / span if span else 0.0 for value in values]


COLUMNS = ("out_tok_s", "ttft_p50_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p99_ms", "e2e_p50_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """`levels` of concurrency, each measured once in each of `rounds` with `per_level` requests per unit of it, and at
    least `requests`. Every round begins with the loop of one request at a time, whether `levels` name it or not.
    Lengths are in words and tokens, as in `BenchOptions`. Raises `ValueError`.
    """

    levels: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    rounds: int = 3
    per_level: int = 2
    requests: int = 16
    prompt_tokens: int = 128
    output_tokens: int = 64
    seed: int = 7
    timeout: float = 600.0

    def __post_init__(self) -> None:
        require_at_least_one(self, "rounds", "per_level", "requests", "prompt_tokens", "output_tokens")
        if len(set(self.levels)) < 3 or min(self.levels) < 1:
            raise ValueError(f"levels are {self.levels}; a curve needs 3 different ones of 1 and more")


async def measure_sweep(
    target: BenchTarget, options: SweepOptions, measurement: Measurement, progress: ProgressHook = lambda _: None
) -> SweepResults:
    """Measure what `measurement` lacks, row by row, and finish it. The levels of a round have the same prompts, as many
    as each needs, and share no cached prefix. Raises `CoreError`."""
    run = LoadRun(target, options.timeout)
    await run.warm_up(jobs_of(Prompts(options.seed, 0), 2, options.prompt_tokens, options.output_tokens))
    for turn in range(options.rounds):
        for level in (1, *(level for level in options.levels if level != 1)):
            if measurement.find(round=turn, concurrency=level) is None:
                measurement.add({"round": turn} | await _row(run, target, options, turn, level, progress))
    results = results_of(measurement.rows)
    measurement.finish(msgspec.to_builtins(results))
    return results


async def _row(
    run: LoadRun, target: BenchTarget, options: SweepOptions, turn: int, level: int, progress: ProgressHook
) -> dict[str, Any]:
    prompts = Prompts(options.seed + 1000 * (turn + 1), 0)
    count = max(options.requests, options.per_level * level)
    jobs = jobs_of(prompts, count, options.prompt_tokens, options.output_tokens)
    jobs = [replace(job, salt=f"round {turn}, {level} in flight") for job in jobs]
    return await load_row(run, Load({"concurrency": level}, jobs, level), target.api, progress)


def results_of(rows: list[Row]) -> SweepResults:
    """The curve of a sweep's rows; the knee is that of the medians of output tokens per second and of whole answers."""
    levels = sorted({row["concurrency"] for row in rows})
    points = []
    for level in levels:
        of_level = [row for row in rows if row["concurrency"] == level]
        figures = {name: spread([row[name] for row in of_level]) for name in COLUMNS}
        points.append(SweepPoint(level, figures, _gain(rows, level)))
    curve = []
    for point in points:
        speed, latency = point.figures["out_tok_s"], point.figures["e2e_p50_ms"]
        if speed and latency:
            curve.append(OperatingPoint(point.concurrency, speed.median, latency.median))
    return SweepResults(points, knee(curve).concurrency, saturation(curve))


def _gain(rows: list[Row], level: int) -> Spread | None:
    """Tokens per second of a level over those of the loop of one request in the same round; None of a single round."""
    alone = {row["round"]: row["out_tok_s"] for row in rows if row["concurrency"] == 1 and row["out_tok_s"]}
    pairs = [(row["out_tok_s"], alone.get(row["round"])) for row in rows if row["concurrency"] == level]
    gains = [speed / base for speed, base in pairs if speed and base]
    return geometric_interval(gains) if level != 1 and len(gains) > 1 else None


@click.command(cls=ManyNumbers)
@click.option("--model", help="Model of the catalogue.  [its first]")
@click.option("--levels", callback=by_words(int), metavar="N...", default="1 2 4 8 16 32 64 128 256", help="In flight.")
@click.option("--rounds", default=3, help="Times that every level is measured.")
@click.option("--per-level", default=2, help="Requests per unit of concurrency.")
@click.option("--requests", default=16, help="Requests of a level at least.")
@click.option("--prompt-tokens", default=128, help="Words per prompt, about one token each.")
@click.option("--output-tokens", default=64)
@click.option("--seed", default=7)
@click.option("--timeout", default=600.0, help="Seconds for one request.")
@kept_options
def sweep(**arguments: Any) -> None:
    """A closed loop at every level, in rounds that begin with one request at a time; room for all, and no drafts.

    Example: python -m benchmarks sweep --levels 1 8 64 --rounds 3 --out sweep.jsonl
    """

    show_measurement(arguments, SweepOptions, _run, sweep_table)


async def _run(settings: Any, model: str | None, options: SweepOptions, out: Path | None, keep: bool) -> SweepResults:
    served = core_spec(load_catalog(settings.catalog))
    spec = model_of(served, model)
    most, length = max(options.levels), options.prompt_tokens + options.output_tokens
    core, knobs = roomy(served, spec, settings.cache_path, sequences=most, tokens_each=length)
    knobs = msgspec.structs.replace(knobs, speculation="off")
    about = {"model": spec, "arena_bytes": core.arena_bytes, "options": options}
    measurement = Measurement.begin("sweep", about, out, keep=keep)
    async with core_target(core, spec, settings.cache_path, knobs) as target:
        return await measure_sweep(target, options, measurement, show_progress)
