"""Every workload is measured apart in every mode, with the same requests, and ratios are of rounds."""

import json
from pathlib import Path

import pytest

from benchmarks.core.speculation import FIGURES, SpeculationOptions, results_of, speculate, workloads_table
from benchmarks.core.workloads import WorkloadTarget
from benchmarks.report.measurement import Measurement
from tests.benchmarks.core.test_workloads import ChatTokenizer

ROOT = Path(__file__).parents[3]
OPTIONS = SpeculationOptions(
    workloads=("chat", "code"), modes=("off", "auto", "on"), rounds=2, levels=(1, 2), requests=2, output_tokens=5
)


@pytest.fixture
def target(core_client):
    return WorkloadTarget(core_client, ChatTokenizer(), "m")


async def test_each_workload_has_a_row_of_its_own_in_every_mode_and_round(target):
    measurement = Measurement.begin("speculation", {})

    results = await speculate(target, OPTIONS, measurement)

    loads = [(name, level) for name in ("chat", "code") for level in (1, 2)]
    seen = [(row["round"], row["workload"], row["level"], row["mode"]) for row in measurement.rows]
    modes = [("off", "auto", "on"), ("on", "auto", "off")]
    assert seen == [(turn, *load, mode) for turn in (0, 1) for load in loads for mode in modes[turn]]
    assert [(row.workload, row.level, row.mode) for row in results.worth] == [
        (*load, mode) for load in loads for mode in ("auto", "on")
    ]
    assert {row.pairs for row in results.worth} == {2}, "a row has the rounds of its own load alone"
    assert len(workloads_table(results).splitlines()) == 2 + 12


async def test_modes_set_the_knobs_that_they_name_and_the_start_is_put_back(target):
    changes, set_knobs = [], target.client.set_knobs

    async def noting(given, *rest, **named):
        changes.append(dict(given))
        return await set_knobs(given, *rest, **named)

    target.client.set_knobs = noting
    options = SpeculationOptions(
        workloads=("chat",), modes=("off", "auto", "on"), rounds=1, levels=(1,), requests=1, output_tokens=2
    )

    await speculate(target, options, Measurement.begin("speculation", {}))

    assert changes == [
        {"speculation": "off"},
        {"speculation": "prompt_lookup", "draft_control": "adaptive"},
        {"speculation": "prompt_lookup", "draft_control": "fixed"},
        {"speculation": None, "draft_control": None},
    ]


async def test_all_modes_of_a_round_are_asked_the_same(target, monkeypatch):
    asked, ask = [], target.ask

    async def remembering(job, due, timing):
        asked.append((job.prompt, job.sampling.seed, job.salt))
        await ask(job, due, timing)

    monkeypatch.setattr(target, "ask", remembering)
    options = SpeculationOptions(
        workloads=("chat",), modes=("off", "on"), rounds=1, levels=(2,), requests=4, output_tokens=2
    )

    await speculate(target, options, Measurement.begin("speculation", {}))

    off, on = asked[1:5], asked[5:9]
    assert [job[:2] for job in off] == [job[:2] for job in on]
    assert not {job[2] for job in off} & {job[2] for job in on}


def rows(speeds):
    """Rows of two rounds: tokens per second by workload and mode."""
    return [
        dict.fromkeys((*FIGURES, "mean_output"), 1.0)
        | {"round": turn, "workload": name, "level": 1, "mode": mode, "out_tok_s": speed}
        | {"drafted": 10 * (mode != "off"), "accepted": 4 * (mode != "off"), "rounds": 8 * (mode != "off")}
        for (name, mode), pair in speeds.items()
        for turn, speed in enumerate(pair)
    ]


def test_ratios_are_to_no_drafts_in_the_same_round_and_workload():
    options = SpeculationOptions(workloads=("chat", "code"), modes=("off", "auto"), levels=(1,))
    speeds = {
        ("chat", "off"): (100, 50),
        ("chat", "auto"): (98, 49),
        ("code", "off"): (10, 10),
        ("code", "auto"): (20, 20),
    }

    chat, code = results_of(options, rows(speeds)).worth

    assert (chat.ratio.median, code.ratio.median) == pytest.approx((0.98, 2.0))
    assert (chat.accepted, chat.per_round) == (0.4, 1.5)


def test_one_round_has_no_interval():
    options = SpeculationOptions(workloads=("chat",), modes=("off", "auto"), levels=(1,))
    one = [row for row in rows({("chat", "off"): (1, 1), ("chat", "auto"): (1, 1)}) if not row["round"]]

    assert results_of(options, one).worth[0].ratio is None


@pytest.mark.parametrize(
    ("field", "value"), [("workloads", ("chat", "own")), ("modes", ("auto", "on")), ("levels", (0,)), ("requests", 0)]
)
def test_options_out_of_range_are_refused_by_name(field, value):
    with pytest.raises(ValueError, match=f"{field} (is|are)"):
        SpeculationOptions(**{field: value})


def test_the_pair_on_record_has_its_acceptance_and_it_is_that_of_its_rows():
    """SD-07: which model drafted for which, and the share of its tokens that were accepted, by workload."""
    lines = [json.loads(line) for line in (ROOT / "docs/measurements/draft.jsonl").read_text().splitlines()]
    settings, results = lines[0]["settings"], lines[-1]["results"]
    rows = [line["row"] for line in lines if "row" in line and line["row"]["drafts"]]
    assert settings["model"]["draft"] == settings["draft"]["name"] == "smollm2-int4"
    assert {worth["workload"] for worth in results["worth"]} == {row["workload"] for row in rows}
    for worth in results["worth"]:
        mine = [row for row in rows if row["workload"] == worth["workload"]]
        share = sum(row["accepted"] for row in mine) / sum(row["drafted"] for row in mine)
        assert worth["accepted"] == pytest.approx(share)
        assert 0.5 < share < 1.0
