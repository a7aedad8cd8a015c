"""A measurement names the commit of the code that it measured."""

import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.report import machine

ROOT = Path(__file__).parents[3]


def git(repository, *words):
    return subprocess.run(["git", *words], cwd=repository, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """A repository with one commit of the file that describes the machine, which takes itself for its own."""
    file = tmp_path / "machine.py"
    shutil.copy(machine.__file__, file)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "machine.py")
    git(tmp_path, "-c", "user.name=n", "-c", "user.email=e", "commit", "--quiet", "--message=first")
    monkeypatch.setattr(machine, "__file__", str(file))
    return file


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not in a checkout")
def test_the_commit_is_that_of_this_checkout():
    commit = machine.describe_machine()["commit"]

    assert commit.removesuffix("+") == git(ROOT, "rev-parse", "--short=12", "HEAD")


def test_a_changed_tracked_file_marks_the_commit_and_a_tag_does_not_replace_it(copy):
    commit = git(copy.parent, "rev-parse", "--short=12", "HEAD")
    git(copy.parent, "-c", "user.name=n", "-c", "user.email=e", "tag", "--annotate", "--message=v", "v1")
    assert machine.describe_machine()["commit"] == commit

    copy.write_text("changed")
    assert machine.describe_machine()["commit"] == f"{commit}+"


def test_outside_of_a_checkout_no_commit_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "__file__", str(tmp_path / "machine.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))

    assert "commit" not in machine.describe_machine()
