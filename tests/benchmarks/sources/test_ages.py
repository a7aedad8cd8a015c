"""A stored figure is marked where its code has changed much since, or its program is gone (SPEC TB-10)."""

import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.__main__ import _COMMANDS
from benchmarks.sources import ages
from benchmarks.sources.ages import MEASURED, MeasuredCode, mark_of, measured_code, read_marks, write_marks
from benchmarks.sources.origins import in_words, measurements_of
from benchmarks.sources.report import report

ROOT = Path(__file__).parents[3]
MEASUREMENTS = ROOT / "docs" / "measurements"


def git(folder: Path, *arguments: str) -> str:
    names = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    return subprocess.run(
        ["git", *names, *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout whose code may change twice before a figure is old."""
    monkeypatch.setattr(ages, "MOST_COMMITS", 2)
    monkeypatch.setitem(MEASURED, "speed", MeasuredCode(command="speed", code=("engine",)))
    monkeypatch.setitem(MEASURED, "gone", MeasuredCode(code=("engine",)))
    monkeypatch.setitem(MEASURED, "rows", MeasuredCode())
    for name in ("engine", "pages", "docs/measurements"):
        (tmp_path / name).mkdir(parents=True)
    git(tmp_path, "init", "-q")
    committed(tmp_path, "engine")
    return tmp_path


def committed(repository: Path, folder: str) -> str:
    file = repository / folder / "file"
    file.write_text(f"{file.read_text() if file.exists() else ''}x")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "change")
    return git(repository, "rev-parse", "HEAD")


def test_one_is_old_once_its_own_code_has_changed_often(repository: Path) -> None:
    commit = committed(repository, "engine")
    path = repository / "docs" / "measurements" / "speed-epyc.jsonl"
    for folder in ("pages", "pages", "pages", "engine", "engine"):
        committed(repository, folder)
    assert mark_of(path, f"{commit}+", path.parent) == ""
    committed(repository, "engine")
    assert "changed engine since this was measured" in mark_of(path, commit, path.parent)


def test_one_whose_program_is_gone_or_whose_commit_is_unknown_is_old(repository: Path) -> None:
    commit = committed(repository, "engine")
    assert mark_of(repository / "gone.jsonl", commit, repository) == "Old: the program that measured this is gone."
    for unknown in ("", "0" * 40):
        assert mark_of(repository / "speed.jsonl", unknown, repository).endswith("is not known.")
    assert mark_of(repository / "rows.jsonl", "", repository) == ""


def test_marks_are_kept_and_shown_on_the_page(tmp_path: Path) -> None:
    (tmp_path / "step.jsonl").write_text('{"step": "decode"}\n')
    write_marks(tmp_path, {"step.jsonl": "Old: by a test.", "route.json": ""})
    assert read_marks(tmp_path) == {"step.jsonl": "Old: by a test."}
    assert "| Old: by a test. |" in report(tmp_path)


def test_a_figure_of_an_old_measurement_is_called_old_where_it_stands(tmp_path: Path) -> None:
    for name in ("soak.jsonl", "stages.json"):
        shutil.copy(MEASUREMENTS / name, tmp_path)
    write_marks(tmp_path, {"soak.jsonl": "Old: by a test.", "stages.json": "Old: by a test."})
    assert in_words(tmp_path / "soak.jsonl").endswith(", old")
    assert not in_words(MEASUREMENTS / "savings.jsonl").endswith(", old")
    stages = report(tmp_path).split("## Feature matrix")[0]
    assert stages.rstrip().endswith("**Old: by a test.**")


def test_it_is_known_what_each_stored_measurement_is_of_and_what_measures_it() -> None:
    for path in measurements_of(MEASUREMENTS):
        measured = measured_code(path)
        assert measured.command is None or measured.command in _COMMANDS, path.name
        assert [code for code in measured.code if not (ROOT / code).exists()] == [], path.name
    assert set(read_marks(MEASUREMENTS)) <= {path.name for path in measurements_of(MEASUREMENTS)}
