"""Load balancing: never a bad replica while a good one is there, prefix affinity, and bounded loads."""

import math
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from tests.examples import examples
from tests.support.clock import Clock
from tests.tiers.tier_world import GREEDY, chat
from tiers.catalog.replica_spec import BalancingSpec, ReplicaSpec
from tiers.conversation import Turn
from tiers.replicas.balancer import Balancer, prefix_key, rendezvous_score
from tiers.replicas.replica import InFlightRequest, PeakEwma, Replica
from tiers.replicas.replica_set import RetryBudget
from tiers.tier import GenerationRequest

KEYS = [f"key {i}".encode() for i in range(6)]


def make_balancer(weights: Sequence[float], clock: Clock, **spec: Any) -> Balancer:
    replicas = [ReplicaSpec(base_url=f"http://replica-{i}/v1", weight=w) for i, w in enumerate(weights)]
    return Balancer("t", replicas, BalancingSpec(**spec), clock=clock, rng=random.Random(7))


def begin_at(balancer: Balancer, index: int, key: bytes | None = None) -> InFlightRequest:
    """A request at the replica of this index, whatever else is there."""
    others = [replica for i, replica in enumerate(balancer.replicas) if i != index]
    in_flight = balancer.begin(key, others)
    assert in_flight is not None
    assert in_flight.replica is balancer.replicas[index]
    return in_flight


def chosen(balancer: Balancer, key: bytes | None = None) -> int:
    """Where the next request would go; it leaves at once."""
    in_flight = balancer.begin(key)
    assert in_flight is not None
    balancer.leave(in_flight)
    return balancer.replicas.index(in_flight.replica)


def eject(balancer: Balancer, index: int) -> None:
    for _ in range(balancer.spec.consecutive_failures):
        balancer.fail(begin_at(balancer, index))


class BalancerMachine(RuleBasedStateMachine):
    """Requests come, go, fail and are waited for in any order; a model remembers who was ejected or paused when."""

    requests_in_flight = Bundle("requests_in_flight")

    @initialize(weights=st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=1, max_size=6))
    def set_up(self, weights: list[float]) -> None:
        self.clock = Clock()
        self.balancer = make_balancer(weights, self.clock)
        self.live: set[InFlightRequest] = set()
        self.ejected_at: dict[Replica, float] = {}
        self.paused_until: dict[Replica, float] = {}
        self.probes: dict[Replica, InFlightRequest] = {}

    @rule(target=requests_in_flight, key=st.none() | st.sampled_from(KEYS))
    def begin(self, key: bytes | None) -> InFlightRequest | None:
        before = {r: r.outstanding for r in self.balancer.replicas}
        serving = [r for r in self.balancer.replicas if not r.breaker.is_open and not self.is_paused(r)]
        in_flight = self.balancer.begin(key)
        if in_flight is None:
            assert not serving, "a request is turned away only if no replica is well"
            return None
        replica = in_flight.replica
        assert not self.is_paused(replica)
        if replica in self.ejected_at:
            assert self.clock.now >= self.ejected_at[replica] + self.balancer.spec.ejection_seconds
            assert replica not in self.probes, "one probe at a time"
            self.probes[replica] = in_flight
        elif key is not None and len(serving) > 1:
            self.check_bound(key, replica, serving, before)
        self.live.add(in_flight)
        return in_flight

    def check_bound(self, key: bytes, replica: Replica, serving: list[Replica], before: dict[Replica, int]) -> None:
        preferred = max(serving, key=lambda r: rendezvous_score(key, r.url, r.weight))
        if replica is preferred:
            total = sum(before[r] for r in serving) + 1
            fair = total * replica.weight / sum(r.weight for r in serving)
            assert before[replica] + 1 <= math.ceil(1.25 * fair)

    @rule(in_flight=requests_in_flight)
    def first_token(self, in_flight: InFlightRequest | None) -> None:
        if in_flight in self.live:
            self.balancer.first_token(in_flight)
            self.settle(in_flight)

    @rule(in_flight=consumes(requests_in_flight), how=st.sampled_from(["succeed", "fail", "fail", "fail", "leave"]))
    def end(self, in_flight: InFlightRequest | None, how: str) -> None:
        if in_flight in self.live:
            getattr(self.balancer, how)(in_flight)
            self.over(in_flight)

    @rule(in_flight=consumes(requests_in_flight), seconds=st.floats(0, 20))
    def pause(self, in_flight: InFlightRequest | None, seconds: float) -> None:
        if in_flight in self.live:
            self.balancer.pause(in_flight, seconds)
            before = self.paused_until.get(in_flight.replica, -math.inf)
            self.paused_until[in_flight.replica] = max(before, self.clock.now + seconds)
            self.over(in_flight)

    @rule(seconds=st.floats(0, 30))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    def over(self, in_flight: InFlightRequest) -> None:
        self.live.remove(in_flight)
        self.settle(in_flight)

    def settle(self, in_flight: InFlightRequest) -> None:
        """Take note of what an outcome did to its replica."""
        replica = in_flight.replica
        was_probe = self.probes.get(replica) is in_flight
        if was_probe:
            del self.probes[replica]
        if not replica.breaker.is_open:
            self.ejected_at.pop(replica, None)
            self.probes.pop(replica, None)
        elif replica not in self.ejected_at or (was_probe and replica.breaker.available_in(self.clock.now) >= 5):
            self.ejected_at[replica] = self.clock.now

    def is_paused(self, replica: Replica) -> bool:
        return self.clock.now < self.paused_until.get(replica, -math.inf)

    @invariant()
    def never_more_than_half_are_ejected(self) -> None:
        assert sum(r.breaker.is_open for r in self.balancer.replicas) <= len(self.balancer.replicas) // 2

    @invariant()
    def every_request_in_flight_is_counted_once(self) -> None:
        for replica in self.balancer.replicas:
            assert replica.outstanding == sum(in_flight.replica is replica for in_flight in self.live)
            assert set(replica.silent) <= set(replica.requests_in_flight)


