"""What a target did with its inputs, as a row of a table for a terminal or for docs/results/attacks.md."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

HEAD = ("target", "inputs", "slowest ms", "MiB", "findings", "remarks")
_WIDTHS = (44, 11, 12, 7, 0, 0)
_EXAMPLES = 5
_FILE = "reports.json"


class Report(msgspec.Struct):
    """`findings`: counts by kind. `slowest`, in seconds: CPU time of an input of a fuzz target; in a
    class of attacks how long an event loop stood still, the machine's own part deducted. `grown_bytes`: of memory, by
    one input of a fuzz target, by a whole class."""

    name: str
    inputs: int = 0
    slowest: float = 0.0
    grown_bytes: int = 0
    findings: dict[str, int] = msgspec.field(default_factory=Counter)
    examples: list[str] = msgspec.field(default_factory=list)
    remarks: str = ""

    def note(self, kind: str, what: str) -> None:
        """Count a finding, and keep the first few of each kind."""
        self.findings[kind] = self.findings.get(kind, 0) + 1
        if self.findings[kind] <= _EXAMPLES:
            self.examples.append(f"{kind}: {what}")

    def found(self, ignored: Sequence[str] = ()) -> int:
        """The number of findings, without those of the kinds `ignored`."""
        return sum(count for kind, count in self.findings.items() if kind not in ignored)

    @property
    def row(self) -> tuple[str, ...]:
        """Its cells."""
        return (
            self.name,
            f"{self.inputs:,}",
            f"{1e3 * self.slowest:.0f}" if self.slowest else "-",
            f"{self.grown_bytes / 2**20:.0f}",
            ", ".join(f"{count} {kind}" for kind, count in self.findings.items()) or "0",
            self.remarks,
        )


def total(name: str, reports: Sequence[Report]) -> Report:
    """Several as one; memory and time are those of the worst."""
    whole = Report(name)
    for report in reports:
        whole.inputs += report.inputs
        whole.slowest = max(whole.slowest, report.slowest)
        whole.grown_bytes = max(whole.grown_bytes, report.grown_bytes)
        whole.findings = Counter(whole.findings) + Counter(report.findings)
        whole.examples += report.examples
    return whole


def save(reports: Sequence[Report], folder: Path) -> None:
    """Write what a process has seen so far, which may end at any moment."""
    (folder / f"{_FILE}.new").write_bytes(msgspec.json.encode(reports))
    (folder / f"{_FILE}.new").replace(folder / _FILE)


def saved(folder: Path) -> list[Report]:
    """What the process of `folder` saved last; nothing without."""
    file = folder / _FILE
    return msgspec.json.decode(file.read_bytes(), type=list[Report]) if file.is_file() else []


def line(cells: Sequence[str]) -> str:
    """A row for a terminal."""
    return "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, _WIDTHS, strict=True)).rstrip()


def markdown(reports: Sequence[Report]) -> str:
    """The table of the documentation."""
    rows = [HEAD, ("---", *("---:",) * (len(HEAD) - 1)), *(report.row for report in [*reports, total("all", reports)])]
    return "\n".join(f"| {' | '.join(cells[:-1])} |" for cells in rows) + "\n"
