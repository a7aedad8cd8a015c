"""Runs tests that requirements name, and keeps what became of each: counts, commit, day."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

import msgspec

RECORD = "checklist.json"
# Kernels run in Triton's interpreter, which is chosen by the environment of a process of their own.
_INTERPRETED = "tests/inference_core/triton_kernels/"
_RUN_SECONDS = 7200
_TEST_SECONDS = 1800


class EvidenceRunError(Exception):
    """The repository is not in a state that a result could be recorded for."""


class EvidenceRun(msgspec.Struct, frozen=True, kw_only=True):
    """Cases of one test by their end, at a commit, on a day (UTC). A test without a case failed."""

    passed: int
    failed: int
    skipped: int
    commit: str
    day: str

    @property
    def good(self) -> bool:
        """True if a case passed and none failed: a test of which every case was skipped shows nothing."""
        return self.passed > 0 and self.failed == 0

    @property
    def summary(self) -> str:
        """The counts that are not zero, the commit and the day."""
        counts = {"passed": self.passed, "failed": self.failed, "skipped": self.skipped}
        return f"{', '.join(f'{n} {end}' for end, n in counts.items() if n)} at {self.commit}, {self.day}"


def read_record(measurements: Path) -> dict[str, EvidenceRun]:
    """Return the runs by test; empty without a record. Raises `msgspec.ValidationError` for another file."""
    path = measurements / RECORD
    return msgspec.json.decode(path.read_bytes(), type=dict[str, EvidenceRun]) if path.is_file() else {}


def write_record(measurements: Path, runs: dict[str, EvidenceRun]) -> None:
    """Save the runs in addition to the recorded ones, sorted by test."""
    kept = read_record(measurements) | runs
    (measurements / RECORD).write_bytes(
        msgspec.json.format(msgspec.json.encode(kept, order="sorted"), indent=1) + b"\n"
    )


def run_tests(repository: Path, tests: list[str]) -> Iterator[tuple[str, EvidenceRun]]:
    """Run `tests` from a checkout, a pytest process per folder below tests/; yield each with its run.

    Raises EvidenceRunError where no commit holds the code that would run.
    """
    commit, day = commit_of(repository), datetime.now(UTC).date().isoformat()
    for group in _groups(tests):
        cases = _cases(repository, group)
        for test in group:
            found = cases.get(test, ["failed"])
            counts = {end: found.count(end) for end in ("passed", "failed", "skipped")}
            yield test, EvidenceRun(**counts, commit=commit, day=day)


def commit_of(repository: Path) -> str:
    """Return the commit that is checked out. Raises EvidenceRunError without one, or if tracked files differ from it;
    measurements, among them the record, may."""
    commit = git(repository, "rev-parse", "--short=12", "HEAD")
    if commit is None:
        raise EvidenceRunError(f"{repository} is no git checkout with a commit; results are recorded with theirs")
    changed = git(repository, "status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs/measurements")
    if changed:
        raise EvidenceRunError(
            f"tracked files differ from {commit}: {', '.join(line[2:].strip() for line in changed.splitlines()[:3])}; "
            "commit or restore them, so that the recorded commit is what ran"
        )
    return commit


def git(repository: Path, *arguments: str) -> str | None:
    """What a command of git prints in `repository`; None if it fails, as it does outside of a checkout."""
    done = subprocess.run(  # noqa: S603 - fixed arguments
        ["git", *arguments],  # noqa: S607
        cwd=repository, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout.strip() if done.returncode == 0 else None


def _groups(tests: list[str]) -> list[list[str]]:
    groups: dict[str, list[str]] = {}
    for test in dict.fromkeys(tests):
        folder = _INTERPRETED if test.startswith(_INTERPRETED) else "/".join(test.split("/")[:3])
        groups.setdefault(folder, []).append(test)
    return list(groups.values())


def _cases(repository: Path, tests: list[str]) -> dict[str, list[str]]:
    """Run `tests` in one process; return the ends of their cases by test, without those that never began."""
    interpreted = {"TRITON_INTERPRET": "1"} if tests[0].startswith(_INTERPRETED) else {}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        options = ["-p", "no:cacheprovider", f"--junitxml={report}", "-o", f"timeout={_TEST_SECONDS}"]
        try:
            subprocess.run(  # noqa: S603 - our own tests
                [sys.executable, "-m", "pytest", *options, *tests],
                cwd=repository, env=os.environ | interpreted, capture_output=True, timeout=_RUN_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return {}
        if not report.is_file():
            return {}
        return _ends(report, tests)


def _ends(report: Path, tests: list[str]) -> dict[str, list[str]]:
    ends: dict[str, list[str]] = {}
    for case in ElementTree.parse(report).iter("testcase"):  # noqa: S314 - written by our own pytest
        place, name = case.get("classname", ""), case.get("name", "").partition("[")[0]
        for test in tests:
            path, _, named = test.partition("::")
            module = path.removesuffix(".py").replace("/", ".")
            if (place, name) == (module, named) or place == f"{module}.{named}":
                ends.setdefault(test, []).append(_end(case))
    return ends


def _end(case: ElementTree.Element) -> str:
    kinds = {child.tag for child in case}
    return "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
