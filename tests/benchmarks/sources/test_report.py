"""The report: figures come from files, missing ones are marked, each feature has tests, the page has its sections."""

import json
from pathlib import Path

import pytest

from benchmarks.requirements.requirements import read_requirements
from benchmarks.sources.claims import NOT_MEASURED, tables
from benchmarks.sources.origins import measurements_of
from benchmarks.sources.report import report, stage_section, stages
from tests.requirements.test_requirements import names_of

ROOT = Path(__file__).parents[3]
MEASUREMENTS = ROOT / "docs" / "measurements"


def test_the_budget_is_the_sources_and_sums_to_a_hundred_milliseconds():
    found = stages(MEASUREMENTS)
    assert {stage.name: stage.budget_ms for stage in found} == {
        "route": 2, "schedule": 3, "prefill": 25, "decode": 65, "stream": 5,
    }  # fmt: skip
    assert sum(stage.budget_ms for stage in found) == 100


def test_stages_are_those_that_the_measurements_state():
    found = {stage.name: stage.measured_ms for stage in stages(MEASUREMENTS)}
    timed = json.loads((MEASUREMENTS / "stages.json").read_text())
    assert found["schedule"] == timed["queue_ms"] + timed["planning_ms"]
    assert (found["prefill"], found["decode"]) == (timed["prefill_ms"], 99 * timed["token_ms"])
    assert (found["route"], found["stream"]) == (timed["route_ms"], timed["stream_ms"])


def test_what_was_not_measured_is_said_and_no_figure_made_up(tmp_path):
    assert all(stage.measured_ms is None for stage in stages(tmp_path))
    text = report(tmp_path)
    assert text.count(NOT_MEASURED) > 10
    assert stage_section(stages(tmp_path)).count(NOT_MEASURED) >= 6


@pytest.mark.parametrize("feature", [*tables().engines, *tables().servers], ids=lambda feature: feature.name)
def test_each_yes_names_tests_that_exist(feature):
    assert feature.tests
    for test in feature.tests:
        file, _, name = test.partition("::")
        assert name in names_of(ROOT / "tests" / file), test


def test_the_row_of_the_matrix_runs_every_test_that_a_yes_names():
    """So `python -m benchmarks checklist --run --only TB-11` fails where a yes stops being true."""
    [row] = [row for row in read_requirements(ROOT / "docs/results/requirements.md") if row.key == "TB-11"]
    named = {f"tests/{test}" for feature in (*tables().engines, *tables().servers) for test in feature.tests}
    assert named <= set(row.tests)


def test_both_matrices_have_the_sources_features():
    assert (len(tables().engines), len(tables().servers)) == (6, 5)


def test_every_measurement_is_on_record():
    text = report(MEASUREMENTS)
    for path in measurements_of(MEASUREMENTS):
        assert f"[{path.name}](../measurements/{path.name})" in text


def test_a_measurement_is_listed_with_its_commit_where_it_names_one(tmp_path):
    for name, machine in (("new", {"processor": "P", "cpus": 2, "commit": "0123456789ab"}), ("old", {"cpus": 2})):
        (tmp_path / f"{name}.json").write_text(json.dumps({"machine": machine}))

    text = report(tmp_path)

    assert "| [new.json](../measurements/new.json) | 2 CPUs of P | – | 0123456789ab |" in text
    assert "| [old.json](../measurements/old.json) | see file | – | – |" in text


def test_the_page_is_what_the_command_writes():
    page = ROOT / "docs" / "results" / "report.md"
    assert page.read_text(encoding="utf-8") == report(MEASUREMENTS), "run `make bench-report`"


def test_the_speed_of_one_stream_is_with_the_model_and_machine_that_were_timed(tmp_path):
    timed = json.loads((MEASUREMENTS / "stages.json").read_text())
    timed |= {"model": "x", "token_ms": 4.0, "machine": {"cpus": 96, "processor": "P"}}
    (tmp_path / "stages.json").write_text(json.dumps(timed))

    assert "Here: 250 tokens a second on one stream, with x on 96 CPUs of P, which" in report(tmp_path)