TestBalancerMachine = BalancerMachine.TestCase
TestBalancerMachine.settings = settings(max_examples=examples(40), stateful_step_count=30, deadline=None)


def test_failures_in_a_row_eject_then_one_probe_decides_and_each_failed_probe_doubles_the_time(clock: Clock) -> None:
    balancer = make_balancer([1, 1, 1], clock)
    eject(balancer, 0)
    for period in (5, 10, 20):
        clock.now += period - 0.1
        assert 0 not in {chosen(balancer) for _ in range(50)}
        clock.now += 0.1
        probe = balancer.begin(None)
        assert probe is not None
        assert probe.replica is balancer.replicas[0]
        assert 0 not in {chosen(balancer) for _ in range(50)}, "others wait for the probe's outcome"
        balancer.fail(probe)
    clock.now += 40
    probe = balancer.begin(None)
    assert probe is not None
    balancer.first_token(probe)
    balancer.succeed(probe)
    assert 0 in {chosen(balancer) for _ in range(50)}
    eject(balancer, 0)
    assert balancer.replicas[0].breaker.available_in(clock.now) == 5, "an answer makes good for what was before"


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_if_all_fail_at_most_half_are_ejected_and_the_others_go_on(count: int, clock: Clock) -> None:
    balancer = make_balancer([1] * count, clock)
    for _ in range(50 * count):
        in_flight = balancer.begin(None)
        assert in_flight is not None
        balancer.fail(in_flight)
    assert sum(replica.condition(clock.now) == "ejected" for replica in balancer.replicas) == count // 2
    assert not balancer.is_healthy


def test_a_replica_that_breaks_off_the_answer_to_its_probe_is_ejected_again_at_once(clock: Clock) -> None:
    balancer = make_balancer([1, 1], clock)
    eject(balancer, 0)
    clock.now += 5
    probe = balancer.begin(None)
    assert probe is not None
    balancer.first_token(probe)
    balancer.fail(probe)
    assert balancer.replicas[0].condition(clock.now) == "ejected"
    assert balancer.replicas[0].breaker.available_in(clock.now) == 10


def test_a_second_attempt_is_no_probe(clock: Clock) -> None:
    balancer = make_balancer([1, 1, 1], clock)
    eject(balancer, 0)
    clock.now += 5
    in_flight = balancer.begin(None, [balancer.replicas[1]])
    assert in_flight is not None
    assert in_flight.replica is balancer.replicas[2]


def test_a_probe_whose_caller_left_is_followed_by_another(clock: Clock) -> None:
    balancer = make_balancer([1, 1], clock)
    eject(balancer, 0)
    clock.now += 5
    assert [chosen(balancer), chosen(balancer)] == [0, 0]


@pytest.mark.parametrize(("others_fail", "ejected"), [(False, True), (True, False)])
def test_a_share_of_failures_is_judged_by_that_of_the_others(others_fail: bool, ejected: bool, clock: Clock) -> None:
    balancer = make_balancer([1, 1, 1], clock)
    for turn in range(30):
        clock.now += 0.1
        for index in (2, 1, 0):
            if balancer.replicas[index].breaker.is_open:
                continue
            in_flight = begin_at(balancer, index)
            fails = turn % 2 and (index == 0 or others_fail)
            (balancer.fail if fails else balancer.succeed)(in_flight)
    assert [replica.breaker.is_open for replica in balancer.replicas] == [ejected, False, False]


