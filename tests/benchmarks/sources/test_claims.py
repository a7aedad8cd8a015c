"""The table of the sources' single figures: ours come from stored measurements, and there are none without them."""

import hashlib
import json
import re
import shutil
import statistics
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.core.batching_steps import BatchingOptions, StepCounts, count_steps
from benchmarks.core.speculation import SpeculationResults
from benchmarks.report.measurement import Measurement, read_results, rows_of
from benchmarks.sources.claims import NOT_MEASURED, card_shares, claims, newest_proxy, whole_rates
from benchmarks.sources.origins import Origin, in_words, measurements_of, origin_of, record_measured

MEASUREMENTS = Path(__file__).parents[3] / "docs" / "measurements"


def row(name: str, folder: Path = MEASUREMENTS) -> Any:
    return next(one for one in claims(folder) if one.name == name)


def changed(folder: Path, name: str, change: Any) -> None:
    """A measurement in `folder` whose results went through `change`."""
    *lines, last = (MEASUREMENTS / name).read_text().splitlines()
    found = json.loads(last)
    change(found["results"])
    (folder / name).write_text("\n".join([*lines, json.dumps(found)]))


def test_without_measurements_every_claim_is_there_and_none_has_a_figure_of_ours(tmp_path: Path) -> None:
    names = {one.name for one in claims(MEASUREMENTS)}
    found = claims(tmp_path)
    assert {one.here for one in found} == {NOT_MEASURED}
    assert len(found) >= 15
    assert all(one.source for one in found)
    assert len(names) == len(claims(MEASUREMENTS))


def test_every_claim_of_which_there_is_a_measurement_names_file_commit_and_day() -> None:
    measured = [one for one in claims(MEASUREMENTS) if one.here != NOT_MEASURED]
    assert len(measured) >= 16
    for one in measured:
        if one.name.endswith("on the first day"):
            assert "`python -m benchmarks replay" in one.setting
            continue
        assert re.search(r"\.jsonl, .*20\d\d-\d\d-\d\d, (commit|stored by) [0-9a-f]{12}", one.setting), one.name


def test_the_gain_of_batching_is_explained_by_the_measured_step(tmp_path: Path) -> None:
    shutil.copy(MEASUREMENTS / "ablation.jsonl", tmp_path)
    steps = [
        {"model": "m", "step": "decode", "sequences": size, "total_ms": ms, "attention_ms": 1.0}
        for size, ms in ((8, 10.0), (32, 20.0))
    ]
    (tmp_path / "step.jsonl").write_text("\n".join(map(json.dumps, steps)))
    found = row("continuous batching, throughput", tmp_path)
    assert "a step of 32 takes 2.00 times one of 8 on this CPU: 4 times the sequences give 2.00×" in found.why
    assert found.here.startswith("1.31×")
    assert "1.07×" in found.here


def test_a_method_that_loses_more_than_rounding_to_nearest_is_not_recommended(tmp_path: Path) -> None:
    def sums_of_gptq(right: int) -> str:
        def change(results: dict[str, Any]) -> None:
            for one in results["rows"]:
                one["perplexity_rise"] = 0.1
                one["right"] = right if one["way"].startswith("GPTQ") else 50

        changed(tmp_path, "quantised.jsonl", change)
        return row("GPTQ, W4A16: memory; loss; speed", tmp_path).why

    assert "worse than rounding to nearest (below) in right sums, so not recommended" in sums_of_gptq(49)
    assert "not recommended" not in sums_of_gptq(50)


def test_figures_of_a_row_are_those_of_its_file(tmp_path: Path) -> None:
    def cheap(results: dict[str, Any]) -> None:
        for one in results["savings"]:
            one["cost_at_98"], one["lottery_cost_at_98"] = 0.25, 0.5

    changed(tmp_path, "savings.jsonl", cheap)
    found = row("saving by cheap answers that agree (no routing by the prompt), and times cheaper", tmp_path)
    assert found.here.startswith("75% to 75% (")
    assert found.here.endswith("4.0 to 4.0 times")
    assert "in hindsight save 50% to 50%" in found.why


