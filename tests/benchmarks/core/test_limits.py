"""The search finds the highest load that keeps its promise, and each profile offers the load that it names."""

import pytest

from benchmarks.core.limits import LimitOptions, _kept, _load, find_limit, highest
from benchmarks.report.markdown import limit_table
from benchmarks.report.measurement import Measurement


@pytest.mark.parametrize("limit", [0, 1, 2, 5, 9, 37, 200, 256, 1000])
async def test_the_search_ends_within_a_tenth_below_the_limit(limit):
    tried = []

    async def keeps(load):
        tried.append(load)
        return load <= limit

    found = await highest(keeps, 256)

    most = min(limit, 256)
    assert most - max(0, most // 10) <= found <= most
    assert len(tried) <= 14
    assert max(tried) <= 256


@pytest.mark.parametrize(("tokens_s", "found"), [(1e-6, 4), (1e9, 0)])
async def test_the_most_streams_that_are_fast_enough_are_found_in_every_round(target, tokens_s, found):
    options = LimitOptions(rounds=2, most=4, tokens_s=tokens_s, requests=1, prompt_tokens=4, output_tokens=3)
    measurement = Measurement.begin("limits", {})

    results = await find_limit(target, options, measurement)

    assert (results.highest.low, results.highest.high) == (found, found)
    assert all(row["kept"] is (found > 0) for row in measurement.rows)
    assert f"The most with every stream above {tokens_s:g} tokens/s" in limit_table(results)


@pytest.mark.parametrize(("p99_ms", "found"), [(1e9, 4), (1e-6, 0)])
async def test_the_highest_rate_within_the_99th_percentile_is_found(target, p99_ms, found):
    options = LimitOptions(profile="rewrite", rounds=1, most=4, p99_ms=p99_ms, requests=1, seconds=0.01)

    results = await find_limit(target, options, Measurement.begin("limits", {}))

    assert results.highest.median == found


def test_a_load_is_kept_by_its_slowest_answers_and_by_none_that_failed():
    """The sources' 95 ms at p99, and more than 30 tokens a second of every stream."""
    rewrites, voices = LimitOptions(profile="rewrite"), LimitOptions(profile="voice")
    asked = {"requests": 4, "ok": 4}
    late = asked | {"e2e_p50_ms": 10.0, "e2e_p99_ms": 95.1}
    slow = asked | {"slowest_stream_tok_s": 30.0}
    assert [_kept(rewrites, row) for row in (late, late | {"e2e_p99_ms": 95.0})] == [False, True]
    assert [_kept(voices, row) for row in (slow, slow | {"slowest_stream_tok_s": 30.1})] == [False, True]
    assert not _kept(rewrites, late | {"e2e_p99_ms": 95.0, "ok": 3})


def test_rewrites_are_short_and_arrive_at_their_rate():
    load = _load(LimitOptions(profile="rewrite", seconds=20.0), 50, seed=3)

    assert load.concurrency is None
    assert {len(job.prompt.split()) for job in load.jobs} == set(range(10, 21))
    assert {job.output_tokens for job in load.jobs} == set(range(10, 21))
    assert load.jobs[-1].due == pytest.approx(len(load.jobs) / 50, rel=0.15)


def test_voice_bots_hear_long_prompts_two_for_each_in_flight():
    load = _load(LimitOptions(), 8, seed=3)

    assert (load.concurrency, len(load.jobs)) == (8, 16)
    assert {(len(job.prompt.split()), job.output_tokens) for job in load.jobs} == {(1950, 200)}


@pytest.mark.parametrize(("field", "value"), [("rounds", 0), ("most", 0), ("p99_ms", 0.0), ("prompt_tokens", 0)])
def test_options_out_of_range_are_refused_by_name(field, value):
    with pytest.raises(ValueError, match=f"{field} is {value:g}"):
        LimitOptions(**{field: value})
