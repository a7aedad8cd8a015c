"""The latency-throughput curve: a closed loop at every concurrency, in rounds, and its knee (SPEC BS-11, TB-07)."""

from dataclasses import dataclass, replace
from typing import Any

import msgspec

from benchmarks.core.knee import OperatingPoint, knee, saturation
from benchmarks.core.load_rows import load_row
from benchmarks.report.measured import Spread, SweepPoint, SweepResults
from benchmarks.report.measurement import Measurement, Row
from benchmarks.report.rounds import geometric_interval, spread
from gateway.planning.load_test.run import BenchTarget, LoadRun, ProgressHook
from gateway.planning.load_test.workload import Load, Prompts, jobs_of

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
        for name in ("rounds", "per_level", "requests", "prompt_tokens", "output_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if len(set(self.levels)) < 3 or min(self.levels) < 1:
            raise ValueError(f"levels are {self.levels}; a curve needs 3 different ones of 1 and more")


async def sweep(
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
