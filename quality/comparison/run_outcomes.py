"""Rows (task, model, resolved, usd) of any of the usual forms, as one table of tasks and models."""

import csv
import gzip
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from quality.comparison.joint_runs import RunOutcomes

# The names that collections use for each column, in the order of columns without names.
COLUMNS = {
    "task": ("task", "task_id", "instance_id", "instance", "problem", "id"),
    "model": ("model", "model_name", "model_id", "agent", "system", "name"),
    "resolved": ("resolved", "reward", "success", "passed", "correct", "solved", "score"),
    "usd": ("usd", "cost_usd", "cost", "dollars", "instance_cost", "total_cost", "price"),
}
_TRUE, _FALSE = {"true", "yes", "y", "t", "resolved", "passed"}, {"false", "no", "n", "f", "unresolved", "failed"}
# A model with outcomes of a smaller share of the tasks is left out.
LEAST_COVERED = 0.5


def read_outcomes(file: Path) -> tuple[RunOutcomes, list[str]]:
    """Return the outcomes, and in a sentence each what was left out or is incomplete.

    FILE is CSV (with names or in the order of `COLUMNS`), JSON lines or one JSON list of objects or lists, gzipped or
    not. Several runs of a model on a task are averaged. Unknown dollars of a run are the model's mean. What a model did
    not run is NaN. Raises `ValueError` for a file without two models and two tasks, and for a row that cannot be read,
    with its number.
    """
    runs: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    skipped = 0
    for number, row in enumerate(_rows(file), 1):
        try:
            resolved = _number(row.get("resolved"))
            usd = _number(row.get("usd"))
        except ValueError as error:
            raise ValueError(f"{file}, row {number}: {error}") from error
        if row.get("task") in (None, "") or row.get("model") in (None, "") or math.isnan(resolved):
            skipped += 1
            continue
        if not 0 <= resolved <= 1 or usd < 0:
            raise ValueError(
                f"{file}, row {number}: resolved is {resolved:g} and usd is {usd:g}; allowed: 0 to 1, and 0 on"
            )
        runs[str(row["task"]), str(row["model"])].append((resolved, usd))
    said = [f"{skipped} rows without a task, a model or an outcome"] if skipped else []
    return _table(runs, said)


def _table(runs: dict[tuple[str, str], list[tuple[float, float]]], said: list[str]) -> tuple[RunOutcomes, list[str]]:
    tasks, models = (list(dict.fromkeys(names)) for names in (zip(*runs, strict=True) if runs else ((), ())))
    resolved, usd = np.full((2, len(tasks), len(models)), np.nan)
    row, column = {task: i for i, task in enumerate(tasks)}, {model: j for j, model in enumerate(models)}
    for (task, model), ones in runs.items():
        costs = [paid for _, paid in ones if not math.isnan(paid)]
        resolved[row[task], column[model]] = np.mean([outcome for outcome, _ in ones])
        usd[row[task], column[model]] = np.mean(costs) if costs else np.nan
    kept = []
    for j, model in enumerate(models):
        ran = np.isfinite(resolved[:, j])
        if np.isnan(usd[:, j]).all():
            said.append(f"{model}: no dollars")
        elif ran.mean() < LEAST_COVERED:
            said.append(f"{model}: outcomes of {ran.mean():.0%} of the tasks")
        else:
            usd[:, j] = np.where(ran & np.isnan(usd[:, j]), np.nanmean(usd[:, j]), usd[:, j])
            kept.append(j)
            if not ran.all():
                said.append(f"{model}: ran {int(ran.sum())} of {len(tasks)} tasks, and is compared on these")
    if len(kept) < 2 or len(tasks) < 2:
        raise ValueError(f"{len(kept)} models with {len(tasks)} tasks; two of each are needed")
    return RunOutcomes([models[j] for j in kept], resolved[:, kept], usd[:, kept]), said


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    data = file.read_bytes()
    text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8-sig")
    lines = [line for line in text.splitlines() if line.strip()]
    first = lines[0].lstrip() if lines else ""
    if first.startswith("["):
        try:
            read = json.loads(text)
        except ValueError:
            read = [json.loads(line) for line in lines]
        return (_named(row) for row in (read if isinstance(read[0], list | dict) else [read]))
    if first.startswith("{"):
        return (_named(json.loads(line)) for line in lines)
    delimiter = max("\t;,", key=first.count)
    cells = list(csv.reader(lines, delimiter=delimiter))
    header = [cell.strip().lower() for cell in cells[0]] if cells else []
    if sum(any(name in names for name in header) for names in COLUMNS.values()) >= 3:
        return (_named(dict(zip(header, row, strict=False))) for row in cells[1:])
    return (_named(row) for row in cells)


def _named(row: dict[str, Any] | Sequence[Any]) -> dict[str, Any]:
    """The columns of one row by our names."""
    if not isinstance(row, dict):
        return dict(zip(COLUMNS, row, strict=False))
    by_name = {str(name).strip().lower(): value for name, value in row.items()}
    return {
        column: next((by_name[name] for name in names if by_name.get(name) is not None), None)
        for column, names in COLUMNS.items()
    }


def _number(value: Any) -> float:
    """A number, a truth value or an amount of dollars; NaN for nothing."""
    text = str(value).strip().lower().removeprefix("$")
    if value is None or text in ("", "nan", "null", "none", "na", "n/a"):
        return math.nan
    if text in _TRUE | _FALSE:
        return float(text in _TRUE)
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{value!r} is no number") from None
