"""Every profile of live knobs serves the same load, and the start is put back."""

import pytest

from benchmarks.core.profiles import FIGURES, ProfileOptions, compare_profiles, results_of
from benchmarks.report.measurement import Measurement
from benchmarks.report.tables import profiles_table
from gateway.runtime.cores.knob_profiles import PROFILES
from inference_core.kv_cache.layout import KVLayout

LAYOUT = KVLayout(num_layers=1, num_kv_heads=1, head_dim=2, block_size=16, dtype="float32")
NAMES = ["throughput", "latency", "cost", "tail", "catalogue"]


async def test_the_same_load_is_served_under_every_profile_and_the_start_is_put_back(target, monkeypatch):
    knobs, prompts, ask = [], [], target.ask
    before = (await target.client.stats()).models[0].knobs

    async def remembering(job, due, timing):
        knobs.append((await target.client.stats()).models[0].knobs)
        prompts.append(job.prompt)
        await ask(job, due, timing)

    monkeypatch.setattr(target, "ask", remembering)
    measurement = Measurement.begin("profiles", {})
    options = ProfileOptions(rounds=2, requests=16, concurrency=8)

    results = await compare_profiles(target, "m", LAYOUT, options, measurement)

    turns = [*NAMES, *NAMES[::-1]]
    assert [row["profile"] for row in measurement.rows] == turns
    for place, name in enumerate(turns):
        part = slice(1 + 16 * place, 1 + 16 * (place + 1))
        assert {each.prefill_chunk for each in knobs[part]} == {PROFILES[name].core["prefill_chunk"] or 256}
        first = 1 + 16 * len(NAMES) * (place // len(NAMES))
        assert sorted(prompts[part]) == sorted(prompts[first : first + 16])
    assert (await target.client.stats()).models[0].knobs == before
    assert all(row["ok"] == 16 and row["kv_mb_most"] >= row["kv_mb_mean"] for row in measurement.rows)
    assert len(profiles_table(results).splitlines()) == 2 + 5


def test_a_gain_is_over_the_catalogues_knobs_in_the_same_round():
    rows = [
        dict.fromkeys(FIGURES, 1.0) | {"round": turn, "profile": name, "requests": 16, "ok": 15, "out_tok_s": speed}
        for name, speeds in (("catalogue", (10.0, 100.0)), ("throughput", (12.0, 120.0)))
        for turn, speed in enumerate(speeds)
    ]

    first, *_, last = results_of(rows).profiles

    assert (first.profile, first.gain.median, first.failed) == ("throughput", pytest.approx(1.2), 2)
    assert (last.profile, last.gain) == ("catalogue", None)


@pytest.mark.parametrize(("field", "value"), [("rounds", 0), ("requests", 20), ("concurrency", 0)])
def test_options_out_of_range_are_refused_by_name(field, value):
    with pytest.raises(ValueError, match=f"{field} is {value}"):
        ProfileOptions(**{field: value})
