"""Continuous, dynamic and static batching of the same load (SPEC BS-01 to BS-03), and the latency of joining
(BS-12)."""

import itertools

import pytest
from core_driver import CoreDriver, greedy
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_core.engine.queues import batch_size, joins_now
from inference_core.protocol import Knobs
from tests.examples import examples


def in_last_step(driver: CoreDriver) -> set[str]:
    return {s.sequence_id.partition("/")[0] for s in driver.last_plan().sequences}


def steps_until_done(batching: str, sizes: tuple[int, ...] = (8,)) -> int:
    """Steps for 40 answers of 2 to 40 tokens, all there at once, on 8 seats."""
    driver = CoreDriver(
        slabs=40, knobs=Knobs(batching=batching, max_num_seqs=8, preferred_batch_sizes=list(sizes)), check=False
    )
    for i in range(40):
        driver.add([i], sampling=greedy(2 + 38 * (i % 8) // 7))
    driver.drain()
    return driver.steps


# -- static --------------------------------------------------------------------------------------


def test_a_static_batch_takes_all_waiting_sequences_and_admits_no_other_until_all_have_ended() -> None:
    """BS-02: three answers of 2, 5 and 9 tokens; a fourth request arrives in mid-batch and waits for the longest."""
    driver = CoreDriver(knobs=Knobs(batching="static", max_num_seqs=8))
    for tokens in (2, 5, 9):
        driver.add([tokens], sampling=greedy(tokens), request_id=f"of{tokens}")
    driver.step(3)
    driver.add([1], sampling=greedy(2), request_id="late")
    batches = []
    while driver.core.has_work:
        driver.step()
        batches.append(in_last_step(driver))
    assert batches[:6] == [{"of5", "of9"}] * 2 + [{"of9"}] * 4
    assert batches[6:] == [{"late"}] * 2


def test_a_static_batch_has_at_most_the_seats_even_if_its_prompts_need_several_steps() -> None:
    """Members are chosen when the batch is formed, best first, and may start later than others decode."""
    driver = CoreDriver(
        slabs=20, knobs=Knobs(batching="static", max_num_seqs=3, max_num_batched_tokens=10, prefill_chunk=10)
    )
    for i in range(5):
        driver.add([i] * 10, sampling=greedy(4), request_id=f"r{i}", priority=0 if i == 4 else 1)
    together: set[str] = set()
    while ("r4", 0) not in driver.finished or ("r1", 0) not in driver.finished:
        driver.step()
        together |= in_last_step(driver)
    assert together == {"r4", "r0", "r1"}


def test_continuous_batching_needs_far_fewer_steps_than_static_for_answers_of_unequal_length() -> None:
    """BS-01: a static batch is as long as its longest member; 5 batches of 40 steps against the mean of 21."""
    static, continuous = steps_until_done("static"), steps_until_done("continuous")
    assert static == 5 * 40
    assert continuous < 0.7 * static


# -- dynamic -------------------------------------------------------------------------------------


@given(
    arrivals=st.lists(st.integers(0, 30), min_size=1, max_size=12),
    delay_ms=st.sampled_from([0, 125, 250]),
    sizes=st.sampled_from([[], [4], [2, 8]]),
)
@settings(max_examples=examples(80), deadline=None)
def test_a_dynamic_batch_goes_at_the_earlier_of_delay_and_preferred_size(
    arrivals: list[int], delay_ms: int, sizes: list[int]
) -> None:
    """BS-03 on a virtual clock with ticks of 1/64 s, so that times add up exactly: never before, never after."""
    knobs = Knobs(batching="dynamic", max_queue_delay_ms=delay_ms, preferred_batch_sizes=sizes, max_num_seqs=10)
    driver = CoreDriver(slabs=20, knobs=knobs, seconds_per_step=0.0)
    arrived: list[float] = []
    due = sorted(arrivals)
    for tick in range(200):
        while due and due[0] <= tick:
            due.pop(0)
            driver.add([1], sampling=greedy(1))
            arrived.append(tick)
        reached = [size for size in [*sizes, 10] if size <= len(arrived)]
        old = bool(arrived) and (tick - arrived[0]) / 64 >= delay_ms / 1e3
        expected = min(len(arrived), 10) if old else max(reached, default=0)
        assert (driver.core.pause_seconds > 0) == bool(arrived and not expected)
        before = len(driver.finished)
        driver.step()
        assert len(driver.finished) - before == expected
        del arrived[:expected]
        driver.clock.now = (tick + 1) / 64
    assert len(driver.finished) == len(arrivals)


def test_a_held_batch_says_how_long_nothing_is_to_be_done() -> None:
    driver = CoreDriver(knobs=Knobs(batching="dynamic", max_queue_delay_ms=5.0))
    driver.add([1])
    driver.step()
    assert driver.core.pause_seconds == pytest.approx(0.005)
    driver.clock.advance(0.004)
    assert driver.core.pause_seconds == pytest.approx(0.001)
    driver.clock.advance(0.001)
    assert driver.core.pause_seconds <= 1e-12
    driver.clock.advance(0.001)
    driver.step()
    assert in_last_step(driver) == {"r0"}


@given(start=st.floats(0, 1e4), waited=st.floats(0, 0.03), delay_ms=st.floats(0.01, 1e3))
def test_waiting_for_the_reported_seconds_ends_the_hold_despite_clock_rounding(
    start: float, waited: float, delay_ms: float
) -> None:
    knobs = Knobs(batching="dynamic", max_queue_delay_ms=delay_ms, preferred_batch_sizes=[8], max_num_seqs=8)
    now = start + waited
    left = max(0.0, delay_ms / 1e3 - (now - start))

    assert batch_size(knobs, waiting=1, oldest_wait=now + left - start) == 1
    assert joins_now(knobs, decoding=1, waiting=1, oldest_wait=now + left - start)


def test_one_models_held_batch_does_not_hold_another_model() -> None:
    driver = CoreDriver({"a": 1, "b": 1})
    driver.core.set_knobs({"batching": "dynamic", "max_queue_delay_ms": 50.0}, "a")
    driver.add([1], "a")
    driver.add([2], "b", sampling=greedy(3))
    driver.step()
    assert [s.sequence_id for s in driver.last_plan("b").sequences] == ["r1/0"]
    assert driver.core.pause_seconds == 0
    driver.drain()


def test_switching_to_static_makes_the_running_sequences_the_batch_and_back_lets_all_join() -> None:
    driver = CoreDriver()
    driver.add([1], sampling=greedy(9), request_id="first")
    driver.step()
    driver.core.set_knobs({"batching": "static"})
    driver.add([2], sampling=greedy(9), request_id="second")
    driver.step()
    assert in_last_step(driver) == {"first"}
    driver.core.set_knobs({"batching": "continuous"})
    driver.step()
    assert in_last_step(driver) == {"first", "second"}


def test_choices_of_a_static_batch_do_not_wait_for_the_first_one() -> None:
    """To share its prompt, they would have to join after it is computed, which a static batch forbids."""
    driver = CoreDriver(slabs=20, knobs=Knobs(batching="static"))
    driver.add([1] * 20, n=3, sampling=greedy(3))
    driver.step()
    assert len(driver.last_plan().sequences) == 3
    driver.drain()


# -- continuous, coalescing ----------------------------------------------------------------------


def test_the_queue_delay_holds_prompts_back_only_while_others_decode() -> None:
    driver = CoreDriver(
        knobs=Knobs(max_queue_delay_ms=35.0, preferred_batch_sizes=[3]), slabs=20, seconds_per_step=0.01
    )
    driver.add([1], sampling=greedy(30), request_id="old")
    driver.step()
    assert in_last_step(driver) == {"old"}
    driver.add([2], request_id="new")
    held = 0
    while "new" not in in_last_step(driver):
        driver.step()
        held += 1
    assert held == 5  # 35 ms are over before the step that begins 40 ms after the arrival
    for i in range(3):
        driver.add([3, i], request_id=f"third{i}")
    driver.step()
    assert in_last_step(driver) >= {"third0", "third1", "third2"}


@pytest.mark.parametrize(
    ("decoding", "waiting", "oldest_wait", "joins"),
    [(0, 1, 0.0, True), (1, 1, 0.0, False), (1, 1, 0.002, True), (1, 4, 0.0, True), (1, 3, 0.0, False)],
)
def test_prompts_join_at_once_without_decodes_with_a_preferred_number_or_after_the_delay(
    decoding: int, waiting: int, oldest_wait: float, joins: bool
) -> None:
    knobs = Knobs(max_queue_delay_ms=2.0, preferred_batch_sizes=[4, 16])
    assert joins_now(knobs, decoding=decoding, waiting=waiting, oldest_wait=oldest_wait) == joins


@pytest.mark.parametrize(("waiting", "size"), [(3, 0), (4, 4), (9, 8), (19, 16), (31, 20)])
def test_a_batch_has_the_largest_preferred_size_that_is_there_and_never_more_than_the_seats(
    waiting: int, size: int
) -> None:
    knobs = Knobs(batching="dynamic", max_queue_delay_ms=5.0, preferred_batch_sizes=[4, 8, 16, 32], max_num_seqs=20)
    assert batch_size(knobs, waiting=waiting, oldest_wait=0.0) == size


# -- the price of joining --------------------------------------------------------------------------


@pytest.mark.parametrize("cap", [1.25, 2.0, 4.0])
def test_a_prompt_with_many_decodes_takes_at_most_its_penalty_longer_than_alone(cap: float) -> None:
    """BS-12: steps cost what they compute; 36 answers decode under a budget of 40 tokens."""

    def seconds_to_first_token(busy: int) -> float:
        knobs = Knobs(
            max_num_batched_tokens=40, prefill_chunk=500, max_num_seqs=50, max_join_penalty=cap, prefix_caching=False
        )
        driver = CoreDriver(
            slabs=200, knobs=knobs, max_context=500, seconds_per_step=0.0, seconds_per_token=0.001, check=False
        )
        for i in range(busy):
            driver.add([i], sampling=greedy(400))
        driver.step(3)
        newcomer = driver.add([7] * 400, sampling=greedy(1))
        began = driver.clock()
        while (newcomer, 0) not in driver.finished:
            driver.step()
        return driver.clock() - began

    alone = seconds_to_first_token(0)
    assert seconds_to_first_token(36) <= cap * alone + 0.04


def test_decodes_that_wait_for_a_prompt_take_turns() -> None:
    """BS-12 and BS-07 together: of 9 decodes 5 continue in each step with the prompt, and none is left out twice."""
    driver = CoreDriver(slabs=60, knobs=Knobs(max_num_batched_tokens=10, max_join_penalty=2.0, max_num_seqs=20))
    ids = [driver.add([i], sampling=greedy(100)) for i in range(9)]
    driver.step(2)
    driver.add([7] * 100, sampling=greedy(1), request_id="prompt")
    turns = []
    for _ in range(8):
        driver.step()
        turns.append(in_last_step(driver) - {"prompt"})
        assert driver.last_plan().num_tokens == 10
    assert {len(turn) for turn in turns} == {5}
    assert all(set(ids) <= a | b for a, b in itertools.pairwise(turns))


def test_tokens_that_no_prompt_needs_go_to_decodes() -> None:
    driver = CoreDriver(slabs=60, knobs=Knobs(max_num_batched_tokens=10, max_join_penalty=2.0, max_num_seqs=20))
    for i in range(9):
        driver.add([i], sampling=greedy(100))
    driver.step(2)
    driver.add([7], sampling=greedy(1))
    driver.step()
    assert driver.last_plan().num_tokens == 10


def test_first_tokens_are_counted_by_how_many_decoded_when_they_joined() -> None:
    """BS-12: TTFT against occupancy, in stats."""
    driver = CoreDriver(slabs=60, knobs=Knobs(prefix_caching=False), seconds_per_step=0.01, seconds_per_token=0.001)
    driver.add([1] * 9, sampling=greedy(50))
    driver.drain()
    for i in range(6):
        driver.add([i] * 10, sampling=greedy(100))
    driver.step()
    driver.add([7] * 20, sampling=greedy(1))
    driver.step()
    joins = driver.core.stats().models[0].joins
    assert [(row.decoding, row.count) for row in joins] == [(0, 7), (4, 1)]
    assert joins[0].seconds_mean == pytest.approx((0.019 + 6 * 0.07) / 7)
    assert joins[1].seconds_mean == pytest.approx(0.036)
    assert joins[1].seconds_per_token == pytest.approx(0.036 / 20)
