"""A run of pytest keeps no folder that its fixtures took, except from the first failure on."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CONFTEST = """
import pytest

pytest_plugins = ["tests.removed_folders"]

@pytest.fixture(scope="session")
def long(tmp_path_factory):
    return tmp_path_factory.mktemp("long")

@pytest.fixture(scope="module")
def short(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("short")
    request.getfixturevalue("long")
    yield folder
    assert folder.exists()
"""
TESTS = """
def test_NAME(short, long, tmp_path):
    here = [path for path in long.parent.iterdir() if path.is_dir() and not path.is_symlink()]
    assert sorted(here) == sorted([short, long, tmp_path])
    assert "NAME" != "third"
"""


def run(folder: Path, *names: str) -> tuple[int, list[str]]:
    """The exit status of a run over a module of each name, and the folders that it left."""
    (folder / "conftest.py").write_text(CONFTEST)
    for name in names:
        (folder / f"test_{name}.py").write_text(TESTS.replace("NAME", name))
    files = [f"test_{name}.py" for name in names]
    options = ("-o", "tmp_path_retention_policy=failed", "-p", "no:cacheprovider")
    environment = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_DEBUG_TEMPROOT": str(folder)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *files],
        cwd=folder,
        env=environment,
        capture_output=True,
        check=False,
    )
    left = folder.glob("pytest-of-*/pytest-0/*")
    return done.returncode, sorted(path.name for path in left if path.is_dir() and not path.is_symlink())


def test_what_passes_leaves_nothing(tmp_path: Path) -> None:
    assert run(tmp_path, "first", "second") == (pytest.ExitCode.OK, [])


def test_what_fails_leaves_the_folders_that_it_used(tmp_path: Path) -> None:
    left = ["long0", "short1", "test_third0"]
    assert run(tmp_path, "first", "third") == (pytest.ExitCode.TESTS_FAILED, left)
