"""What requests do to each other, on a core whose steps take known time."""

import pytest

from benchmarks.core.interference import InterferenceOptions, interfere, results_of
from benchmarks.report.measurement import Measurement
from gateway.planning.load_test import CoreTarget
from gateway.planning.load_test.run import AskError
from inference_core.transport.core_thread import ThreadCoreClient
from tests.gateway.planning.load_test.word_tokenizer import WordTokenizer
from tests.inference_core.hash_model import hash_core

OPTIONS = InterferenceOptions(
    rounds=2, streams=3, long_words=600, quiet_tokens=5, levels=(0, 2), probes=2, prefix_words=100, pairs=2
)


@pytest.fixture
async def target():
    client = ThreadCoreClient(lambda: hash_core("m", slabs=256, max_context=8192))
    await client.start()
    yield CoreTarget(client, WordTokenizer(), "m")
    await client.close()


async def test_every_part_is_measured_in_every_round_and_no_stream_is_left(target):
    measurement = Measurement.begin("interference", {})

    results = await interfere(target, OPTIONS, measurement)

    parts = [(row["round"], row["part"], row.get("tuned", row.get("streams"))) for row in measurement.rows]
    once = [("long prompt", False), ("long prompt", True), ("shared prefix", None), ("occupancy", 0), ("occupancy", 2)]
    assert parts == [(turn, *part) for turn in range(2) for part in once]
    assert [(long.tuned, long.p99_ratio is not None) for long in results.long_prompts] == [(False, True), (True, True)]
    for long in results.long_prompts:
        assert long.beside_p50.median <= long.beside_p95.median <= long.beside_p99.median
    assert [joining.streams for joining in results.occupancy] == [0, 2]
    (model,) = (await target.client.stats()).models
    assert (model.running, model.waiting) == (0, 0)


async def test_all_streams_are_timed_before_and_during_the_long_prompt(target):
    measurement = Measurement.begin("interference", {})

    await interfere(target, OPTIONS, measurement)

    for row in measurement.rows:
        if row["part"] == "long prompt":
            assert row["quiet_gaps"] >= 3 * 5
            # 600 words take three chunks of 256 tokens: three steps that the streams share.
            assert row["beside_gaps"] >= 3 * 3


async def test_the_tuner_is_on_during_the_second_long_prompt_alone(target):
    changes, set_knobs = [], target.client.set_knobs

    async def noting(given, *rest, **named):
        changes.append(dict(given))
        return await set_knobs(given, *rest, **named)

    target.client.set_knobs = noting
    before = (await target.client.set_knobs({})).knobs
    options = InterferenceOptions(rounds=1, streams=1, long_words=10, levels=(0,), probes=1)

    await interfere(target, options, Measurement.begin("interference", {}))

    assert changes[1:] == [{"auto_tune": False}, {"auto_tune": None}, {"auto_tune": True}, {"auto_tune": None}]
    assert (await set_knobs({})).knobs == before


async def test_only_the_warm_prompts_hit_the_prefix_cache(target):
    options = InterferenceOptions(rounds=1, streams=1, long_words=10, levels=(0,), probes=1, prefix_words=320, pairs=3)

    await interfere(target, options, Measurement.begin("interference", {}))

    (model,) = (await target.client.stats()).models
    # 288 shared words: 18 blocks of 16, for each of three warm prompts.
    assert model.prefix_hit_tokens == 3 * 288


async def test_streams_that_end_too_soon_are_an_error_and_no_wait_for_ever(target, monkeypatch):
    monkeypatch.setattr("benchmarks.core.interference._ENDLESS", 10)
    options = InterferenceOptions(rounds=1, streams=2, long_words=10, quiet_tokens=50, levels=(0,))

    with pytest.raises(AskError, match="a stream of 10 tokens ended before all streams had"):
        await interfere(target, options, Measurement.begin("interference", {}))


async def test_an_interrupted_measurement_goes_on(target, tmp_path):
    path = tmp_path / "interference.jsonl"
    await interfere(target, OPTIONS, Measurement.begin("interference", {}, path))
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:9]))  # the head and eight of ten rows
    lines = []

    await interfere(target, OPTIONS, Measurement.begin("interference", {}, path), lines.append)

    assert lines == ["round 2/2: part occupancy, streams 0", "round 2/2: part occupancy, streams 2"]


def test_ratios_are_of_rounds():
    def rows(turn, quiet, beside, cold, warm):
        return [
            {
                "part": "long prompt",
                "tuned": False,
                "round": turn,
                "quiet_itl_p50_ms": 1.0,
                "beside_itl_p50_ms": 1.0,
                "quiet_itl_p99_ms": quiet,
                "beside_itl_p99_ms": beside,
                "long_ttft_ms": 100.0,
            },
            {"part": "shared prefix", "round": turn, "cold_ttft_p50_ms": cold, "warm_ttft_p50_ms": warm},
        ]

    results = results_of([*rows(1, 30.0, 45.0, 60.0, 10.0), *rows(0, 10.0, 20.0, 100.0, 20.0)])

    p99, lower = results.long_prompts[0].p99_ratio, results.shared_prefix.times_lower
    assert (p99.median, p99.low, p99.high) == pytest.approx((32.5 / 20, 1.5, 2.0))
    assert (lower.median, lower.low, lower.high) == pytest.approx((80 / 15, 5.0, 6.0))


@pytest.mark.parametrize(
    ("field", "value"), [("rounds", 0), ("quiet_tokens", 1), ("levels", (-1,)), ("levels", ()), ("shared_percent", 100)]
)
def test_options_out_of_range_are_refused_by_name(field, value):
    with pytest.raises(ValueError, match=f"{field} (is|are)"):
        InterferenceOptions(**{field: value})
