"""Named tests are run, counted by their end, and recorded with a commit that holds what ran."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from benchmarks.requirements.evidence_runs import (
    EvidenceRun,
    EvidenceRunError,
    commit_of,
    read_record,
    reported_runs,
    run_tests,
    write_record,
)

ROOT = Path(__file__).parents[3]
MODULE = """
import unittest
import pytest

@pytest.mark.parametrize("n", [1, 2])
def test_good(n):
    assert n

def test_bad():
    assert False

@pytest.mark.skip(reason="no browser")
def test_away():
    pass

@pytest.mark.parametrize("n", [1, 2])
def test_some(n):
    if n == 2:
        pytest.skip("no card")

class TestCases(unittest.TestCase):
    def test_one(self):
        pass
"""


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-c", "user.name=n", "-c", "user.email=e@x", *arguments], cwd=folder, check=True, capture_output=True
    )
    return done.stdout.decode().strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text(MODULE)
    (tmp_path / "docs" / "measurements").mkdir(parents=True)
    (tmp_path / "docs" / "measurements" / "checklist.json").write_text("{}")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "all")
    return tmp_path


def test_tests_are_really_run_and_their_cases_counted(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Importing this project's plugins costs a process more than these tests.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    names = ("test_good", "test_bad", "test_away", "test_some", "TestCases", "test_gone")
    found = dict(run_tests(checkout, [f"tests/test_it.py::{name}" for name in names[:-1]]))
    # Pytest runs nothing at all where one name is unknown, so that one is asked alone.
    found |= dict(run_tests(checkout, ["tests/test_it.py::test_gone"]))
    ends = {test.partition("::")[2]: (run.passed, run.failed, run.skipped, run.good) for test, run in found.items()}
    assert ends == {
        "test_good": (2, 0, 0, True),
        "test_bad": (0, 1, 0, False),
        "test_away": (0, 0, 1, False),
        "test_some": (1, 0, 1, True),
        "TestCases": (1, 0, 0, True),
        "test_gone": (0, 1, 0, False),
    }
    assert {run.commit for run in found.values()} == {git(checkout, "rev-parse", "--short=12", "HEAD")}


def test_reports_of_an_earlier_run_are_recorded_and_a_second_try_replaces_the_first(
    checkout: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("junit")
    first = folder / "b.xml"
    first.write_text(
        '<testsuites><testsuite><testcase classname="tests.test_it" name="test_good[1]"/>'
        '<testcase classname="tests.test_it" name="test_good[2]"><failure/></testcase>'
        '<testcase classname="tests.test_it.TestCases" name="test_one"/>'
        '<testcase classname="tests.test_other" name="test_good"/></testsuite></testsuites>'
    )
    os.utime(first, (1, 1))
    names = [f"tests/test_it.py::{name}" for name in ("test_good", "TestCases", "test_away")]
    assert reported_runs(checkout, folder, names)[names[0]].failed == 1

    (folder / "a.xml").write_text('<testsuite><testcase classname="tests.test_it" name="test_good[2]"/></testsuite>')
    found = reported_runs(checkout, folder, names)

    assert {test: (run.passed, run.failed) for test, run in found.items()} == {names[0]: (2, 0), names[1]: (1, 0)}
    assert found[names[0]].commit == git(checkout, "rev-parse", "--short=12", "HEAD")
    (checkout / "tests" / "test_it.py").write_text("")
    with pytest.raises(EvidenceRunError, match="tracked files differ"):
        reported_runs(checkout, folder, names)


def test_nothing_is_recorded_for_code_that_no_commit_holds(
    checkout: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (checkout / "docs" / "measurements" / "checklist.json").write_text('{"a": 1}')
    assert commit_of(checkout), "the record itself may change between runs"
    (checkout / "tests" / "test_it.py").write_text("def test_good(): pass\n")
    with pytest.raises(EvidenceRunError, match=r"tracked files differ from \w+: tests/test_it.py; commit or restore"):
        list(run_tests(checkout, ["tests/test_it.py::test_good"]))
    with pytest.raises(EvidenceRunError, match="is no git checkout"):
        commit_of(tmp_path_factory.mktemp("bare"))


def test_runs_are_kept_by_test_and_read_back(tmp_path: Path) -> None:
    one = EvidenceRun(passed=3, failed=0, skipped=1, commit="abc1234", day="2026-11-21")
    assert read_record(tmp_path) == {}
    write_record(tmp_path, {"b": one})
    write_record(tmp_path, {"a": one})
    assert list(read_record(tmp_path).items()) == [("a", one), ("b", one)]
    assert re.fullmatch(r"3 passed, 1 skipped at abc1234, 2026-11-21 \(\d+ days? ago\)", one.summary)


def test_every_recorded_commit_exists() -> None:
    if git(ROOT, "rev-parse", "--is-shallow-repository") == "true":
        pytest.skip("a shallow clone has no history")
    for commit in {run.commit for run in read_record(ROOT / "docs" / "measurements").values()}:
        assert git(ROOT, "cat-file", "-t", commit) == "commit", commit
