"""The checklist: items rest on requirements, and a state claims no more than was run."""

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from benchmarks.requirements.checklist import ITEMS, checklist, named_tests, requirement_states
from benchmarks.requirements.checklist import checklist_command as command
from benchmarks.requirements.evidence_runs import EvidenceRun, write_record
from benchmarks.requirements.requirements import read_requirements

ROOT = Path(__file__).parents[3]
PAGE = """## Serving

| ID | requirement | shown by | what is missing |
| --- | --- | --- | --- |
| BS-03 | a delay | `tests/test_a.py::test_delay` | |
| GW-05 | events | `tests/test_a.py::test_events`, `make demo` | |
| GW-06 | sockets | `tests/test_a.py::TestSockets` | partly: no cancel |
| GW-16 | an edge | `tests/test_a.py::test_edge` | |
| TI-10 | a student | | not done, because there is none |
| CK-03 | serving | `python -m benchmarks checklist --only CK-03` | |
"""


def run_of(passed: int = 0, failed: int = 0, skipped: int = 0) -> EvidenceRun:
    return EvidenceRun(passed=passed, failed=failed, skipped=skipped, commit="abc1234", day="2026-11-21")


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "requirements.md"
    path.write_text(PAGE, encoding="utf-8")
    return path


def states(tmp_path: Path, page: Path, **runs: EvidenceRun) -> dict[str, str]:
    """Of the page's rows and of the items of CK-02 and CK-03, by name."""
    write_record(tmp_path, {f"tests/test_a.py::{name}": run for name, run in runs.items()})
    found = {one.item.row: one.status for one in requirement_states(tmp_path, page)}
    return found | {
        one.item.item: one.status for one in checklist(tmp_path, page) if one.item.row in ("CK-02", "CK-03")
    }


def test_every_row_of_the_sources_checklist_is_there() -> None:
    assert {item.row for item in ITEMS} == {f"CK-0{number}" for number in range(1, 10)}
    assert len({item.key for item in ITEMS}) == len(ITEMS)


def test_a_best_practice_rests_on_what_the_sources_ask_of_it() -> None:
    rests_on: dict[str, set[str]] = {}
    for item in ITEMS:
        rests_on.setdefault(item.row, set()).update(item.rests_on)
    assert rests_on == {
        "CK-01": {"TI-06", "TI-09", "PX-06"},
        "CK-02": {"QZ-01", "QZ-07", "AT-02", "AT-05", "GW-16", "TI-10"},
        "CK-03": {"BS-03", "GW-05", "GW-06", "SD-06"},
        "CK-04": {"BS-10", "BS-05", "BS-01", "SD-10"},
        "CK-05": {"GW-11", "AS-01", "AS-02", "AS-03", "GW-16"},
        "CK-06": {"OB-03", "OB-07", "OB-08", "OB-09", "OB-10"},
        "CK-07": {"TB-01", "QZ-10", "QM-11"},
        "CK-08": {"TB-05"},
        "CK-09": {"KV-01", "BS-01", "RT-05", "OB-01"},
    }
    measured = {item.row: item.measurements for item in ITEMS if item.measurements}
    assert measured == {
        "CK-03": ("draft.jsonl", "lookup.jsonl"),
        "CK-07": ("sweep.jsonl", "peers.jsonl"),
        "CK-08": ("ablation.jsonl",),
    }


def test_items_rest_on_requirements_and_measurements_that_exist() -> None:
    known = {row.key for row in read_requirements(ROOT / "docs" / "results" / "requirements.md")}
    for item in ITEMS:
        assert item.rests_on
        assert set(item.rests_on) <= known, item.key
        assert all((ROOT / "docs" / "measurements" / name).is_file() for name in item.measurements), item.key


def test_the_pages_row_of_a_best_practice_names_what_its_items_lack() -> None:
    """So that the page never says done where the command says partly."""
    rows = {row.key: row for row in read_requirements(ROOT / "docs" / "results" / "requirements.md")}
    for key in {item.row for item in ITEMS}:
        items = [item for item in ITEMS if item.row == key]
        lacking = {each for item in items for each in item.rests_on if rows[each].missing}
        named = set(re.findall(r"\b[A-Z]{2}-\d\d\b", rows[key].missing))
        assert named == lacking, key
        assert bool(rows[key].missing) == bool(lacking or any(item.gap for item in items)), key