def test_a_rerun_of_what_is_counted_falls_within_a_tenth_of_the_record(tmp_path: Path) -> None:
    """TB-10, of a measurement that nothing but the code can move."""
    stored = read_results(MEASUREMENTS, "batching-steps", StepCounts)
    assert stored is not None
    again = count_steps(BatchingOptions(), Measurement.begin("batching-steps", {}, tmp_path / "again.jsonl"))
    for before, now in zip(stored[1].counts, again.counts, strict=True):
        assert (now.mode, now.callers, now.output_tokens) == (before.mode, before.callers, before.output_tokens)
        assert now.steps == pytest.approx(before.steps, rel=0.1)
        assert now.gain == pytest.approx(before.gain, rel=0.1)


def test_the_rate_is_of_whole_answers_of_the_gateway_in_closed_loops(tmp_path: Path) -> None:
    """GW-08."""
    rows = [
        {"target": target, "stream": stream, "loop": loop, "req_s": place}
        for place, (target, stream, loop) in enumerate(product(("upstream", "aio"), (True, False), ("open", "closed")))
    ]
    path = tmp_path / "proxy.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert whole_rates(path) == [7]


def test_more_than_a_thousand_whole_answers_a_second_are_on_record_with_a_stub_engine() -> None:
    """GW-08; the newest record, with 8 requests in flight. With one in flight a core of that machine gives 999."""
    newest = newest_proxy(MEASUREMENTS)
    assert newest is not None
    days = {path.name: origin_of(path).day for path in MEASUREMENTS.glob("proxy*.jsonl")}
    assert days[newest.name] == max(days.values())
    rates = whole_rates(newest)
    assert max(rates) > 1000
    found = row("answers a second, not streamed")
    assert found.here.startswith(f"{min(rates):,.0f} to {max(rates):,.0f} with 1 to 8 in flight")
    assert [name for name in days if name in found.setting] == [newest.name]


def test_the_newest_record_counts_and_not_the_best(tmp_path: Path) -> None:
    for name, rate in (("proxy.jsonl", 5000.0), ("proxy-b.jsonl", 10.0)):
        written = {"target": "aio", "stream": False, "loop": "closed", "req_s": rate}
        (tmp_path / name).write_text(json.dumps(written) + "\n")
    recorded = {
        name: Origin(commit="c", day=day, sha256=hashlib.sha256((tmp_path / name).read_bytes()).hexdigest())
        for name, day in (("proxy.jsonl", "2026-01-01"), ("proxy-b.jsonl", "2026-01-02"))
    }
    (tmp_path / "origins.json").write_bytes(msgspec.json.encode(recorded))
    assert row("answers a second, not streamed", tmp_path).here == "10 to 10 with 1 to 8 in flight"


def test_the_gain_of_fewer_bits_on_a_card_is_that_of_its_rows(tmp_path: Path) -> None:
    shutil.copy(MEASUREMENTS / "quantised.jsonl", tmp_path)
    speeds = {"dense": 100.0, "int4": 150.0, "int8": 125.0}
    stages = [
        {"stage": f"8b-{compute}-one-stream", "shape": "llama-3.1-8b", "compute": compute, "out_tok_s": speed}
        for compute, speed in speeds.items()
    ]
    stages += [
        {
            "stage": f"8b-{compute}-256",
            "shape": "llama-3.1-8b",
            "compute": compute,
            "concurrency": 64,
            "out_tok_s": speed,
        }
        for compute, speed in {"dense": 1000.0, "int8": 700.0}.items()
    ]
    (tmp_path / "gpu-h200.jsonl").write_text("\n".join(map(json.dumps, stages)))
    for name, gain in (
        ("AWQ, W4A16", "1.50× of BF16, one answer at a time on one H200, with 64 answers at a time not measured"),
        ("SmoothQuant, W8A8", "1.25× of BF16, one answer at a time on one H200, 0.70× with 64 answers at a time"),
        ("FP8, E4M3", NOT_MEASURED),
    ):
        assert f"speed {gain}" in row(f"{name}: memory; loss; speed", tmp_path).here
    (tmp_path / "gpu-h200.jsonl").unlink()
    assert "speed not measured" in row("AWQ, W4A16: memory; loss; speed", tmp_path).here


