"""Plans: never more replicas for less, the formulas' limits, the sources' figures within their bounds."""

import json
import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.planning.capacity.capacity import (
    KNOB_OBJECTIVES,
    Objectives,
    best_operation,
    cheapest,
    operation,
    plan,
    with_knobs,
)
from gateway.planning.capacity.replica_profile import profiles, replica_profile
from gateway.planning.capacity.workload import Arrival, PlanError, Workload, per_second, trace_workload
from gateway.runtime.cores.knob_profiles import CATALOGUE, PROFILES
from tests.gateway.planning.source_loads import TIERS, VOICE, daily, edge_nodes, voice_rows
from tiers.catalog.load import load_catalog

L4 = "llama-3.1-8b/awq-int4/l4"
MEASUREMENTS = Path(__file__).parents[3] / "docs" / "measurements"
loads = st.builds(
    Workload,
    rate=st.floats(0.01, 1e6),
    prompt_tokens=st.floats(1, 8000),
    output_tokens=st.floats(1, 2000),
    cached_share=st.floats(0, 0.95),
    prompt_cv=st.floats(0, 3),
)
names = st.sampled_from([*profiles(), L4, "llama-3.3-70b/fp8/8xh100"])
milliseconds = st.one_of(st.none(), st.floats(1, 60_000))
objectives = st.builds(
    lambda ttft, itl, e2e, quantile: Objectives(
        ttft_s=ttft and ttft / 1e3, itl_s=itl and itl / 1e3, e2e_s=e2e and e2e / 1e3, quantile=quantile
    ),
    milliseconds, milliseconds, milliseconds, st.floats(0.5, 0.999),
)  # fmt: skip


def replicas(name: str, load: Workload, wanted: Objectives) -> float:
    try:
        return plan(replica_profile(name), load, wanted).replicas
    except PlanError:
        return math.inf


@given(name=names, load=loads, wanted=objectives, more=st.floats(1, 100))
def test_a_higher_rate_never_takes_fewer_replicas(name, load, wanted, more):
    assert replicas(name, load.at(load.rate * more), wanted) >= replicas(name, load, wanted)


@given(
    name=names,
    load=loads,
    wanted=objectives,
    share=st.floats(0.1, 1),
    field=st.sampled_from(["ttft_s", "itl_s", "e2e_s"]),
)
def test_a_tighter_objective_never_takes_fewer_replicas(name, load, wanted, share, field):
    value = getattr(wanted, field)
    tighter = msgspec.structs.replace(wanted, **{field: 10.0 * share if value is None else value * share})
    assert replicas(name, load, tighter) >= replicas(name, load, wanted)


@given(name=names, load=loads, wanted=objectives)
def test_a_plan_keeps_its_objectives_and_carries_the_rate(name, load, wanted):
    try:
        found = plan(replica_profile(name), load, wanted)
    except PlanError:
        return
    assert found.replicas * found.each.rate >= load.rate * (1 - 1e-6)
    for value, most in (
        (found.each.ttft_s, wanted.ttft_s), (found.each.itl_s, wanted.itl_s), (found.each.e2e_s, wanted.e2e_s)
    ):  # fmt: skip
        assert most is None or value <= most


@given(name=names, load=loads, in_flight=st.floats(0.01, 255))
def test_rate_and_times_rise_with_the_batch_and_littles_law_holds(name, load, in_flight):
    here, beyond = (operation(replica_profile(name), load, n) for n in (in_flight, in_flight * 1.1))
    assert beyond.rate >= here.rate * (1 - 1e-12)
    assert beyond.itl_s >= here.itl_s
    assert beyond.ttft_s >= here.ttft_s * (1 - 1e-12)
    assert here.rate * load.output_tokens * here.itl_s == pytest.approx(in_flight)


def test_long_prompts_with_short_answers_leave_less_than_one_answer_decoding():
    load = Workload(rate=1, prompt_tokens=2000, output_tokens=20)
    found, bound = best_operation(replica_profile("smollm2-135m-int4-cpu"), load, Objectives(ttft_s=8, quantile=0.5))
    assert found.in_flight < 1
    assert bound.startswith(("TTFT", "prompts"))


def test_memory_bounds_the_batch():
    profile = msgspec.structs.replace(replica_profile(L4), kv_tokens=10_000)
    found, bound = best_operation(profile, Workload(rate=1, prompt_tokens=900, output_tokens=100), Objectives())
    assert (found.in_flight, bound) == (10, "memory")


def test_the_voice_bot_table_is_predicted_from_its_tokens_within_five_percent():
    rows = voice_rows()
    assert len(rows) == 18
    assert max(abs(row.from_tokens / row.stated - 1) for row in rows) < 0.05


def test_two_step_times_predict_the_voice_bot_table_within_twelve_percent():
    assert max(abs(row.from_step_times / row.stated - 1) for row in voice_rows()) < 0.12


def test_fifty_million_requests_a_day_are_579_a_second():
    assert round(per_second(50_000_000)) == 579
    found = plan(replica_profile(L4), Workload(rate=per_second(50_000_000), prompt_tokens=200, output_tokens=200))
    assert found.in_flight == pytest.approx(579 * found.each.e2e_s, rel=1e-3)