def test_a_requirement_is_in_the_state_that_its_tests_and_its_gap_allow(tmp_path: Path, page: Path) -> None:
    assert set(states(tmp_path, page).values()) == {"not measured", "not done"}
    good = {name: run_of(passed=2, skipped=1) for name in ("test_delay", "test_events", "TestSockets", "test_edge")}
    found = states(tmp_path, page, **good)
    assert [found[key] for key in ("BS-03", "GW-05", "GW-06", "TI-10")] == ["pass", "pass", "partly", "not done"]
    assert found["dynamic batching with a delay of at most 5 ms"] == "pass"
    assert found["tokens over SSE and WebSocket"] == "partly", "one of its rows is only partly done"
    assert found["a distilled model for prompts below 30 tokens"] == "partly", "one of its rows is not done"
    found = states(tmp_path, page, TestSockets=run_of(passed=5, failed=1))
    assert (found["GW-06"], found["tokens over SSE and WebSocket"]) == ("fail", "fail")


def test_what_was_only_skipped_did_not_pass(tmp_path: Path, page: Path) -> None:
    assert states(tmp_path, page, test_delay=run_of(skipped=3))["BS-03"] == "not measured"


def test_an_item_with_a_gap_or_without_its_measurement_never_passes(tmp_path: Path, page: Path) -> None:
    write_record(tmp_path, {"tests/test_a.py::test_edge": run_of(passed=1)})
    found = {one.item.item: one for one in checklist(tmp_path, page)}
    edge = found["edge first, below 20 ms"]
    assert (edge.status, edge.evidence) == ("partly", f"GW-16 pass; {edge.item.gap}")
    assert "(missing)" in found["load tests with bursts"].evidence


def test_the_tests_to_run_are_those_of_the_rows_and_of_what_an_item_rests_on(page: Path) -> None:
    def names(only: str | None) -> list[str]:
        return [test.partition("::")[2] for test in named_tests(only, page)]

    assert names(None) == ["test_delay", "test_events", "TestSockets", "test_edge"]
    assert names("GW-05") == ["test_events"]
    assert names("GW") == ["test_events", "TestSockets", "test_edge"]
    assert names("CK-03") == ["test_delay", "test_events", "TestSockets"]


def test_a_row_that_is_none_is_named(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("| GW-05 | events | `tests/test_a.py::test_events` |\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"this one has 3: \| GW-05"):
        read_requirements(page)


def test_without_the_page_nothing_is_claimed(tmp_path: Path) -> None:
    assert {each.status for each in checklist(tmp_path, tmp_path / "none.md")} == {"not measured"}


def test_the_command_prints_items_and_requirements_and_fails_if_one_fails(tmp_path: Path) -> None:
    printed = CliRunner().invoke(command, ["--measurements", str(tmp_path), "--json"])
    assert printed.exit_code == 0
    assert len(msgspec.json.decode(printed.output)) == len(ITEMS)
    some = CliRunner().invoke(command, ["--measurements", str(tmp_path), "--only", "GW-0", "--json"])
    assert [each["item"]["row"] for each in msgspec.json.decode(some.output)] == [f"GW-0{n}" for n in range(1, 10)]
    broken = named_tests("BS-03")[0]
    write_record(tmp_path, {broken: run_of(failed=1)})
    assert CliRunner().invoke(command, ["--measurements", str(tmp_path)]).exit_code == 1


def test_a_run_outside_of_a_checkout_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused = CliRunner().invoke(command, ["--measurements", str(tmp_path), "--run", "--only", "RT-04"])
    assert refused.exit_code == 1
    assert refused.output.startswith(f"Error: {tmp_path} is no git checkout")
    assert list(tmp_path.iterdir()) == []


def test_reading_the_checklist_imports_nothing_of_the_serving_path() -> None:
    script = "import sys, benchmarks.requirements.checklist; print('litestar' in sys.modules, 'torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "False"]
