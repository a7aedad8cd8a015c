"""The schedule of one replica in virtual time: the core's scheduler at stated step times (SPEC TB-08)."""

import msgspec
import pytest

from gateway.planning.capacity.capacity import operation
from gateway.planning.capacity.replica_profile import replica_profile
from gateway.planning.capacity.scheduled_core import simulate_schedule
from gateway.planning.capacity.workload import PlanError, Workload
from inference_core.engine.scheduler import Scheduler

SEVENTY = replica_profile("llama-3.3-70b/fp8/8xh100")
LOAD = Workload(rate=40.0, prompt_tokens=500, output_tokens=50)


def test_a_request_alone_takes_the_time_of_its_chunks():
    rare = Workload(rate=1e-4, prompt_tokens=5000, output_tokens=2)

    found = simulate_schedule(SEVENTY, rare, requests=10)

    assert found.ttft_p99_s == pytest.approx(SEVENTY.unloaded_ttft_s(5000))
    assert found.itl_p50_s == pytest.approx(SEVENTY.base_s + SEVENTY.decode_s(5001))


def test_the_same_seed_gives_the_same_schedule_and_another_seed_another():
    first, again, other = (simulate_schedule(SEVENTY, LOAD, requests=200, seed=seed) for seed in (1, 1, 2))

    assert first == again
    assert first.ttft_p99_s != other.ttft_p99_s


def test_steps_are_planned_by_the_scheduler_of_the_core(monkeypatch):
    steps, schedule = [], Scheduler.schedule

    def noting(self, step, now):
        plan = schedule(self, step, now)
        steps.append(0 if plan is None else plan.num_tokens)
        return plan

    monkeypatch.setattr(Scheduler, "schedule", noting)

    found = simulate_schedule(SEVENTY, LOAD, requests=200)

    assert len([tokens for tokens in steps if tokens]) == found.steps
    assert sum(steps) == 200 * (500 + 49)


def test_gaps_agree_with_the_planners_formula_and_first_tokens_wait_longer_under_load():
    light, heavy = (simulate_schedule(SEVENTY, LOAD.at(rate), requests=600) for rate in (5.0, 60.0))

    planned = operation(SEVENTY, LOAD, heavy.mean_batch)
    assert heavy.itl_p50_s / 1.5 < planned.itl_s < heavy.itl_p99_s
    assert light.ttft_p50_s < heavy.ttft_p50_s < heavy.ttft_p99_s
    assert light.mean_batch < heavy.mean_batch


def test_a_common_prefix_is_found_in_the_cache():
    cold = simulate_schedule(SEVENTY, LOAD, requests=200)
    warm = simulate_schedule(SEVENTY, msgspec.structs.replace(LOAD, cached_share=0.8), requests=200)

    assert warm.ttft_p50_s < 0.7 * cold.ttft_p50_s


def test_a_request_larger_than_the_replicas_memory_is_a_plan_that_fails():
    small = msgspec.structs.replace(SEVENTY, kv_tokens=1024)

    with pytest.raises(PlanError, match="too large for memory"):
        simulate_schedule(small, Workload(rate=1.0, prompt_tokens=4000, output_tokens=50), requests=100)
