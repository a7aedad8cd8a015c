"""Simulated fleets: requests are conserved, times match the formulas, rules respect their limits."""

import math
import random
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.planning.capacity.capacity import operation
from gateway.planning.capacity.replica_profile import replica_profile
from gateway.planning.capacity.workload import Arrival, Workload
from gateway.planning.scaling.predictive import (
    FleetSettings,
    Observation,
    PredictiveKnobs,
    PredictiveRule,
    ServiceObjectives,
    SlowDown,
)
from tests.examples import examples
from tests.gateway.planning.scaling.hpa import HpaBehaviour, HpaRule, by_utilisation
from tests.gateway.planning.scaling.simulated_fleet import (
    FixedRule,
    FleetSimulation,
    ScheduleRule,
    Setting,
    SimulatedReplica,
    SimulatedRequest,
    score,
)

PROFILE = msgspec.structs.replace(replica_profile("smollm2-135m-int4-cpu"), prompt_pair_s=0.0, context_token_s=0.0)
OBJECTIVES = ServiceObjectives()
requests_made = st.lists(
    st.tuples(st.floats(0, 100), st.integers(1, 3000), st.integers(1, 300)), min_size=1, max_size=60
).map(lambda rows: [SimulatedRequest(n, *row) for n, row in enumerate(sorted(rows))])


