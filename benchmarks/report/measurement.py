"""A measurement as a file of JSON lines, written row by row: one that was cut short goes on where it stopped."""

import gzip
import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from benchmarks.report.machine import describe_machine
from benchmarks.report.measured import Head, MeasurementError

log = logging.getLogger(__name__)
Row = dict[str, Any]
Results = TypeVar("Results")


class Measurement:
    """Rows under a head, and at last the results drawn from them.

    The file's first line is the head, each further line {"row": …}, the last {"results": …, "finished": …}. Without a
    `path` nothing is written.
    """

    def __init__(self, head: Head, path: Path | None = None) -> None:
        self.head = head
        self.rows: list[Row] = []
        self.results: Any = None
        self.finished: str | None = None
        self._path = path

    @classmethod
    def begin(
        cls, measurement: str, settings: dict[str, Any], path: Path | None = None, *, keep: bool = False
    ) -> "Measurement":
        """Go on with the unfinished measurement of the same kind, settings and machine in `path`, or start over.

        A finished one is replaced unless `keep` says that it stands; one of something else is replaced.
        """
        plain = msgspec.to_builtins(settings)
        head = Head(measurement=measurement, settings=plain, machine=describe_machine(), started=_now())
        if path is not None and path.exists():
            try:
                stored = cls.read(path)
            except MeasurementError as error:
                log.warning("%s; it is replaced", error)
            else:
                if stored._is_of(head) and (keep or stored.finished is None):
                    stored._path = path
                    if stored.finished is None:
                        stored._rewrite()
                    return stored
        begun = cls(head, path)
        begun._rewrite()
        return begun

    @classmethod
    def read(cls, path: Path) -> "Measurement":
        """The measurement in `path`; a last line that was cut off is left out. Raises `MeasurementError`, `OSError`."""
        lines = path.read_bytes().splitlines()
        try:
            stored = cls(msgspec.json.decode(lines[0] if lines else b"", type=Head))
        except msgspec.MsgspecError as error:
            raise MeasurementError(f"{path} does not begin like a measurement: {error}") from error
        for number, line in enumerate(lines[1:], 2):
            try:
                stored._take(msgspec.json.decode(line, type=dict[str, Any]))
            except msgspec.MsgspecError as error:
                if number == len(lines):
                    break
                raise MeasurementError(f"{path}, line {number}: {error}") from error
        return stored

    def find(self, **columns: Any) -> Row | None:
        """The row with these values, if it has been measured."""
        return next((row for row in self.rows if all(row.get(k) == v for k, v in columns.items())), None)

    def add(self, row: Row) -> None:
        """Keep a row, in the file at once."""
        self.rows.append(row)
        self._append({"row": row})

    def finish(self, results: Any) -> None:
        """Nothing more comes; `results` is what the rows say, as plain values. One that is finished stays so."""
        if self.finished is not None:
            return
        self.results, self.finished = results, _now()
        self._append({"results": results, "finished": self.finished})

    def _take(self, line: dict[str, Any]) -> None:
        if "row" in line:
            self.rows.append(line["row"])
        elif "results" in line:
            self.results, self.finished = line["results"], line.get("finished")

    def _is_of(self, head: Head) -> bool:
        mine, other = ({**msgspec.to_builtins(h), "started": ""} for h in (self.head, head))
        return msgspec.json.encode(mine) == msgspec.json.encode(other)

    def _rewrite(self) -> None:
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        lines = [msgspec.json.encode(self.head), *(msgspec.json.encode({"row": row}) for row in self.rows)]
        self._path.write_bytes(b"\n".join(lines) + b"\n")

    def _append(self, line: dict[str, Any]) -> None:
        if self._path is not None:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(line) + b"\n")


def kept_in(path: Path) -> Measurement | None:
    """The measurement in `path`; None if it begins with a row. Raises `MeasurementError` for a damaged one."""
    with path.open("rb") as lines:
        return Measurement.read(path) if b'"measurement"' in next(lines, b"") else None


def read_finished(folder: Path, name: str) -> Measurement | None:
    """The measurement NAME.jsonl of `folder`, if it is there and finished. Raises `MeasurementError`."""
    path = folder / f"{name}.jsonl"
    if not path.exists():
        return None
    measurement = Measurement.read(path)
    return None if measurement.finished is None else measurement


def read_results(folder: Path, name: str, kind: type[Results]) -> tuple[Head, Results] | None:
    """Head and results of the finished measurement NAME.jsonl in `folder`; None without it. Raises
    `MeasurementError`."""
    stored = read_finished(folder, name)
    try:
        return None if stored is None else (stored.head, msgspec.convert(stored.results, kind))
    except msgspec.MsgspecError as error:
        raise MeasurementError(f"{folder / name}.jsonl has other results: {error}") from error


def rows_of(path: Path) -> list[Row]:
    """The rows of a measurement or of plain JSON lines; none without the file. Raises `MeasurementError`."""
    if not path.is_file():
        return []
    if (whole := kept_in(path)) is not None:
        return whole.rows
    try:
        return [msgspec.json.decode(line, type=Row) for line in path.read_bytes().splitlines() if line.strip()]
    except msgspec.MsgspecError as error:
        raise MeasurementError(f"{path} does not hold rows as JSON lines: {error}") from error


def packed_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a file of JSON lines, gzipped or not, without its blank lines. Raises `OSError` and
    `msgspec.DecodeError`, a ValueError."""
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as lines:
        yield from (msgspec.json.decode(line, type=Row) for line in lines if line.strip())


def read_prompts(path: Path, most: int | None = None) -> list[str]:
    """The first `most` prompts (None: all) of a file of JSON lines, as `turns` or as `prompt`. Raises OSError,
    ValueError."""
    prompts: list[str] = []
    for row in islice(packed_rows(path), most):
        if not row.keys() & {"turns", "prompt"}:
            raise ValueError(f"{path} has a line without `prompt` and `turns`")
        prompts.append(row["turns"][0] if "turns" in row else row["prompt"])
    return prompts


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