def test_a_server_that_asks_for_a_pause_is_paused_and_not_ejected(clock: Clock) -> None:
    balancer = make_balancer([1, 1], clock)
    for index in (0, 1):
        balancer.pause(begin_at(balancer, index), 3.0 + index)
    assert balancer.begin(None) is None
    assert balancer.available_in() == 3
    assert not balancer.is_healthy
    clock.now += 3
    assert {chosen(balancer) for _ in range(20)} == {0}
    clock.now += 1
    assert {chosen(balancer) for _ in range(50)} == {0, 1}


def test_a_slow_replica_loses_its_share() -> None:
    """SPEC GW-03: with ten times the latency it keeps far less than its third."""
    clock, rng = Clock(), random.Random(3)
    balancer = make_balancer([1, 1, 1], clock)
    ends: list[tuple[float, int, InFlightRequest]] = []
    served = [0, 0, 0]
    for number in range(1500):
        clock.now += 0.02
        while ends and ends[0][0] <= clock.now:
            in_flight = ends.pop(0)[2]
            balancer.first_token(in_flight)
            balancer.succeed(in_flight)
        begun = balancer.begin(None)
        assert begun is not None
        index = balancer.replicas.index(begun.replica)
        served[index] += 1
        ends.append((clock.now + (1.0 if index == 0 else 0.1) * rng.uniform(0.8, 1.2), number, begun))
        ends.sort(key=lambda end: end[:2])
    assert served[0] < 0.1 * sum(served)
    assert min(served[1:]) > 0.3 * sum(served)


def after_latencies(clock: Clock, latencies: Sequence[float], weights: Sequence[float] = (1, 1)) -> Balancer:
    """A balancer whose replicas answered one request each, with these seconds to the first token."""
    balancer = make_balancer(weights, clock)
    for index, seconds in enumerate(latencies):
        in_flight = begin_at(balancer, index)
        clock.now += seconds
        balancer.first_token(in_flight)
        balancer.succeed(in_flight)
    return balancer


def test_of_two_idle_replicas_the_faster_is_chosen(clock: Clock) -> None:
    balancer = after_latencies(clock, (1.0, 0.1))
    assert {chosen(balancer) for _ in range(20)} == {1}


def test_of_two_equally_fast_replicas_the_one_with_the_shorter_queue_is_chosen(clock: Clock) -> None:
    balancer = after_latencies(clock, (0.1, 0.1))
    balancer.first_token(begin_at(balancer, 0))
    assert {chosen(balancer) for _ in range(20)} == {1}


def test_idle_replicas_are_drawn_and_busy_ones_are_filled_in_proportion_to_weight(clock: Clock) -> None:
    balancer = after_latencies(clock, (0.1, 0.1), weights=(1, 3))
    assert 240 < sum(chosen(balancer) for _ in range(400)) < 360
    for _ in range(40):
        balancer.begin(None)
    assert [replica.outstanding for replica in balancer.replicas] == [10, 30]


def test_a_replica_that_hangs_is_avoided_before_any_request_there_has_failed(clock: Clock) -> None:
    balancer = make_balancer([1, 1], clock)
    for index in (0, 1):
        in_flight = begin_at(balancer, index)
        clock.now += 0.1
        balancer.first_token(in_flight)
        balancer.succeed(in_flight)
    key = next(k for k in KEYS if chosen(balancer, k) == 0)
    begin_at(balancer, 0)
    begin_at(balancer, 1)
    live = begin_at(balancer, 1)
    clock.now += 0.1
    balancer.first_token(live)
    for in_flight in list(balancer.replicas[1].requests_in_flight):
        balancer.first_token(in_flight)
    clock.now += 2
    assert chosen(balancer, None) == 1
    assert chosen(balancer, key) == 1


def test_a_replica_that_fails_at_once_attracts_no_requests_by_its_empty_queue(clock: Clock) -> None:
    balancer = make_balancer([1, 1, 1], clock, consecutive_failures=1000)
    for index in (0, 1, 2):
        in_flight = begin_at(balancer, index)
        clock.now += 0.1
        balancer.first_token(in_flight)
        (balancer.fail if index == 0 else balancer.succeed)(in_flight)
    assert 0 not in {chosen(balancer) for _ in range(50)}
    clock.now += 10
    assert 0 in {chosen(balancer) for _ in range(50)}, "one failure is forgiven in time"


def test_an_overtaken_replica_counts_as_slow(clock: Clock) -> None:
    balancer = make_balancer([1, 1], clock)
    for index in (0, 1):
        in_flight = begin_at(balancer, index)
        clock.now += 0.1
        balancer.first_token(in_flight)
        balancer.succeed(in_flight)
    late = begin_at(balancer, 0)
    clock.now += 1
    balancer.leave(late)
    assert balancer.replicas[0].ttft.latest == pytest.approx(1)
    assert {chosen(balancer) for _ in range(50)} == {1}


