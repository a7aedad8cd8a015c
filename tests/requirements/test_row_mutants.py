"""Every requirement has mutants that fit the code, and the runner tells those that live from those that are killed."""

import ast
import subprocess
from pathlib import Path

import msgspec
import pytest

from tests.requirements import verdict_table
from tests.requirements.row_mutants import (
    ROOT,
    Edit,
    RecordedVerdict,
    RowMutant,
    add_to_record,
    digest_of,
    read_mutants,
    read_record,
    requirements_by_key,
)
from tests.requirements.scratch_copy import ScratchCopy, scratch_copy

ROWS = requirements_by_key()
FILE = read_mutants()


@pytest.mark.parametrize("mutant", FILE.mutants, ids=lambda mutant: mutant.key)
def test_a_mutant_is_of_a_row_and_its_edits_fit_the_code(mutant: RowMutant) -> None:
    assert mutant.row in ROWS
    assert mutant.claim
    assert mutant.edits
    texts: dict[str, str] = {}
    for edit in mutant.edits:
        assert not edit.file.startswith("tests/"), "the code is to be broken, not its tests"
        assert edit.old != edit.new
        texts[edit.file] = edit.applied(texts.get(edit.file) or (ROOT / edit.file).read_text(encoding="utf-8"))
    for file, text in texts.items():
        if file.endswith(".py"):
            ast.parse(text)


def test_a_row_has_mutants_or_says_why_it_has_none_and_no_claim_is_there_twice() -> None:
    keys = [mutant.key for mutant in FILE.mutants]
    assert len(set(keys)) == len(keys)
    exempt = [row.row for row in FILE.exempt]
    with_mutants = {mutant.row for mutant in FILE.mutants}
    assert [row for row in exempt if row in with_mutants or not ROWS[row]] == []
    assert len(set(exempt)) == len(exempt)
    assert all(row.why for row in FILE.exempt)
    assert with_mutants | set(exempt) == set(ROWS)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A checkout of one module, with tests of which one notices what it does."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "sums.py").write_text("def total(numbers):\n    return sum(numbers)\n")
    (source / "test_sums.py").write_text(
        "import pytest\nfrom sums import total\n\n"
        "def test_the_total_is_the_sum():\n    assert total([1, 2]) == 3\n\n"
        "def test_there_is_a_total():\n    assert callable(total)\n\n"
        "def test_left_out():\n    pytest.skip('no tool')\n"
    )
    for command in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *command], cwd=source, check=True)
    return source


@pytest.mark.processes
def test_a_mutant_is_killed_by_a_test_that_notices_it_and_lives_else(repository: Path, tmp_path: Path) -> None:
    copy = ScratchCopy(tmp_path / "copy", repository)
    edit = Edit("sums.py", "sum(numbers)", "max(numbers)")
    noticing, shallow, skipped = (
        f"test_sums.py::test_{name}" for name in ("the_total_is_the_sum", "there_is_a_total", "left_out")
    )
    with copy.edited([edit]):
        assert copy.run([shallow, noticing]) == ("killed", "test_the_total_is_the_sum")
        assert copy.run([shallow]) == ("lives", "")
        assert copy.run([skipped]) == ("skipped", "")
    with copy.edited([Edit("sums.py", "def total", "def sums")]):
        verdict, said = copy.run([noticing])
        assert verdict == "error", "tests that cannot be collected notice nothing"
        assert "ImportError" in said
    assert copy.run([noticing, shallow, skipped]) == ("lives", ""), "the edits are taken back"
    assert "sum(numbers)" in (repository / "sums.py").read_text()


@pytest.mark.parametrize("old", ["a sum", "n"])
def test_an_edit_that_does_not_stand_once_in_its_file_is_refused(old: str, repository: Path, tmp_path: Path) -> None:
    copy = ScratchCopy(tmp_path / "copy", repository)
    with pytest.raises(ValueError, match="not once"), copy.edited([Edit("sums.py", old, "")]):
        pass


def test_a_digest_follows_the_mutant_the_code_and_the_named_tests(tmp_path: Path) -> None:
    mutant = RowMutant("GW-01", "a claim", (Edit("code.py", "a", "b"),))
    row = msgspec.structs.replace(ROWS["GW-01"], tests=("test_code.py::test_it",))
    for name in ("code.py", "test_code.py", "other.py"):
        (tmp_path / name).write_text("a")
    first = digest_of(mutant, row, tmp_path)
    (tmp_path / "other.py").write_text("b")
    assert digest_of(mutant, row, tmp_path) == first
    digests = {first}
    for name in ("code.py", "test_code.py"):
        (tmp_path / name).write_text("b")
        digests.add(digest_of(mutant, row, tmp_path))
    digests.add(digest_of(msgspec.structs.replace(mutant, claim="another"), row, tmp_path))
    assert len(digests) == 4


def test_verdicts_are_added_to_those_that_are_recorded_and_those_of_lost_mutants_go(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    first, second = (mutant.key for mutant in FILE.mutants[:2])
    killed = RecordedVerdict("killed", "test_it", "0123", "abc", "2026-01-01")
    lives = msgspec.structs.replace(killed, verdict="lives", by="")
    add_to_record({first: lives, "a mutant that is no more": killed}, path)
    add_to_record({second: killed}, path)
    assert read_record(path) == {first: lives, second: killed}
    add_to_record({first: killed}, path)
    assert read_record(path) == {first: killed, second: killed}


def test_the_page_has_the_recorded_verdicts() -> None:
    page = verdict_table.PAGE.read_text(encoding="utf-8")
    assert verdict_table.verdict_table() in page, "run `python -m tests.requirements FR --missing --keep`"


@pytest.mark.processes
def test_the_copy_has_the_data_next_to_it_as_the_checkout_has(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "rows.txt").write_text("hello")
    (repository / "test_data.py").write_text(
        "from pathlib import Path\n\n"
        "def test_data():\n    assert (Path(__file__).parents[1] / 'shared' / 'rows.txt').is_file()\n"
    )
    with scratch_copy(repository) as copy:
        assert copy.run(["test_data.py::test_data"]) == ("lives", "")
