"""The checklist: evidence exists, a status claims no more than was run, and runs are recorded with commit and day."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from gateway.cli.checklist import checklist as command
from gateway.reporting.checklist import (
    ITEMS,
    ChecklistItem,
    EvidenceRun,
    checklist,
    read_record,
    run_items,
    write_record,
)

ROOT = Path(__file__).parents[3]


def test_every_row_of_the_sources_checklist_is_there():
    assert {item.row for item in ITEMS} == {f"CK-0{number}" for number in range(1, 10)}
    assert len({item.key for item in ITEMS}) == len(ITEMS)


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.key)
def test_the_tests_that_an_item_rests_on_exist(item):
    assert item.tests or item.gap
    for test in item.tests:
        assert (ROOT / "tests" / test).is_file()
    for name in item.measurements:
        assert (ROOT / "docs" / "measurements" / name).is_file()


def run_of(*, passed: bool) -> EvidenceRun:
    return EvidenceRun(passed=passed, summary="3 passed", commit="abc1234", day="2026-11-21")


def test_what_was_never_run_is_not_measured(tmp_path):
    assert {each.status for each in checklist(tmp_path)} == {"not measured"}


def test_a_run_decides_and_a_missing_measurement_keeps_an_item_from_passing(tmp_path):
    plain = next(item for item in ITEMS if item.tests and not item.measurements)
    measured = next(item for item in ITEMS if item.tests and item.measurements)
    broken = next(item for item in ITEMS if item.tests and item not in (plain, measured))
    write_record(
        tmp_path,
        {plain.key: run_of(passed=True), measured.key: run_of(passed=True), broken.key: run_of(passed=False)},
    )
    found = {each.item.key: each.status for each in checklist(tmp_path)}
    assert (found[plain.key], found[measured.key], found[broken.key]) == ("pass", "not measured", "fail")
    for name in measured.measurements:
        (tmp_path / name).touch()
    assert {each.item.key: each.status for each in checklist(tmp_path)}[measured.key] == "pass"


def test_what_has_a_gap_never_passes(tmp_path):
    gap = next(item for item in ITEMS if item.gap)
    write_record(tmp_path, {gap.key: run_of(passed=True)})
    (found,) = (each for each in checklist(tmp_path) if each.item.key == gap.key)
    assert (found.status, found.evidence) == ("not measured", gap.gap)


def test_tests_are_really_run(tmp_path):
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "test_good.py").write_text("def test_it():\n    assert True\n")
    (folder / "test_bad.py").write_text("def test_it():\n    assert False\n")
    items = tuple(ChecklistItem(row="X", area="x", item=name, tests=(f"test_{name}.py",)) for name in ("good", "bad"))
    found = dict(run_items(tmp_path, items))
    assert found["X good"].passed
    assert not found["X bad"].passed
    assert "1 failed" in found["X bad"].summary
    write_record(tmp_path, found)
    assert read_record(tmp_path) == found


def test_the_command_prints_every_item_and_fails_if_one_fails(tmp_path):
    printed = CliRunner().invoke(command, ["--measurements", str(tmp_path), "--json"])
    assert printed.exit_code == 0
    assert len(msgspec.json.decode(printed.output)) == len(ITEMS)
    broken = next(item for item in ITEMS if item.tests)
    write_record(tmp_path, {broken.key: run_of(passed=False)})
    assert CliRunner().invoke(command, ["--measurements", str(tmp_path)]).exit_code == 1


def test_reading_the_checklist_imports_nothing_of_the_serving_path():
    script = "import sys, gateway.reporting.checklist; print('litestar' in sys.modules, 'torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "False"]
