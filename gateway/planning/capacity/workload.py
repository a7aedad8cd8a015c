"""What a fleet is planned for: a rate of requests, their lengths, and their variation, stated or from a recorded trace
(when requests came and how long they were, from a CSV with a header or from JSON lines).
"""

import csv
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from statistics import fmean, pvariance
from typing import Any, Literal

import msgspec


class PlanError(ValueError):
    """No fleet can be planned from what was given: the message says what was given and what would do."""


TimeUnit = Literal["s", "ms"]

_TIME_COLUMNS = ("timestamp", "arrival", "arrived_at", "time", "at")
_PROMPT_COLUMNS = (
    "prompt_tokens", "context_tokens", "contexttokens", "input_length", "input_tokens", "prompt_len",
)  # fmt: skip
_OUTPUT_COLUMNS = (
    "output_tokens", "generated_tokens", "generatedtokens", "output_length", "completion_tokens", "output_len",
)  # fmt: skip
_SECONDS = {"s": 1.0, "ms": 1e-3}


class TraceError(ValueError):
    """A trace file cannot be replayed: the message names the file, the row and what is missing."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request: `at` in seconds after the trace's first."""

    at: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    """Hashes of its prompt's blocks, if recorded."""


def read_trace(path: Path, unit: TimeUnit = "s", limit: int = 0) -> list[Arrival]:
    """Requests in order of arrival, the first `limit` rows if that is not 0; answers have at least one token.

    Times are ISO dates or numbers of `unit`. Raises `TraceError`.
    """
    rows = _rows(path, limit)
    times = [_seconds(_column(row, _TIME_COLUMNS, path), _SECONDS[unit], path) for row in rows]
    start = min(times)
    arrivals = [
        Arrival(
            at=time - start,
            prompt_tokens=_count(_column(row, _PROMPT_COLUMNS, path), path),
            output_tokens=max(1, _count(_column(row, _OUTPUT_COLUMNS, path), path)),
            blocks=tuple(row.get("hash_ids") or ()),
        )
        for row, time in zip(rows, times, strict=True)
    ]
    return sorted(arrivals, key=lambda arrival: arrival.at)


def _rows(path: Path, limit: int) -> list[dict[str, Any]]:
    """Keys in lower case."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
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


SECONDS_PER_DAY = 86_400


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Requests per second and mean tokens. Raises `PlanError` for impossible values."""

    rate: float
    prompt_tokens: float
    output_tokens: float
    cached_share: float = 0.0
    """Share of a prompt found in the prefix cache."""
    prompt_cv: float = 0.0
    """Coefficient of variation of the prompts' lengths."""
    arrival_cv: float = 1.0
    """Coefficient of variation of the gaps; 1 for a Poisson stream."""

    def __post_init__(self) -> None:
        if not (self.rate > 0 and math.isfinite(self.rate)):
            raise PlanError(f"the rate is {self.rate}; give requests per second above 0")
        if self.prompt_tokens < 1 or self.output_tokens < 1:
            raise PlanError(
                f"{self.prompt_tokens} tokens in and {self.output_tokens} out: a request has at least one of each"
            )
        if not 0 <= self.cached_share < 1:
            raise PlanError(f"the cached share is {self.cached_share}; it is at least 0 and below 1")

    @property
    def context_tokens(self) -> float:
        """Tokens that a decode step attends to on average."""
        return self.prompt_tokens + self.output_tokens / 2

    def at(self, rate: float) -> "Workload":
        """The same requests at another rate."""
        return msgspec.structs.replace(self, rate=rate)


def per_second(requests_per_day: float) -> float:
    """Convert requests per day to a mean rate: 50 million a day are 579 a second."""
    return requests_per_day / SECONDS_PER_DAY


def trace_workload(arrivals: Sequence[Arrival], quantile: float = 0.99, window_s: float = 10.0) -> Workload:
    """Return a trace's lengths, at the rate that its windows of `window_s` exceed in only 1 - `quantile` of the time.

    Windows are assumed Poisson: bursts are in the rate. Raises `PlanError` for fewer than two requests.
    """
    if len(arrivals) < 2:
        raise PlanError(f"a trace of {len(arrivals)} requests has no rate; give a trace of at least two")
    prompts = [arrival.prompt_tokens for arrival in arrivals]
    counts = sorted(window_counts(arrivals, window_s))
    busy = counts[min(len(counts) - 1, math.ceil(quantile * len(counts)) - 1)]
    mean = fmean(prompts)
    return Workload(
        rate=max(busy, 1) / window_s,
        prompt_tokens=max(mean, 1.0),
        output_tokens=fmean(arrival.output_tokens for arrival in arrivals),
        prompt_cv=math.sqrt(pvariance(prompts)) / max(mean, 1.0),
    )


def window_counts(arrivals: Sequence[Arrival], window_s: float) -> list[int]:
    """Count requests in each window from the trace's start to its last request."""
    counts = [0] * (int(arrivals[-1].at // window_s) + 1)
    for arrival in arrivals:
        counts[int(arrival.at // window_s)] += 1
    return counts