class Restless:
    """Wants a different number every time."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def desired(self, seen: Observation) -> int:
        return self._random.randint(0, 12)


def poisson(rate: float, seconds: float, prompt: int = 300, output: int = 60, seed: int = 3) -> list[Arrival]:
    draw, at, found = random.Random(seed), 0.0, []
    while (at := at + draw.expovariate(rate)) < seconds:
        found.append(Arrival(at, prompt, output))
    return found


def setting(arrivals: list[Arrival], **fleet: float) -> Setting:
    return Setting(
        profile=PROFILE,
        fleet=FleetSettings(**({"cold_start_s": 30.0} | fleet)),
        objectives=OBJECTIVES,
        arrivals=arrivals,
    )


def predictive(at: Setting, **knobs: float) -> PredictiveRule:
    return PredictiveRule(
        at.profile,
        interval_s=at.fleet.interval_s,
        cold_start_s=at.fleet.cold_start_s,
        objectives=OBJECTIVES,
        knobs=PredictiveKnobs(**knobs),
    )


@settings(max_examples=examples(60), deadline=None)
@given(requests=requests_made, seed=st.integers(0, 99))
def test_whatever_a_rule_wants_every_request_is_answered_in_order_and_the_pool_stays_warm(requests, seed):
    fleet = FleetSettings(cold_start_s=20, least=3, most=10)
    run = FleetSimulation(PROFILE, fleet, Restless(seed)).run(requests)
    for request in run.requests:
        assert request.first_token_at is not None
        assert request.finished_at is not None
        assert request.at < request.first_token_at <= request.finished_at
        assert request.ttft_s >= PROFILE.prefill_s(request.prompt_tokens) * (1 - 1e-9)
    assert all(3 <= ordered <= 10 for _, ordered, _ in run.sizes)
    assert all(span.ended_at >= span.ordered_at for span in run.spans)


def test_one_request_alone_takes_its_prompt_and_a_step_per_token():
    replica = SimulatedReplica(PROFILE, 0.0, 0.0)
    request = SimulatedRequest(0, 0.0, 384, 11)
    replica.put(request)
    replica.advance(1e6)
    assert request.ttft_s == pytest.approx(PROFILE.unloaded_ttft_s(384))
    assert request.itl_s == pytest.approx(PROFILE.base_s + PROFILE.sequence_s)


def test_a_busy_replica_gives_the_rate_and_the_pace_of_the_formulas():
    load = Workload(rate=1.0, prompt_tokens=192, output_tokens=100)
    replica, waiting, done = SimulatedReplica(PROFILE, 0.0, 0.0), 0, []
    for number in range(16):
        replica.put(SimulatedRequest(number, 0.0, 192, 100))
        waiting = number + 1
    while len(done) < 600:
        ended = [each for each in replica.advance(replica.clock + 0.05) if each.finished_at is not None]
        done += ended
        for _ in ended:
            replica.put(SimulatedRequest(waiting, replica.clock, 192, 100))
            waiting += 1
    since = done[100].finished_at
    rate = 499 / (done[599].finished_at - since)
    decoding = rate * 100 * sum(each.itl_s for each in done[100:]) / 500
    expected = operation(PROFILE, load, decoding)
    assert rate == pytest.approx(expected.rate, rel=0.05)


def test_a_full_cache_makes_prompts_wait():
    small = msgspec.structs.replace(PROFILE, kv_tokens=1000)
    replica = SimulatedReplica(small, 0.0, 0.0)
    first, second = SimulatedRequest(0, 0.0, 600, 200), SimulatedRequest(1, 0.0, 600, 200)
    replica.put(first)
    replica.put(second)
    replica.advance(1e6)
    assert second.first_token_at > first.finished_at


def test_draining_replicas_finish_what_they_have():
    crowd = FleetSimulation(PROFILE, FleetSettings(cold_start_s=0, least=1, most=6), ScheduleRule([6, 1], 15.0))
    run = crowd.run([SimulatedRequest(n, 16.0 + n / 10, 500, 6000) for n in range(6)])
    assert all(request.itl_s < math.inf for request in run.requests)
    assert [ordered for at, ordered, _ in run.sizes if at in (15.0, 30.0)] == [6, 1]
    assert sum(span.ended_at > 30.0 for span in run.spans) > 3


def test_constant_load_is_served_without_flapping():
    arrivals = [Arrival(number / 4, 300, 60) for number in range(4 * 1800)]
    at = setting(arrivals)
    run = at.run(predictive(at))
    settled = [ordered for when, ordered, _ in run.sizes if 600 < when < 1800]
    assert len(set(settled)) == 1
    assert score(at, run).attainment > 0.99


def test_random_arrivals_at_a_constant_rate_hardly_move_the_fleet():
    at = setting(poisson(4, 3600))
    run = at.run(predictive(at, down_window_s=300.0))
    settled = [ordered for when, ordered, _ in run.sizes if 900 < when < 3600]
    moves = sum(a != b for a, b in pairwise(settled))
    assert max(settled) - min(settled) <= 3
    assert moves < len(settled) / 8


def test_nothing_at_all_keeps_the_warm_pool():
    at = setting([Arrival(0.0, 10, 2), Arrival(3600.0, 10, 2)])
    run = at.run(predictive(at))
    assert {ordered for _, ordered, _ in run.sizes[8:]} == {3}


def waves(period_s: float, cycles: int) -> list[Arrival]:
    """Quiet, then eight times as much for a third of each period."""
    draw, at, found = random.Random(11), 0.0, []
    while at < period_s * cycles:
        rate = 8.0 if at % period_s > 2 * period_s / 3 else 1.0
        at += draw.expovariate(rate)
        found.append(Arrival(at, 300, 60))
    return found


@pytest.mark.parametrize("window_s", [300.0, 0.0])
def test_waves_shorter_than_its_window_do_not_make_the_reactive_rule_flap(window_s):
    """AS-02, at 70% utilisation; without the window it would."""
    at = setting(waves(150, 16), least=1)
    rule = HpaRule(lambda seen: seen.busy / 0.7, HpaBehaviour(down_window_s=window_s))
    settled = [ordered for when, ordered, _ in at.run(rule).sizes if 600 < when < 2400]
    falls = sum(after < before for before, after in pairwise(settled))
    assert (falls == 0) == (window_s > 0)
    assert max(settled) > 1


def test_a_slower_start_makes_the_rule_act_earlier_and_hold_more():
    """Forecasts cover the time until an order takes effect, so a slower start acts that much earlier."""
    arrivals = waves(600, 3)
    hours = []
    for cold_start_s in (5.0, 60.0, 150.0):
        at = setting(arrivals, cold_start_s=cold_start_s).after(0.5)
        hours.append(score(at, at.run(predictive(at))).replica_hours)
    assert hours == sorted(hours)
    assert hours[-1] > 1.02 * hours[0]


def test_a_forecast_serves_the_waves_that_the_reactive_rule_meets_late_for_a_tenth_more_replica_hours():
    """AS-03."""
    at = setting(waves(600, 8), cold_start_s=60.0, least=1).after(0.5)
    ahead, late = (score(at, at.run(rule)) for rule in (predictive(at, down_window_s=300.0), by_utilisation()))
    assert ahead.missed == 0
    assert late.missed > 20
    assert ahead.replica_hours < 1.15 * late.replica_hours


def test_the_slow_down_keeps_the_most_of_its_window():
    hand = SlowDown(60)
    assert [hand.steady(at, n) for at, n in ((0, 5), (30, 2), (60, 2), (61, 2), (62, 9))] == [5, 5, 5, 2, 9]


def test_a_fixed_fleet_is_paid_for_all_the_time():
    at = setting(poisson(1, 600), least=4, most=4)
    found = score(at, at.run(FixedRule(4)))
    assert found.replica_hours == pytest.approx(4 * at.until / 3600)
    assert found.changes == 0
