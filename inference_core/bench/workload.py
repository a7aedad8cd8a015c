"""What a benchmark sends and when: seeded prompts, closed loops, Poisson arrivals and recorded traces."""

import csv
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from inference_core.bench.options import BenchOptions

# These words in this order, with the draws below, make the prompts that the load generators of other servers
# send for the same seed, so that rows can be set side by side.
_WORD_LIST = (
    "time year people way day man thing woman life child world school state family student group country problem "
    "hand part place case week company system program question work government number night point home water room "
    "mother area money story fact month lot right study book eye job word business issue side kind head house "
    "service friend father power hour game line end member law car city community name president team minute idea "
    "body information back parent face others level office door health person art war history party result change "
    "morning reason research girl guy moment air teacher force education"
)
WORDS = _WORD_LIST.split()

_TIME_COLUMNS = ("timestamp", "arrival", "arrived_at", "time", "at")
_PROMPT_COLUMNS = ("prompt_tokens", "contexttokens", "input_length", "input_tokens", "prompt_len")
_OUTPUT_COLUMNS = ("output_tokens", "generatedtokens", "output_length", "completion_tokens", "output_len")
_SECONDS = {"s": 1.0, "ms": 1e-3}


class TraceError(ValueError):
    """A trace file cannot be replayed: the message names the file, the row and what is missing."""


@dataclass(frozen=True, slots=True)
class Job:
    """One request; `due` is in seconds after the load began, None for a closed loop.

    `limit`: the longest answer that its sender would have asked for, not knowing how long it turns out.
    """

    prompt: str
    output_tokens: int
    due: float | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """One row to measure: its first columns, its jobs, and how many may be in flight (None: as they fall due)."""

    columns: dict[str, Any]
    jobs: list[Job]
    concurrency: int | None = None


class Prompts:
    """Seeded prompts, distinct from each other but for `shared_prefix` words in front."""

    def __init__(self, seed: int, shared_prefix: int) -> None:
        self._random = random.Random(seed)
        self._prefix = " ".join(random.Random(1).choices(WORDS, k=shared_prefix))

    def draw(self, words: int) -> str:
        text = " ".join(self._random.choices(WORDS, k=max(1, words)))
        return f"{self._prefix} {text}" if self._prefix else text


def warmup_jobs(options: BenchOptions, prompts: Prompts) -> list[Job]:
    return jobs_of(prompts, options.warmup, options.prompt_tokens, options.output_tokens)


def jobs_of(prompts: Prompts, count: int, prompt_tokens: int, output_tokens: int) -> list[Job]:
    """`count` jobs of one size for a closed loop."""
    return [Job(prompts.draw(prompt_tokens), output_tokens) for _ in range(count)]


def loads(options: BenchOptions, prompts: Prompts) -> Iterator[Load]:
    """The loads of `options`, one row each. Raises `TraceError`."""
    if options.trace is not None:
        columns = {"trace": options.trace.name, "speed": options.trace_speed}
        yield Load(columns, list(_trace_jobs(options.trace, options, prompts)))
        return
    for rate in options.rate:
        yield Load({"rate": rate}, _poisson_jobs(options, prompts, rate))
    for concurrency in () if options.rate else options.concurrency:
        count = max(options.requests, concurrency * options.rounds)
        jobs = jobs_of(prompts, count, options.prompt_tokens, options.output_tokens)
        yield Load({"concurrency": concurrency}, jobs, concurrency)


def _poisson_jobs(options: BenchOptions, prompts: Prompts, rate: float) -> list[Job]:
    """Arrivals with exponential gaps of mean 1/rate, the first at once."""
    gaps = random.Random(f"{options.seed} {rate}")
    count = options.requests or max(1, round(rate * options.duration))
    due, jobs = 0.0, []
    for job in jobs_of(prompts, count, options.prompt_tokens, options.output_tokens):
        jobs.append(Job(job.prompt, job.output_tokens, due))
        due += gaps.expovariate(rate)
    return jobs


def _trace_jobs(path: Path, options: BenchOptions, prompts: Prompts) -> list[Job]:
    rows = _read_trace(path, options.requests)
    times = [_seconds(_column(row, _TIME_COLUMNS, path), _SECONDS[options.trace_unit], path) for row in rows]
    jobs = []
    for row, time in zip(rows, times, strict=True):
        words = _count(_column(row, _PROMPT_COLUMNS, path), path)
        words = min(words, options.max_prompt) if options.max_prompt else words
        output = max(1, _count(_column(row, _OUTPUT_COLUMNS, path), path))
        jobs.append(Job(prompts.draw(words), output, (time - min(times)) / options.trace_speed))
    return sorted(jobs, key=lambda job: job.due or 0.0)


def _read_trace(path: Path, limit: int) -> list[dict[str, Any]]:
    """Rows of a CSV with a header or of JSON lines, keys in lower case; the first `limit` if that is not 0."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines: Iterator[dict[str, Any]] = (
                (json.loads(line) for line in file if line.strip())
                if path.suffix == ".jsonl"
                else iter(csv.DictReader(file))
            )
            rows = [{key.strip().lower(): row[key] for key in row} for row in islice(lines, limit or None)]
    except (OSError, UnicodeError, ValueError, AttributeError) as error:
        raise TraceError(
            f"{path} cannot be read as a trace: {error}; give a CSV with a header, or JSON lines"
        ) from error
    if not rows:
        raise TraceError(f"{path} has no rows")
    return rows


def _column(row: dict[str, Any], names: tuple[str, ...], path: Path) -> Any:
    for name in names:
        if row.get(name) is not None:
            return row[name]
    raise TraceError(f"{path} has none of the columns {', '.join(names)}; it has {', '.join(row)}")


def _seconds(value: Any, unit: float, path: Path) -> float:
    try:
        return float(value) * unit
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(value).timestamp()
    except ValueError as error:
        raise TraceError(f"{path}: {value!r} is neither a number nor an ISO date") from error


def _count(value: Any, path: Path) -> int:
    try:
        return int(float(value))
    except (TypeError, ValueError) as error:
        raise TraceError(f"{path}: {value!r} is not a number of tokens") from error