def test_outcomes_of_requests_sent_before_an_ejection_do_not_count(clock: Clock) -> None:
    balancer = make_balancer([1, 1], clock)
    before = [begin_at(balancer, 0) for _ in range(2)]
    eject(balancer, 0)
    balancer.fail(before[0])
    balancer.succeed(before[1])
    assert balancer.replicas[0].breaker.available_in(clock.now) == 5


@given(
    st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=2, max_size=8),
    st.integers(0, 7),
    st.lists(st.binary(), max_size=40),
)
@settings(deadline=None, max_examples=examples(50))
def test_when_a_replica_goes_only_its_prompts_move(weights: list[float], gone: int, keys: list[bytes]) -> None:
    clock = Clock()
    gone %= len(weights)
    balancer = make_balancer(weights, clock)
    before = [chosen(balancer, key) for key in keys]
    eject(balancer, gone)
    after = [chosen(balancer, key) for key in keys]
    assert all(b == a for b, a in zip(before, after, strict=True) if b != gone)
    assert gone not in after


def test_prompts_are_shared_out_in_proportion_to_weight() -> None:
    balancer = make_balancer([3, 1], Clock())
    for prompts in ([f"prompt {i}".encode() for i in range(3000)], [None] * 3000):
        shares = [chosen(balancer, prompt) for prompt in prompts]
        assert shares.count(0) / len(shares) == pytest.approx(0.75, abs=0.03)


def test_a_popular_prompt_spills_over_at_the_bound_and_comes_home_when_there_is_room() -> None:
    balancer = make_balancer([1, 1, 1, 1], Clock())
    home = chosen(balancer, KEYS[0])
    requests_in_flight = [balancer.begin(KEYS[0]) for _ in range(40)]
    outstanding = [replica.outstanding for replica in balancer.replicas]
    assert outstanding[home] == max(outstanding)
    assert 10 < outstanding[home] <= math.ceil(1.25 * 40 / 4)
    for in_flight in requests_in_flight:
        assert in_flight is not None
        balancer.succeed(in_flight)
    assert chosen(balancer, KEYS[0]) == home


def test_every_turn_of_a_conversation_has_the_key_of_its_first() -> None:
    first = [Turn.of("system", "Be kind."), Turn.of("user", "Hello")]
    later = [*first, Turn.of("assistant", "Hi"), Turn.of("user", "And now?")]

    def key(messages: list[Turn], **fields: str) -> bytes:
        return prefix_key(GenerationRequest(request_id="r", sampling=GREEDY, messages=messages, **fields), 2048)

    assert key(first) == key(later)
    assert len({key(first), key(first, salt="ann"), key(first, adapter="a"), key(first[1:])}) == 4


def test_only_the_beginning_of_a_prompt_counts() -> None:
    def key(prompt: str | list[int]) -> bytes:
        return prefix_key(GenerationRequest(request_id="r", sampling=GREEDY, prompt=prompt), 64)

    assert key("x" * 64 + "a") == key("x" * 64 + "b") != key("y" + "x" * 63)
    assert key([*range(100, 140), 1]) == key([*range(100, 140), 2]) != key([1, *range(100, 140)])
    assert prefix_key(chat("x" * 99 + "a"), 64) == prefix_key(chat("x" * 99 + "b"), 64)
    assert prefix_key(chat("\ud800"), 64)


def test_an_average_believes_a_peak_at_once_forgets_it_slowly_and_goes_back_to_what_is_usual() -> None:
    average = PeakEwma()
    assert average.value(0, 10, rest=0.3) == 0.3
    average.observe(0.1, now=1, decay_seconds=10)
    average.observe(2.0, now=1, decay_seconds=10)
    assert average.latest == 2.0
    average.observe(0.1, now=2, decay_seconds=10)
    assert average.latest == pytest.approx(0.1 + 1.9 * math.exp(-0.1))
    assert average.value(1e6, 10, rest=0.3) == pytest.approx(0.3)


@given(st.lists(st.booleans(), max_size=300), st.floats(0, 1), st.integers(0, 20))
def test_retries_never_pass_the_burst_and_their_share_of_the_requests(
    events: list[bool], share: float, burst: int
) -> None:
    budget, requests, retries = RetryBudget(burst), 0, 0
    for is_request in events:
        if is_request:
            budget.deposit(share, burst)
            requests += 1
        elif budget.is_open:
            budget.withdraw()
            retries += 1
        assert retries <= burst + share * requests + 1e-9
