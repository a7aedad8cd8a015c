"""The report: figures come from files, missing ones are marked, each feature has tests, the page has its sections."""

import json
import statistics
from pathlib import Path

import pytest

from benchmarks.requirements.requirements import read_requirements
from benchmarks.sources.claims import NOT_MEASURED, tables
from benchmarks.sources.origins import measurements_of
from benchmarks.sources.report import report, stage_section
from benchmarks.sources.stages import stages
from tests.test_requirements import names_of

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


def test_model_load_and_the_loop_of_one_request_are_those_of_the_file(tmp_path):
    head, *_, last = (MEASUREMENTS / "sweep.jsonl").read_text().splitlines()
    changed = json.loads(head)
    changed["settings"]["model"]["name"] = "another"
    changed["settings"]["options"] |= {"prompt_tokens": 5, "output_tokens": 6}
    results = json.loads(last)["results"]
    for point in results["points"]:
        point["figures"]["out_tok_s"] = dict.fromkeys(("median", "low", "high"), 10.0 * point["concurrency"])
        point["gain"] = None
    results["knee"] = 4
    (tmp_path / "sweep.jsonl").write_text(f"{json.dumps(changed)}\n{json.dumps({'results': results})}\n")

    text = report(tmp_path)

    assert "of 5 tokens in and 6 out with another (int4-int8) on 2 CPUs" in text
    assert "| 4 in flight, the knee of the sweep | 40.0 | 4.00× |" in text


def test_the_loop_of_generate_on_record_has_its_cost_and_the_gain_over_it(tmp_path):
    head, *_, last = (MEASUREMENTS / "naive.jsonl").read_text().splitlines()
    kept = json.loads(last)
    kept["results"]["ways"][1]["gain"] = {"median": 3.0, "low": 2.0, "high": 4.0}
    (tmp_path / "naive.jsonl").write_text(f"{head}\n{json.dumps(kept)}\n")

    text = report(tmp_path)

    assert "| transformers.generate in a loop | 104 (97.9 to 109) | – |" in text
    assert "| the core, one request at a time | 23.7 (23.6 to 25.3) | 3.00× [2.00 to 4.00] |" in text


def test_the_speed_of_one_stream_is_with_the_model_and_machine_that_were_timed(tmp_path):
    timed = json.loads((MEASUREMENTS / "stages.json").read_text())
    timed |= {"model": "x", "token_ms": 4.0, "machine": {"cpus": 96, "processor": "P"}}
    (tmp_path / "stages.json").write_text(json.dumps(timed))

    assert "Here: 250 tokens a second on one stream, with x on 96 CPUs of P, which" in report(tmp_path)


def limit_file(folder, profile, highest, **options):
    """A finished search for the highest load of `profile`."""
    figures = ("req_s", "out_tok_s", "ttft_p50_ms", "ttft_p99_ms", "e2e_p50_ms", "e2e_p99_ms", "slowest_stream_tok_s")
    one = dict.fromkeys(("median", "low", "high"), 8.5)
    head = {
        "measurement": "limits",
        "settings": {"model": {"name": "m", "compute": "int4-int8"}, "options": options},
        "machine": {"processor": "P", "cpus": 3, "kernels": "avx2", "python": "3.11"},
        "started": "2026-01-02T03:04:05+00:00",
    }
    load = {"offered": 7, "rounds": 3, "kept": 3, "figures": dict.fromkeys(figures, one)}
    results = {
        "profile": profile, "offered": "at once", "promise": "what was asked",
        "highest": dict.fromkeys(("median", "low", "high"), highest), "loads": [load],
    }  # fmt: skip
    lines = [json.dumps(head), json.dumps({"results": results, "finished": "now"})]
    (folder / f"{profile}.jsonl").write_text("\n".join(lines))


def test_a_finished_search_for_the_most_query_rewrites_gives_their_rate(tmp_path):
    limit_file(tmp_path, "rewrite", 7.0, p99_ms=300.0)

    text = report(tmp_path).split("## Query rewriting")[1].split("## ")[0]

    assert "| AIO, m (int4-int8) on 3 CPUs | P | 7 | 300 ms |" in text
    assert "| 7       |         3 of 3 |" in text
    assert "The most with what was asked: 7 (7 to 7 over the rounds)." in text
    assert "Measured on 2026-01-02: 3 CPUs of P" in text
    assert "| AIO, a model of 1B | – | not measured |" in text


def test_a_finished_search_for_the_most_voice_bots_gives_their_number(tmp_path):
    limit_file(tmp_path, "voice", 7.0)

    text = report(tmp_path).split("## Voice bot")[1].split("## ")[0]

    assert "The profile here with m (int4-int8) on 3 CPUs:" in text
    assert "The most with what was asked: 7 (7 to 7 over the rounds)." in text


def test_before_and_after_are_the_ends_of_the_ladder_on_one_load(tmp_path):
    (tmp_path / "ablation.jsonl").write_bytes((MEASUREMENTS / "ablation.jsonl").read_bytes())
    ladder = json.loads((tmp_path / "ablation.jsonl").read_text().splitlines()[-1])["results"]["ladder"]
    first, last = (rung["figures"]["out_tok_s"]["median"] for rung in (ladder[2], ladder[-1]))
    assert [rung["small"] for rung in ladder[:3]] == [True, True, False]

    text = report(tmp_path).split("## Before and after")[1]

    assert f"| 12 k | 45 k | {first:.1f} before, {last:.0f} after (output tokens/s) |" in text
    assert f"| $0.12 | $0.03 | {first / last:.2f} times the cost before (per output token) |" in text
    running = [rung["figures"]["running_mean"]["median"] / 16 for rung in (ladder[2], ladder[-1])]
    assert f"| {running[0]:.0%} before, {running[1]:.0%} after (of the 16 requests in flight) |" in text
    rows = [json.loads(line)["row"] for line in (tmp_path / "ablation.jsonl").read_text().splitlines()[1:-1]]
    late = [
        statistics.median(row["e2e_p90_ms"] for row in rows if row["arm"] == rung["configuration"])
        for rung in (ladder[2], ladder[-1])
    ]
    assert f"| 210 | 68 | {late[0]:,.0f} before, {late[1]:,.0f} after (P90 of whole answers) |" in text


def test_a_mark_of_a_small_load_is_explained_with_the_files_own_load(tmp_path):
    text = (MEASUREMENTS / "ablation.jsonl").read_text()
    changed = text.replace('"small_requests":4,"small_concurrency":2', '"small_requests":6,"small_concurrency":3', 1)
    (tmp_path / "ablation.jsonl").write_text(changed)
    page = report(tmp_path)
    assert " ¹ " in page
    assert "Rows with ¹ are on a small load (6 requests, 3 in flight)." in page

    (tmp_path / "ablation.jsonl").write_text(text.replace('"small":true', '"small":false'))
    assert "¹" not in report(tmp_path)


def test_the_gain_over_the_loop_of_one_request_has_the_interval_of_the_rounds(tmp_path):
    head, *_, last = (MEASUREMENTS / "sweep.jsonl").read_text().splitlines()
    results = json.loads(last)["results"]
    results["knee"] = 4
    point = next(point for point in results["points"] if point["concurrency"] == 4)
    point["gain"] = {"median": 3.0, "low": 2.5, "high": 3.6}
    (tmp_path / "sweep.jsonl").write_text(f"{head}\n{json.dumps({'results': results})}\n")

    assert "| 3.00× [2.50 to 3.60] |" in report(tmp_path)