def test_what_a_card_reaches_is_of_its_data_sheet(tmp_path: Path) -> None:
    """A step of 15.01 GB, all weights but the table of embeddings, in twice the time that 4.8 TB/s allow."""
    rows = [
        {"machine": {"gpu": "NVIDIA H200"}},
        {"stage": "8b-bf16-one-stream", "itl_mean_ms": 2 * 15.01 / 4.8},
    ]
    (tmp_path / "gpu-h200.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert card_shares(tmp_path) == {"one answer of an 8B in BF16, bandwidth": pytest.approx(0.5, rel=0.01)}


def test_the_first_days_routing_is_shown_with_the_quality_that_it_loses(tmp_path: Path) -> None:
    folder = tmp_path / "measurements"
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "quality.md").write_text("| arena, 246 held out | 19% / 48% | 84% / 89% | more |\n")
    found = row("saving by routing by complexity, on the first day", folder)
    assert found.here == "arena 81% at 48% of the quality"


def test_on_record_the_loops_lag_is_below_twenty_milliseconds_with_a_core_and_under_large_bodies() -> None:
    """GW-07, of the runs on record."""
    with_a_core = read_results(MEASUREMENTS, "core-lag", dict[str, Any])
    assert with_a_core is not None
    assert with_a_core[1]["p99_ms"] < 20
    bodies = rows_of(MEASUREMENTS / "loop-lag.jsonl")
    measured = [row for row in bodies if "p99_ms" in row]
    assert len(measured) >= 4
    assert max(row["p99_ms"] for row in measured) < 20
    assert min(row["body_bytes"] for row in measured) > 3_600_000


def test_voice_bots_hit_nine_tenths_of_their_prompts_where_answers_are_shared_too() -> None:
    """KV-05, of the run on record through a gateway."""
    found = read_results(MEASUREMENTS, "prefix-hits", dict[str, list[dict[str, Any]]])
    assert found is not None
    shares = {one["arithmetic"]: one for one in found[1]["hits"]}
    assert shares["exact"]["share"] > 0.9
    assert shares["fast"]["share"] > 0.85
    assert 1850 < shares["exact"]["prompt_tokens"] < 2050


@pytest.mark.parametrize("arithmetic", ["fast", "exact"])
def test_a_later_turn_hits_the_whole_blocks_before_it_but_for_answers_after_fast_prompts(arithmetic: str) -> None:
    """KV-05: why `fast` stays below nine tenths: of a turn it hits the last prompt, and computes its answer again."""
    rows = Measurement.read(MEASUREMENTS / "prefix-hits.jsonl").rows
    turns = {(row["call"], row["turn"]): row for row in rows if row["arithmetic"] == arithmetic}
    assert len(turns) == 32
    for (call, turn), row in turns.items():
        if turn > 1:
            before = turns[call, turn - 1]
            read = before["prompt_tokens"] + (before["answer_tokens"] if arithmetic == "exact" else 0)
            assert row["cached_tokens"] == read // 16 * 16, (call, turn)


def test_what_drafts_gain_stands_next_to_the_sources_two_to_five_times() -> None:
    """SD-05: of every measured load with one request at a time."""
    found = row("drafts, times the speed without")
    for said in ("2 to 3 times", "2 to 5 times", "up to 2 times a 30B", "at most 2.84 times"):
        assert said in found.source
    stored = [read_results(MEASUREMENTS, name, SpeculationResults) for name in ("draft", "workloads")]
    gains = [one for each in stored if each for one in each[1].worth if one.level == 1 and one.mode == "auto"]
    assert len(gains) >= 6
    for gain in gains:
        assert gain.ratio is not None
        assert f"{gain.workload} {gain.ratio.median:.2f}×" in found.here


