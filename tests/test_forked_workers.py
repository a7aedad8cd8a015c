"""Tests in forks end as tests of one process do, and a fork that dies costs one test."""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[1]
TESTS = """
import os
import warnings
from pathlib import Path

import pytest

ENDED = Path(__file__).with_name("ended")

@pytest.fixture(scope="module")
def once(whole):
    yield os.getpid()
    ENDED.open("a").write(f"module {os.getpid()}\\n")

@pytest.mark.parametrize("number", range(3))
def test_NAME_passes(once, number):
    assert once == os.getpid() != int(os.environ["FIRST"])
    print("NAME prints", number)

def test_NAME_fails(once, whole):
    print("the folder is", whole)
    warnings.warn("NAME warns")
    assert "NAME" == "another"

def test_NAME_skips(tmp_path):
    pytest.skip("NAME cannot")
"""
CONFTEST = """
import os
from pathlib import Path

import pytest

pytest_plugins = ["tests.forked_workers"]
ENDED = Path(__file__).with_name("ended")
os.environ["FIRST"] = str(os.getpid())

@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    yield tmp_path_factory.mktemp("whole")
    ENDED.open("a").write(f"session {os.getpid()}\\n")
"""
TERMINATED = """
import os
import signal
import time

def test_of_a_run_that_is_terminated(whole):
    os.kill(int(os.environ["FIRST"]), signal.SIGTERM)
    time.sleep(600)
"""
DEADLY = """
import os
import signal

def test_before():
    pass

def test_that_ends_its_process():
    os.kill(os.getpid(), signal.SIGKILL)

def test_after():
    pass
"""


class Run:
    """A run of pytest in two forks over the files of `folder`: its exit status, its output, and what JUnit has."""

    def __init__(self, folder: Path, *options: str) -> None:
        (folder / "conftest.py").write_text(CONFTEST)
        command = [sys.executable, "-m", "pytest", "--forks", "2", "--junitxml=report.xml", "-p", "no:cacheprovider"]
        environment = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        done = subprocess.run(
            [*command, *options, "."], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        self.status, self.output = done.returncode, done.stdout
        cases = ElementTree.parse(folder / "report.xml").getroot().iter("testcase")
        self.cases = {str(case.get("name")): case for case in cases}

    def said(self, name: str) -> str:
        return " ".join([*self.cases[name].itertext(), *(part.get("message", "") for part in self.cases[name])])

    def ended(self, kind: str) -> set[str]:
        return {name for name, case in self.cases.items() if case.find(kind) is not None}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tests")
    for name in ("one", "two", "three"):
        (folder / f"test_{name}.py").write_text(TESTS.replace("NAME", name))
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return Run(folder, "-o", "junit_logging=all", "-rs")


def test_each_test_has_its_own_result_and_output(run: Run) -> None:
    assert run.status == pytest.ExitCode.TESTS_FAILED
    assert len(run.cases) == 15
    assert run.ended("failure") == {"test_one_fails", "test_two_fails", "test_three_fails"}
    assert run.ended("skipped") == {"test_one_skips", "test_two_skips", "test_three_skips"}
    for name in ("one", "two", "three"):
        assert f"{name} prints 1" in run.said(f"test_{name}_passes[1]")
        assert f"assert '{name}' == 'another'" in run.said(f"test_{name}_fails")
        assert f"UserWarning: {name} warns" in run.output
        assert f"{name} cannot" in run.output
    assert "3 failed, 9 passed, 3 skipped, 3 warnings" in run.output


def test_a_file_ends_before_the_next_one_begins_and_a_session_once_in_each_fork(folder: Path, run: Run) -> None:
    ends = [line.split() for line in (folder / "ended").read_text().splitlines()]
    modules, sessions = ([process for what, process in ends if what == kind] for kind in ("module", "session"))
    assert len(modules) == 3
    assert len(sessions) == len(set(sessions)) == 2
    assert set(sessions) == set(modules)
    folders = {
        name: run.said(f"test_{name}_fails").partition("the folder is ")[2].split()[0] for name in ("one", "two")
    }
    assert all(Path(path).parent.name.startswith("gw") for path in folders.values())


def test_a_process_that_dies_costs_the_test_that_it_ran(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"test_{name}.py").write_text(DEADLY.replace("test_", f"test_{name}_"))
    run = Run(tmp_path)
    deadly = {"test_one_that_ends_its_process", "test_two_that_ends_its_process"}
    assert (run.status, len(run.cases), run.ended("failure")) == (pytest.ExitCode.TESTS_FAILED, 6, deadly)
    assert "the process that ran it ended with -9" in run.said("test_one_that_ends_its_process")


def test_a_run_stops_at_the_first_failure_where_it_is_asked_to(folder: Path) -> None:
    run = Run(folder, "-x")
    assert run.status == pytest.ExitCode.TESTS_FAILED
    assert len(run.ended("failure")) == 1


def test_a_run_that_is_terminated_tears_down_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(TERMINATED)
    assert Run(tmp_path).status == pytest.ExitCode.INTERRUPTED
    assert (tmp_path / "ended").read_text().startswith("session")
