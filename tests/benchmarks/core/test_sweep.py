"""The sweep measures every level in every round once, across interruptions, and draws its curve from medians."""

import pytest

from benchmarks.core.sweep import SweepOptions, measure_sweep, results_of
from benchmarks.report.markdown import sweep_table
from benchmarks.report.measurement import Measurement

OPTIONS = SweepOptions(levels=(1, 2, 4), rounds=2, requests=3, prompt_tokens=5, output_tokens=3)


async def test_every_level_is_measured_in_every_round_with_its_requests(target):
    measurement = Measurement.begin("sweep", {})

    results = await measure_sweep(target, OPTIONS, measurement)

    seen = [(row["round"], row["concurrency"], row["ok"]) for row in measurement.rows]
    assert seen == [(0, 1, 3), (0, 2, 4), (0, 4, 8), (1, 1, 3), (1, 2, 4), (1, 4, 8)]
    assert [point.concurrency for point in results.points] == [1, 2, 4]
    assert results.knee in (1, 2, 4)


async def test_a_sweep_that_was_cut_short_measures_only_what_it_lacks(target, tmp_path):
    path = tmp_path / "sweep.jsonl"
    await measure_sweep(target, OPTIONS, Measurement.begin("sweep", {}, path))
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:5]))  # the head and four rows
    labels = []

    await measure_sweep(target, OPTIONS, Measurement.begin("sweep", {}, path), lambda now: labels.append(now.label))

    assert list(dict.fromkeys(labels)) == ["concurrency=2", "concurrency=4"]
    assert Measurement.read(path).results["points"][0]["concurrency"] == 1


async def test_levels_of_a_round_have_the_same_prompts_and_share_no_cached_prefix(target, monkeypatch):
    asked = []
    ask = target.ask

    async def remembering(job, due, timing):
        asked.append((job.prompt, job.salt))
        await ask(job, due, timing)

    monkeypatch.setattr(target, "ask", remembering)

    await measure_sweep(
        target, SweepOptions(levels=(1, 2, 4), rounds=2, requests=8, prompt_tokens=20), Measurement.begin("s", {})
    )

    assert len(asked) == len(set(asked)) == 2 + 2 * 3 * 8
    loads = [{prompt for prompt, _ in asked[start : start + 8]} for start in range(2, len(asked), 8)]
    assert loads[0] == loads[1] == loads[2]
    assert not loads[0] & loads[3]


async def test_every_round_begins_with_the_loop_of_one_request_whatever_the_levels(target):
    measurement = Measurement.begin("sweep", {})

    results = await measure_sweep(
        target, SweepOptions(levels=(2, 3, 4), rounds=2, requests=2, output_tokens=2), measurement
    )

    assert [row["concurrency"] for row in measurement.rows] == [1, 2, 3, 4] * 2
    assert [point.gain is None for point in results.points] == [True, False, False, False]


def row(turn, level, speed, latency=1.0):
    rest = dict.fromkeys(("ttft_p50_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p99_ms"))
    return {"round": turn, "concurrency": level, "out_tok_s": speed, "e2e_p50_ms": latency, **rest}


def test_the_curve_is_of_medians_and_keeps_the_range():
    rows = [row(turn, 1, s, 100.0) for turn, s in enumerate((90.0, 100.0, 500.0))]
    rows += [row(0, 4, 400.0, 100.0), row(0, 16, 410.0, 400.0), row(0, 64, 405.0, 1600.0)]

    results = results_of(rows)

    speed = results.points[0].figures["out_tok_s"]
    assert (speed.median, speed.low, speed.high) == (100, 90, 500)
    assert (results.knee, results.saturation) == (4, pytest.approx(4.1))
    assert [point.gain for point in results.points] == [None] * 4


def test_gains_are_over_the_loop_of_one_request_in_the_same_round():
    rows = [row(0, 1, 10.0), row(1, 1, 20.0), row(0, 2, 20.0), row(1, 2, 40.0), row(0, 4, 30.0), row(1, 4, 90.0)]

    _, two, four = (point.gain for point in results_of(rows).points)

    assert (two.median, two.low, two.high) == pytest.approx((2.0, 2.0, 2.0))
    assert four.median == pytest.approx(13.5**0.5)
    assert four.low < 3 < 4.5 < four.high
    assert "2.00×" in sweep_table(results_of(rows))


@pytest.mark.parametrize(("field", "value"), [("levels", (1, 2)), ("levels", (0, 1, 2)), ("rounds", 0)])
def test_options_out_of_range_are_refused_by_name(field, value):
    with pytest.raises(ValueError, match=f"{field} (is|are)"):
        SweepOptions(**{field: value})