def test_every_stored_measurement_has_a_commit_and_a_day() -> None:
    for path in measurements_of(MEASUREMENTS):
        found = origin_of(path)
        assert re.fullmatch(r"[0-9a-f]{12}\+?", found.commit), path.name
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", found.day), path.name


def test_rows_that_were_measured_again_without_a_word_are_of_no_known_commit(tmp_path: Path) -> None:
    path = tmp_path / "step.jsonl"
    path.write_text('{"step": "decode"}\n')
    assert in_words(path) == "step.jsonl"
    record_measured([path])
    assert re.search(r"step.jsonl, .* CPUs of .*, 20\d\d-\d\d-\d\d, commit [0-9a-f]{12}", in_words(path))
    path.write_text('{"step": "prefill"}\n')
    assert in_words(path) == "step.jsonl"


def test_the_gain_over_one_request_at_a_time_is_that_of_the_knee_and_of_the_naive_loop(tmp_path: Path) -> None:
    def knee_of_four(results: dict[str, Any]) -> None:
        results["knee"] = 4
        point = next(point for point in results["points"] if point["concurrency"] == 4)
        point["gain"] = {"median": 3.0, "low": 2.5, "high": 3.6}

    changed(tmp_path, "sweep.jsonl", knee_of_four)
    assert (
        row("many requests at a time over one", tmp_path).here
        == "3.00× [2.50 to 3.60] with 4 in flight, the knee of the sweep"
    )

    def naive(results: dict[str, Any]) -> None:
        results["ways"][1]["gain"] = {"median": 2.0, "low": 2.0, "high": 2.0}

    changed(tmp_path, "naive.jsonl", naive)
    assert row("many requests at a time over one", tmp_path).here.endswith("and 2.00× with one, in CPU time")


def test_the_most_voice_bots_are_those_that_the_search_found(tmp_path: Path) -> None:
    changed(tmp_path, "voice.jsonl", lambda results: results["highest"].update(median=7, low=6, high=9))

    found = row("voice bots at a time, each above 30 tokens a second", tmp_path)

    assert found.here == "7 (6 to 9 over the rounds)"
    assert found.setting.startswith("smollm2-int4; voice.jsonl, 2 CPUs of")


def test_the_most_query_rewrites_are_those_that_the_search_found(tmp_path: Path) -> None:
    changed(tmp_path, "rewrite.jsonl", lambda results: results["highest"].update(median=7))

    assert row("answers a second, not streamed", tmp_path).here == "with smollm2-int4 7 within 95 ms"


def test_before_and_after_are_the_ends_of_the_ladder_on_one_load(tmp_path: Path) -> None:
    def ends(results: dict[str, Any]) -> None:
        ladder = results["ladder"]
        assert [rung["small"] for rung in ladder[:3]] == [True, True, False]
        for rung, speed in ((ladder[2], 50.0), (ladder[-1], 200.0)):
            rung["figures"]["out_tok_s"] = dict.fromkeys(("median", "low", "high"), speed)

    changed(tmp_path, "ablation.jsonl", ends)
    labels = [
        rung["configuration"]
        for rung in json.loads((tmp_path / "ablation.jsonl").read_text().splitlines()[-1])["results"]["ladder"]
    ]
    rows = rows_of(tmp_path / "ablation.jsonl")
    late = [
        statistics.median(one["e2e_p90_ms"] for one in rows if one["arm"] == label) for label in (labels[2], labels[-1])
    ]

    found = row("before and after: throughput; cost; latency; use", tmp_path).here

    assert found.startswith("50.0 and 200 output tokens/s; 0.25 times the cost of a token; ")
    assert f"P90 of whole answers {late[0]:,.0f} and {late[1]:,.0f} ms" in found
