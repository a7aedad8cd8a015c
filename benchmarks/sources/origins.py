"""Where each stored measurement is from: its machine, commit and day (SPEC TB-10).

Most files say so in their first line. Lists of plain rows cannot; `origins.json` next to them does, by the SHA-256 of
the file, so that what was measured again without a word of it shows as unknown instead of as what it replaced.
"""

import hashlib
import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import click
import msgspec

from benchmarks.report.machine import describe_machine
from benchmarks.requirements.evidence_runs import git
from benchmarks.sources import ages
from gateway.cli.options import FILE, FOLDER, table

RECORD = "origins.json"
UNKNOWN = "–"


class Origin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`commit` of the code that measured, or for `stored_by` the one that added the file to the repository, which is
    later; `day` in UTC. `sha256` of the file is empty where the file itself says all this."""

    machine: dict[str, Any] = {}
    commit: str = ""
    stored_by: bool = False
    day: str = ""
    sha256: str = ""

    @property
    def processor(self) -> str:
        """The number and kind of processors, or the card."""
        if "gpu" in self.machine:
            return f"one {self.machine['gpu']}"
        if "processor" not in self.machine:
            return "see file" if self.machine else UNKNOWN
        return f"{self.machine.get('cpus', '?')} CPUs of {self.machine['processor']}"

    @property
    def versions(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.machine.get("versions", {}).items()) or UNKNOWN

    @property
    def at(self) -> str:
        """The commit, and whether it is that of the measurement or only of the file."""
        return f"stored by {self.commit}" if self.stored_by else self.commit or UNKNOWN


def origin_of(path: Path) -> Origin:
    """Return what is known of the file: what it says itself, else what `origins.json` says of these bytes."""
    own = _own(path)
    kept = read_origins(path.parent).get(path.name)
    if own.commit or kept is None or kept.sha256 != _digest(path):
        return own
    return msgspec.structs.replace(kept, machine=own.machine or kept.machine, day=own.day or kept.day)


def in_words(path: Path) -> str:
    """Return file, machine, day and commit in one phrase, and whether the pages mark it as old."""
    origin = origin_of(path)
    parts = [path.name, origin.processor, origin.day, f"commit {origin.commit}" if not origin.stored_by else origin.at]
    parts += ["old"] * (path.name in ages.read_marks(path.parent))
    return ", ".join(part for part in parts if part and part not in ("commit ", UNKNOWN))


def read_origins(folder: Path) -> dict[str, Origin]:
    """Return the record by file name; empty without one. Raises `msgspec.ValidationError` for another file."""
    path = folder / RECORD
    return msgspec.json.decode(path.read_bytes(), type=dict[str, Origin]) if path.is_file() else {}


def record_measured(paths: list[Path]) -> None:
    """Record that the files were measured just now, by this checkout on this machine."""
    machine = describe_machine()
    commit = machine.pop("commit", "")
    today = datetime.now(UTC).date().isoformat()
    for path in paths:
        _record(path, Origin(machine=machine, commit=commit, day=today, sha256=_digest(path)))


def measurements_of(folder: Path) -> list[Path]:
    """Return the stored measurements of a folder by name: all but the records of others and of tests."""
    records = (RECORD, ages.RECORD, "checklist.json", "row-mutants.json")
    return [path for path in sorted(folder.glob("*.json*")) if path.name not in records]


def _record(path: Path, origin: Origin) -> None:
    kept = read_origins(path.parent) | {path.name: origin}
    written = msgspec.json.format(msgspec.json.encode(kept, order="sorted"), indent=1)
    (path.parent / RECORD).write_bytes(written + b"\n")


def _own(path: Path) -> Origin:
    """Return what the file says itself."""
    text = path.read_text(encoding="utf-8")
    head = json.loads(text.split("\n", 1)[0] if path.suffix == ".jsonl" else text)
    head = head if isinstance(head, dict) else {}
    machine = head.get("machine")
    machine = machine if isinstance(machine, dict) else {}
    commit = str(machine.get("commit", ""))
    return Origin(machine=machine, commit=commit, day=str(head.get("started", head.get("date", "")))[:10])


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@click.command()
@click.argument("files", nargs=-1, type=FILE)
@click.option("--folder", type=FOLDER, default=Path("docs/measurements"), help="Of measurements.")
@click.option("--mark", is_flag=True, help="Record which are old now, for the pages that show them.")
@click.option("--old", is_flag=True, help="Print those alone that are old.")
def origins(files: tuple[Path, ...], folder: Path, mark: bool, old: bool) -> None:
    """Print where the measurements of a folder are from, and how old they are.

    One is old where more than 300 commits changed the code that it measures since, or where its program is gone.

    FILES, if given, are first recorded as measured just now, by this checkout on this machine: lists of plain rows do
    not say it themselves.
    """

    record_measured(list(files))
    origin_by_path = {path: origin_of(path) for path in measurements_of(folder)}
    marks = {path.name: ages.mark_of(path, origin.commit, folder) for path, origin in origin_by_path.items()}
    if mark:
        ages.write_marks(folder, marks)
    rows = []
    for path, origin in origin_by_path.items():
        if old and not marks[path.name]:
            continue
        days = (datetime.now(UTC).date() - date.fromisoformat(origin.day)).days if origin.day else None
        since = git(folder, "rev-list", "--count", f"{origin.commit.rstrip('+')}..HEAD") if origin.commit else None
        age = [UNKNOWN if days is None else str(days), UNKNOWN if since is None else since]
        rows.append([path.name, origin.processor, origin.at, origin.day or UNKNOWN, *age, marks[path.name]])
    click.echo(table(["file", "machine", "commit", "day", "days ago", "commits ago", ""], rows))
