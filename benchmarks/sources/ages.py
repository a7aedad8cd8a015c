"""Which stored measurements are old: the code that they measure has changed much since, or their program is gone.

Ages are counted in commits, and change with each: `ages.json` holds those of the day on which the pages were made, and
pages show these. A figure on a card is marked like any other, and never removed for its age.
"""

from importlib.resources import files
from pathlib import Path

import msgspec

from benchmarks.requirements.evidence_runs import git

RECORD = "ages.json"
MOST_COMMITS = 300
"""Commits in the code that a figure measures, after which it is marked as old."""


class MeasuredCode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a measurement is of."""

    code: tuple[str, ...] = ()
    """Folders and files whose changes make it old; none of rows that were asked or written."""
    command: str | None = None
    """The command of `python -m benchmarks` that measures it; None: there is none any more."""


MEASURED = msgspec.toml.decode(
    (files("benchmarks.sources") / "measured_code.toml").read_bytes(), type=dict[str, MeasuredCode]
)


def measured_code(path: Path) -> MeasuredCode:
    """Return what a file of measurements is of; NAME-KIND.jsonl is of what NAME.jsonl is of. Raises KeyError."""
    name = path.stem
    while name not in MEASURED and "-" in name:
        name = name.rpartition("-")[0]
    return MEASURED[name]


def commits_since(commit: str, code: tuple[str, ...], repository: Path) -> int | None:
    """Return how many commits changed `code` since `commit`; None where that is not in the history here."""
    counted = (
        git(repository, "rev-list", "--count", f"{commit.rstrip('+')}..HEAD", "--", *(f":/{path}" for path in code))
        if commit
        else None
    )
    return None if counted is None else int(counted)


def mark_of(path: Path, commit: str, repository: Path) -> str:
    """Return why a measurement at `commit` is old, in a sentence; "" if it is not."""
    measured = measured_code(path)
    if not measured.code:
        return ""
    if measured.command is None:
        return "Old: the program that measured this is gone."
    count = commits_since(commit, measured.code, repository)
    if count is None:
        return "Old: the commit that was measured is not known."
    if count <= MOST_COMMITS:
        return ""
    return f"Old: {count // 100 * 100:,} commits or more changed {', '.join(measured.code)} since this was measured."


def read_marks(folder: Path) -> dict[str, str]:
    """Return the recorded marks by file name; empty without a record."""
    path = folder / RECORD
    return msgspec.json.decode(path.read_bytes(), type=dict[str, str]) if path.is_file() else {}


def write_marks(folder: Path, marks: dict[str, str]) -> None:
    """Record the marks that are not empty."""
    kept = {name: mark for name, mark in sorted(marks.items()) if mark}
    (folder / RECORD).write_bytes(msgspec.json.format(msgspec.json.encode(kept), indent=1) + b"\n")
