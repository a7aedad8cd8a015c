"""Runs tests that requirements name, and keeps what became of each: counts, commit, day."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, date, datetime
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
        """The counts that are not zero, the commit, the day and how long ago it was."""
        counts = {"passed": self.passed, "failed": self.failed, "skipped": self.skipped}
        days = (datetime.now(UTC).date() - date.fromisoformat(self.day)).days
        age = f"{days} day{'' if days == 1 else 's'} ago"
        return f"{', '.join(f'{n} {end}' for end, n in counts.items() if n)} at {self.commit}, {self.day} ({age})"


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
            yield test, _run(cases.get(test, {"": "failed"}), commit, day)


def reported_runs(repository: Path, folder: Path, tests: list[str]) -> dict[str, EvidenceRun]:
    """Return the runs of those of `tests` that JUnit reports in `folder` have cases of, at the commit that is checked
    out. A case in several reports ended as the newest says. Raises EvidenceRunError as `run_tests` does."""
    commit, ends_by_test = commit_of(repository), dict[str, dict[str, str]]()
    reports = sorted(folder.glob("*.xml"), key=lambda path: path.stat().st_mtime_ns)
    for report in reports:
        for test, cases in _ends(report, tests).items():
            ends_by_test.setdefault(test, {}).update(cases)
    newest = max((path.stat().st_mtime for path in reports), default=0.0)
    day = datetime.fromtimestamp(newest, UTC).date().isoformat()
    return {test: _run(cases, commit, day) for test, cases in ends_by_test.items()}


def _run(cases: dict[str, str], commit: str, day: str) -> EvidenceRun:
    """Count cases by their end."""
    ends = list(cases.values())
    counts = {end: ends.count(end) for end in ("passed", "failed", "skipped")}
    return EvidenceRun(**counts, commit=commit, day=day)


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


def _cases(repository: Path, tests: list[str]) -> dict[str, dict[str, str]]:
    """Run `tests` in one process; return the ends of their cases by test and case, without those that never began."""
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


def _ends(report: Path, tests: list[str]) -> dict[str, dict[str, str]]:
    """Return the ends of the cases of `tests` in a report, by test and case."""
    # By what a report calls the place of a case, and its name without parameters; None: any case of a class.
    by_case: dict[tuple[str, str | None], list[str]] = {}
    for test in tests:
        path, _, named = test.partition("::")
        module = path.removesuffix(".py").replace("/", ".")
        for key in ((module, named), (f"{module}.{named}", None)):
            by_case.setdefault(key, []).append(test)
    ends: dict[str, dict[str, str]] = {}
    for case in ElementTree.parse(report).iter("testcase"):  # noqa: S314 - written by our own pytest
        classname, name = case.get("classname", ""), case.get("name", "")
        for test in [*by_case.get((classname, name.partition("[")[0]), []), *by_case.get((classname, None), [])]:
            ends.setdefault(test, {})[f"{classname}::{name}"] = _end(case)
    return ends


def _end(case: ElementTree.Element) -> str:
    kinds = {child.tag for child in case}
    return "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
