"""Separate prefill and decode pools: the same requests end, pools size and scale alone."""

import pytest

from gateway.planning.capacity.replica_profile import replica_profile
from gateway.planning.capacity.workload import Arrival
from gateway.planning.scaling.predictive import FleetSettings, PredictiveKnobs, PredictiveRule, ServiceObjectives
from tests.gateway.planning.scaling.simulated_fleet import FixedRule
from tests.gateway.planning.scaling.split_pools import Transfer, kv_bytes_of, requests_of, run_apart

PROFILE = replica_profile("llama-3.1-8b/awq-int4/l4")
FAST = Transfer(bytes_per_token=kv_bytes_of(PROFILE), bytes_per_s=50e9)
LONG_PROMPTS = [Arrival(number / 2, 3000, 150) for number in range(200)]


def fixed(replicas: int) -> tuple[FleetSettings, FixedRule]:
    return FleetSettings(cold_start_s=0.0, least=replicas, most=replicas), FixedRule(replicas)


def test_every_request_ends_after_its_prompt_its_transfer_and_its_tokens():
    requests, _, _ = run_apart(requests_of(LONG_PROMPTS), PROFILE, FAST, fixed(2), fixed(2))
    for request in requests:
        assert request.ttft_s >= PROFILE.prefill_s(3000) * (1 - 1e-9)
        least = FAST.seconds(3000) + 149 * PROFILE.base_s
        assert request.finished_at - request.first_token_at >= least * (1 - 1e-9)


def test_an_answer_of_one_token_needs_no_second_pool():
    requests, _, decode = run_apart(requests_of([Arrival(1.0, 500, 1)]), PROFILE, FAST, fixed(1), fixed(1))
    assert requests[0].finished_at == requests[0].first_token_at
    assert decode.requests == []


def test_decoding_apart_never_waits_for_a_prompt():
    requests, _, _ = run_apart(requests_of(LONG_PROMPTS), PROFILE, FAST, fixed(2), fixed(2))
    alone = PROFILE.base_s + 100 * PROFILE.decode_s(3075)
    assert max(request.itl_s for request in requests) < alone


def predictive() -> tuple[FleetSettings, PredictiveRule]:
    fleet = FleetSettings(cold_start_s=18.0, least=1, most=32)
    rule = PredictiveRule(
        PROFILE, interval_s=15.0, cold_start_s=18.0, objectives=ServiceObjectives(), knobs=PredictiveKnobs()
    )
    return fleet, rule


def test_each_pool_scales_alone():
    def sizes(arrivals: list[Arrival]) -> tuple[int, int]:
        _, prefill, decode = run_apart(requests_of(arrivals), PROFILE, FAST, predictive(), predictive())
        return tuple(max(ordered for _, ordered, _ in pool.sizes) for pool in (prefill, decode))

    plain = [Arrival(number / 2, 1000, 100) for number in range(400)]
    longer_prompts = [Arrival(each.at, 4000, 100) for each in plain]
    longer_answers = [Arrival(each.at, 1000, 800) for each in plain]
    base, prompts, answers = sizes(plain), sizes(longer_prompts), sizes(longer_answers)
    assert prompts[0] > base[0]
    assert answers[0] == base[0]
    assert answers[1] > base[1]


def test_the_bytes_that_travel_are_those_of_the_cache():
    # SPEC KV-02: 320 KiB a token for a 70B.
    assert kv_bytes_of(replica_profile("llama-3.3-70b/fp8/8xh100")) == 320 * 1024
    assert Transfer(bytes_per_token=100, bytes_per_s=1000, latency_s=0.5).seconds(10) == pytest.approx(1.5)