def test_source_003s_edge_takes_eighteen_nodes():
    assert edge_nodes(rate=45_000, share=0.8, node_rate=2_000) == 18
    assert edge_nodes(rate=2001, share=1.0, node_rate=2000) == 2
    edge = plan(replica_profile(L4), Workload(rate=0.8 * 45_000, prompt_tokens=20, output_tokens=20))
    assert edge.replicas == edge_nodes(45_000, 0.8, node_rate=edge.each.rate) > 1


def test_the_measured_profile_is_what_its_measurements_say():
    rows = [json.loads(line) for line in (MEASUREMENTS / "step.jsonl").read_text().splitlines() if line.strip()]
    decodes = [row for row in rows if row["step"] == "decode" and row["model"] == "smollm2-int4"]
    (chunk,) = (row for row in rows if row["step"] == "prompt chunk" and row["model"] == "smollm2-int4")
    n, total, attention = (
        np.array([row[key] for row in decodes], float) for key in ("sequences", "total_ms", "attention_ms")
    )
    (base, slope), *_ = np.linalg.lstsq(np.c_[1 / total, n / total], (total - attention) / total)
    (context,), *_ = np.linalg.lstsq((n * 160 / total)[:, None], attention / total)
    profile = replica_profile("smollm2-135m-int4-cpu")
    assert profile.base_s * 1e3 == pytest.approx(base, rel=0.01)
    assert profile.sequence_s * 1e3 == pytest.approx(slope, rel=0.01)
    assert profile.context_token_s * 1e3 == pytest.approx(context, rel=0.01)
    assert profile.prefill_s(256) * 1e3 == pytest.approx(chunk["total_ms"] - base, rel=0.01)


def test_the_measured_profile_has_the_knobs_and_the_cache_of_its_catalogue():
    core = load_catalog("laptop").core
    profile = replica_profile("smollm2-135m-int4-cpu")
    assert profile.chunk_tokens == core.knobs["prefill_chunk"]
    assert profile.max_sequences == core.knobs["max_num_seqs"]
    assert profile.kv_tokens == core.arena_bytes // 23_040


def test_ten_thousand_replicas_are_planned():
    assert plan(replica_profile(L4), Workload(rate=80_000, prompt_tokens=500, output_tokens=50)).replicas > 10_000


def test_the_knob_profiles_trade_replicas_for_latency():
    seventy = replica_profile("llama-3.3-70b/fp8/8xh100")
    load = Workload(rate=10_000, prompt_tokens=500, output_tokens=50)
    plans = {name: plan(with_knobs(seventy, name), load, wanted) for name, wanted in KNOB_OBJECTIVES.items()}
    assert plans.keys() == PROFILES.keys() - {CATALOGUE}
    assert plans["throughput"].replicas <= plans["cost"].replicas < plans["latency"].replicas < plans["tail"].replicas
    assert plans["tail"].each.itl_s < plans["throughput"].each.itl_s


def test_the_cheapest_profile_that_keeps_the_objectives_is_chosen():
    both = [replica_profile(f"llama-3.1-8b-voice-{card}") for card in ("l4", "a100")]
    slow_is_enough, fast_is_needed = Objectives(), Objectives(itl_s=0.02)
    cheap_l4 = [msgspec.structs.replace(both[0], usd_per_hour=0.01), both[1]]
    assert cheapest(cheap_l4, VOICE, slow_is_enough).profile == both[0].name
    assert cheapest(cheap_l4, VOICE, fast_is_needed).profile == both[1].name


def test_a_trace_is_planned_for_its_busy_windows():
    steady = [Arrival(at=float(second), prompt_tokens=100, output_tokens=10) for second in range(100)]
    burst = [Arrival(at=50.0, prompt_tokens=100, output_tokens=10)] * 90
    calm, busy = trace_workload(steady), trace_workload(sorted(steady + burst, key=lambda each: each.at))
    assert (calm.rate, busy.rate) == (1.0, 10.0)
    assert calm.prompt_tokens == 100


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Workload(rate=0, prompt_tokens=1, output_tokens=1),
        lambda: Workload(rate=1, prompt_tokens=0, output_tokens=1),
        lambda: Workload(rate=1, prompt_tokens=1, output_tokens=1, cached_share=1),
        lambda: Objectives(ttft_s=0),
        lambda: Objectives(quantile=1),
        lambda: replica_profile("gpt-5/fp8/h100"),
        lambda: replica_profile("llama-3.3-70b/bfloat16/l4"),
        lambda: plan(replica_profile(L4), VOICE, Objectives(itl_s=0.001)),
        lambda: trace_workload([]),
    ],
)
def test_what_cannot_be_planned_is_refused(wrong):
    with pytest.raises(PlanError):
        wrong()


def test_routing_takes_fewer_dollars_than_the_large_model_alone():
    routed = sum(daily(*tier).usd_per_hour for tier in TIERS)
    replica, answer, _ = TIERS[2]
    assert routed < 0.6 * daily(replica, answer, 1.0).usd_per_hour
