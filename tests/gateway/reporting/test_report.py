"""The report: figures come from files, missing ones are marked, each feature has tests, the page has its sections."""

import json
from pathlib import Path

import pytest

from gateway.reporting.features import ENGINE_FEATURES, SERVER_FEATURES
from gateway.reporting.report import NOT_MEASURED, report, stage_section
from gateway.reporting.stages import stages

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
    route = json.loads((MEASUREMENTS / "route.json").read_text())["decision"]["wall_ms"]["p50"]
    assert found["route"] == route
    timed = json.loads((MEASUREMENTS / "stages.json").read_text())
    assert found["schedule"] == timed["queue_ms"] + timed["planning_ms"]
    assert (found["prefill"], found["decode"]) == (timed["prefill_ms"], 99 * timed["token_ms"])


def test_first_tokens_and_gaps_of_a_sweep_stand_in_for_stages_that_were_not_timed(tmp_path):
    lines = (MEASUREMENTS / "sweep.jsonl").read_text()
    (tmp_path / "sweep.jsonl").write_text(lines)
    one = next(row for line in lines.splitlines() if (row := json.loads(line).get("row", {})).get("concurrency") == 1)

    found = {stage.name: stage.measured_ms for stage in stages(tmp_path)}

    assert found["schedule"] is None
    assert (found["prefill"], found["decode"]) == (one["ttft_p50_ms"], 99 * one["itl_p50_ms"])


def test_what_was_not_measured_is_said_and_no_figure_made_up(tmp_path):
    assert all(stage.measured_ms is None for stage in stages(tmp_path))
    text = report(tmp_path)
    assert text.count(NOT_MEASURED) > 10
    assert stage_section(stages(tmp_path)).count(NOT_MEASURED) >= 6


@pytest.mark.parametrize("feature", [*ENGINE_FEATURES, *SERVER_FEATURES], ids=lambda feature: feature.name)
def test_each_yes_names_tests_that_exist(feature):
    assert feature.tests
    for test in feature.tests:
        assert (ROOT / "tests" / test).is_file()


def test_both_matrices_have_the_sources_features():
    assert (len(ENGINE_FEATURES), len(SERVER_FEATURES)) == (6, 5)


def test_every_measurement_is_on_record():
    text = report(MEASUREMENTS)
    for path in MEASUREMENTS.glob("*.json*"):
        assert f"[{path.name}](measurements/{path.name})" in text


def test_a_measurement_is_listed_with_its_commit_where_it_names_one(tmp_path):
    for name, machine in (("new", {"processor": "P", "cpus": 2, "commit": "0123456789ab"}), ("old", {"cpus": 2})):
        (tmp_path / f"{name}.json").write_text(json.dumps({"machine": machine}))

    text = report(tmp_path)

    assert "| [new.json](measurements/new.json) | 2 CPUs of P | – | 0123456789ab |" in text
    assert "| [old.json](measurements/old.json) | see file | – | – |" in text


def test_the_page_is_what_the_command_writes():
    assert (ROOT / "docs" / "report.md").read_text(encoding="utf-8") == report(MEASUREMENTS), "run `make bench-report`"


def test_model_load_and_the_loop_of_one_request_are_those_of_the_file(tmp_path):
    head, *_, last = (MEASUREMENTS / "sweep.jsonl").read_text().splitlines()
    changed = json.loads(head)
    changed["settings"]["model"]["name"] = "another"
    changed["settings"]["options"] |= {"prompt_tokens": 5, "output_tokens": 6}
    results = json.loads(last)["results"]
    for point in results["points"]:
        point["figures"]["out_tok_s"] = dict.fromkeys(("median", "low", "high"), 10.0 * point["concurrency"])
    results["knee"] = 4
    (tmp_path / "sweep.jsonl").write_text(f"{json.dumps(changed)}\n{json.dumps({'results': results})}\n")

    text = report(tmp_path)

    assert "of 5 tokens in and 6 out with another (int4-int8) on 2 CPUs" in text
    assert "| 4 in flight, the knee of the sweep | 40.0 | 4.00× |" in text


def test_the_gain_over_the_loop_of_one_request_has_the_interval_of_the_rounds(tmp_path):
    head, *_, last = (MEASUREMENTS / "sweep.jsonl").read_text().splitlines()
    results = json.loads(last)["results"]
    results["knee"] = 4
    point = next(point for point in results["points"] if point["concurrency"] == 4)
    point["gain"] = {"median": 3.0, "low": 2.5, "high": 3.6}
    (tmp_path / "sweep.jsonl").write_text(f"{head}\n{json.dumps({'results': results})}\n")

    assert "| 3.00× [2.50 to 3.60] |" in report(tmp_path)
