"""Recorded traces: when requests came and how long they were, from a CSV with a header or from JSON lines."""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, Literal

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
    """One request: `at` in seconds after the trace's first; `blocks`: hashes of its prompt's blocks, if recorded."""

    at: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


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
