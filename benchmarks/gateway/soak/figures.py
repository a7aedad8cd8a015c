"""What a soak looks at, minute by minute, and what the looks say: the first third against the last."""

import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.gateway.process_figures import open_files, proportional_bytes, resident_bytes, threads
from benchmarks.report.markdown import markdown, number


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """At a moment: the server's process and its children, and the bytes of the files in its data folder."""

    resident: int
    proportional: int
    open_files: int
    threads: int
    data: int


class Minute(msgspec.Struct, frozen=True, kw_only=True):
    """Medians of a minute's looks at memory, and the largest resident set; the fewest open files and threads, to which
    requests in flight add theirs. `minute`: its end since the start; `requests`: all up to then. `added_…`: the time of
    a small whole answer, less that of the upstream alone, in milliseconds; None without such an answer."""

    minute: float
    requests: int
    resident: float
    resident_most: int
    proportional: float
    open_files: int
    threads: int
    data: int
    added_p50_ms: float | None
    added_p99_ms: float | None


class Change(msgspec.Struct, frozen=True):
    """Means over the first and the last third of the minutes after the warm-up; `growth`: of the second over the
    first, as a share."""

    first: float
    last: float

    @property
    def growth(self) -> float:
        """0.05 is 5% more."""
        return self.last / self.first - 1 if self.first else 0.0


class SoakResults(msgspec.Struct, frozen=True, kw_only=True):
    """`before` and `after`: without requests, before the first and after the last one. `data_per_request`: bytes that
    the data folder grew by after the warm-up. `kinds`: what was drawn; `failures`: wrong answers, by kind."""

    minutes: float
    warm: float
    requests: int
    changes: dict[str, Change]
    data_per_request: float
    kinds: dict[str, int]
    failures: dict[str, int]
    before: Look
    after: Look

    def not_flat(self, most: float) -> dict[str, float]:
        """The growth of memory, files and threads where it is above the share `most`."""
        bounded = ("resident", "proportional", "open_files", "threads")
        return {name: self.changes[name].growth for name in bounded if self.changes[name].growth > most}


FIGURES = (
    "resident", "resident_most", "proportional", "open_files", "threads", "added_p50_ms", "added_p99_ms",
)  # fmt: skip


def look(pid: int, data: Path) -> Look:
    """Look now. Raises `OSError` where the process is gone."""
    return Look(
        resident=resident_bytes(pid),
        proportional=proportional_bytes(pid),
        open_files=open_files(pid),
        threads=threads(pid),
        data=sum(_size(path) for path in data.rglob("*")),
    )


def _size(path: Path) -> int:
    """Bytes of a file; 0 of a folder, and of a journal's file that was just deleted."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except FileNotFoundError:
        return 0


def minute_of(looks: Sequence[Look], minute: float, requests: int, seconds: dict[str, list[float]]) -> Minute:
    """One minute, from its looks and the sorted times of its small answers."""
    return Minute(
        minute=round(minute, 3),
        requests=requests,
        resident=statistics.median(sample.resident for sample in looks),
        resident_most=max(sample.resident for sample in looks),
        proportional=statistics.median(sample.proportional for sample in looks),
        open_files=min(sample.open_files for sample in looks),
        threads=min(sample.threads for sample in looks),
        data=looks[-1].data,
        added_p50_ms=_added_ms(seconds, 0.5),
        added_p99_ms=_added_ms(seconds, 0.99),
    )


def _added_ms(seconds: dict[str, list[float]], q: float) -> float | None:
    through, alone = seconds["whole"], seconds["upstream alone"]
    if not through or not alone:
        return None
    through_q, alone_q = (times[int(q * (len(times) - 1))] for times in (through, alone))
    return round((through_q - alone_q) * 1e3, 3)


def changes_of(minutes: Sequence[Minute]) -> dict[str, Change]:
    """The change of each of `FIGURES` from the first third of these minutes to the last; a single one is both."""
    third = max(len(minutes) // 3, 1)
    return {name: Change(_mean(minutes[:third], name), _mean(minutes[-third:], name)) for name in FIGURES}


def _mean(minutes: Sequence[Minute], name: str) -> float:
    values = [value for minute in minutes if (value := getattr(minute, name)) is not None]
    return statistics.fmean(values) if values else 0.0


_MB = 1e6
# Figures, their titles, and what one of the unit is.
_ROWS = {
    "resident": ("resident MB", _MB),
    "resident_most": ("most within a minute, MB", _MB),
    "proportional": ("proportional (PSS) MB", _MB),
    "open_files": ("fewest open files within a minute", 1.0),
    "threads": ("fewest threads", 1.0),
    "added_p50_ms": ("added p50 ms", 1.0),
    "added_p99_ms": ("added p99 ms", 1.0),
}


def soak_table(results: SoakResults) -> str:
    """The first third after the warm-up against the last; then requests, failures, files and bytes of data."""
    rows = [
        [title, number(change.first / unit), number(change.last / unit), f"{change.growth:+.1%}"]
        for name, (title, unit) in _ROWS.items()
        for change in [results.changes[name]]
    ]
    table = markdown(
        [f"minutes {results.warm:g} to {results.minutes:.3g}", "first third", "last third", "growth"], rows
    )
    before, after = results.before, results.after
    # Why is in the file.
    wrong: Counter[str] = Counter()
    for what, count in results.failures.items():
        wrong[what.partition(":")[0]] += count
    failed = ", ".join(f"{kind} {count:,}" for kind, count in wrong.items())
    drawn = ", ".join(f"{kind} {count:,}" for kind, count in results.kinds.items())
    return (
        f"{table}\n\n{results.requests:,} requests; wrong answers: {failed or 'none'}. Drawn: {drawn}.\n\nWithout "
        f"requests, before and after: {number(before.resident / _MB)} and {number(after.resident / _MB)} MB resident, "
        f"{before.open_files} and {after.open_files} open files, {before.threads} and {after.threads} threads. The "
        f"data folder grew by {results.data_per_request:,.0f} bytes per request."
    )
