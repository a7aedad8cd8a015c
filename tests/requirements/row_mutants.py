"""Mutants of the requirements: for each row of docs/results/requirements.md an edit of the code that takes its claim
away, which the tests that the row names have to notice.

`mutants.toml` has them, and for a row that can have none the reason.
"""

import fcntl
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from benchmarks.requirements.requirements import Requirement, read_requirements

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "results" / "requirements.md"
MUTANTS = Path(__file__).with_name("mutants.toml")
RECORD = ROOT / "docs" / "measurements" / "row-mutants.json"

# "error": the tests did not run, as where they cannot be collected. "skipped": none of them ran to its end.
Verdict = Literal["killed", "lives", "error", "skipped"]


class Edit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where `old` stands, once, in `file`, it becomes `new`."""

    file: str
    old: str = msgspec.field(name="from")
    new: str = msgspec.field(name="to")

    def applied(self, text: str) -> str:
        """Return `text` with the edit. Raises ValueError unless `old` stands in it exactly once."""
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"{self.file} has {self.old!r} {count} times, not once")
        return text.replace(self.old, self.new)


class RowMutant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`row`: the ID of a requirement; `claim`: what of it the edits take away, in words."""

    row: str
    claim: str
    edits: tuple[Edit, ...]

    @property
    def key(self) -> str:
        """Name of the mutant, distinct among all."""
        return f"{self.row} {self.claim}"


class Exempt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row that has no mutant, and why."""

    row: str
    why: str


class RowMutants(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file of mutants."""

    mutants: tuple[RowMutant, ...] = ()
    exempt: tuple[Exempt, ...] = ()


class RecordedVerdict(msgspec.Struct, frozen=True):
    """What became of a mutant. `digest`: of all files that decided it; `by`: the test that failed, "" without one."""

    verdict: Verdict
    by: str
    digest: str
    commit: str
    day: str


def read_mutants(path: Path = MUTANTS) -> RowMutants:
    """Return what the file says. Raises `msgspec.ValidationError` for another form."""
    return msgspec.toml.decode(path.read_bytes(), type=RowMutants)


def read_record(path: Path = RECORD) -> dict[str, RecordedVerdict]:
    """Return the verdicts by the mutants' keys; empty without a record."""
    return msgspec.json.decode(path.read_bytes(), type=dict[str, RecordedVerdict]) if path.is_file() else {}


def add_to_record(verdicts: Mapping[str, RecordedVerdict], path: Path = RECORD) -> None:
    """Save `verdicts` with those that are recorded, without those of mutants that are no more.

    Several runs may save at once.
    """
    with MUTANTS.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        keys = {mutant.key for mutant in read_mutants().mutants}
        kept = {key: verdict for key, verdict in {**read_record(path), **verdicts}.items() if key in keys}
        path.write_bytes(msgspec.json.format(msgspec.json.encode(kept, order="sorted"), indent=1) + b"\n")


def requirements_by_key() -> dict[str, Requirement]:
    """Return the rows of the page by their IDs."""
    return {row.key: row for row in read_requirements(PAGE)}


def digest_of(mutant: RowMutant, row: Requirement, root: Path = ROOT) -> str:
    """Return a digest of the mutant, of the files that it edits, and of the test files that the row names."""
    files = {*(edit.file for edit in mutant.edits), *(test.partition("::")[0] for test in row.tests)}
    digest = hashlib.sha256(msgspec.json.encode((mutant, row.tests)))
    for file in sorted(files):
        digest.update((root / file).read_bytes())
    return digest.hexdigest()[:16]
