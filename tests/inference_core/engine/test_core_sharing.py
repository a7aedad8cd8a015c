"""Several models on one core: they share its time by measured seconds and its memory by need."""

import pytest
from core_driver import CoreDriver, greedy
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_core.protocol import Knobs
from tests.examples import examples


def test_models_get_equal_time_not_equal_steps() -> None:
    """Deficit round robin on measured step time: steps of 10 and 1 ms share the core by time."""
    driver = CoreDriver({"slow": 1, "fast": 1}, slabs=20, seconds_per_step={"slow": 0.010, "fast": 0.001})
    for model in ("slow", "fast"):
        for i in range(3):
            driver.add([i], model, sampling=greedy(190))
    driver.step(180)
    tokens = {model: driver.runners[model].tokens_computed / 3 for model in ("slow", "fast")}
    assert tokens["slow"] * 0.010 == pytest.approx(tokens["fast"] * 0.001, abs=0.04)


def test_a_deadline_decides_which_model_goes_first() -> None:
    driver = CoreDriver({"a": 1, "b": 1, "c": 1})
    driver.add([1], "a")
    driver.add([1], "b", deadline=9.0)
    due = driver.add([1], "c", deadline=5.0)
    driver.step()
    assert list(driver.first_token_step) == [(due, 0)]


def test_models_without_deadlines_keep_their_share_during_a_stream_of_deadlines() -> None:
    driver = CoreDriver({"urgent": 1, "plain": 1}, slabs=20)
    plain = driver.add([1], "plain", sampling=greedy(40))
    for _ in range(100):
        driver.add([2], "urgent", sampling=greedy(1), deadline=driver.clock())
        driver.step()
    assert (plain, 0) in driver.finished


def test_steps_of_no_measurable_time_still_take_turns() -> None:
    driver = CoreDriver({"a": 1, "b": 1}, seconds_per_step=0.0)
    for model in ("a", "b"):
        driver.add([1], model, sampling=greedy(100))
    driver.step(20)
    assert [driver.runners[model].tokens_computed for model in ("a", "b")] == [10, 10]


@settings(max_examples=examples(15), deadline=None)
@given(widths=st.tuples(st.integers(1, 4), st.integers(1, 4)), slabs=st.integers(10, 40), share=st.booleans())
def test_an_idle_models_slabs_go_to_the_busy_one_within_100_steps(
    widths: tuple[int, int], slabs: int, share: bool
) -> None:
    """The elastic arena: with prefix caching on, B gets at least 90% of the slabs that A left full of cache."""
    driver = CoreDriver({"a": widths[0], "b": widths[1]}, slabs=slabs, max_context=64, check=False)
    prefix = [5] * 8 if share else []
    i = 0
    while driver.arena.num_free:
        driver.add(prefix + [i % 50, i // 50] * 12, "a", sampling=greedy(30))
        driver.drain()
        i += 1
    left_by_a = driver.arena.slabs_of(driver.pool("a"))
    for i in range(200):
        driver.add([i % 50, i // 50] * 15, "b", sampling=greedy(34))
    best = 0.0
    for _ in range(100):
        driver.step()
        best = max(best, len(left_by_a & driver.arena.slabs_of(driver.pool("b"))) / len(left_by_a))
        driver.core.check_integrity()
    assert best >= 0.9


@settings(max_examples=examples(12), deadline=None)
@given(
    widths=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    slabs=st.integers(10, 30),
    survivors=st.integers(1, 6),
    caching=st.booleans(),
    moves=st.sampled_from([4, 64]),
)
def test_a_few_long_answers_keep_only_the_slabs_that_they_fill(
    widths: tuple[int, int], slabs: int, survivors: int, caching: bool, moves: int
) -> None:
    """A's last sequences are scattered over its slabs; B gets all but what their blocks fill, within 100 steps."""
    knobs = Knobs(prefix_caching=caching, block_moves_per_step=moves, max_num_seqs=200, max_num_batched_tokens=256)
    driver = CoreDriver({"a": widths[0], "b": widths[1]}, slabs=slabs, knobs=knobs, max_context=150, check=False)
    short = [driver.add([i % 50, i // 50] * 10, "a", sampling=greedy(3)) for i in range(200)]
    kept = [driver.add([i] * 3, "a", priority=0, sampling=greedy(147)) for i in range(survivors)]
    while not all((request, 0) in driver.finished for request in short):
        driver.step()
    for i in range(150):
        driver.add([i % 50, i // 50] * 15, "b", sampling=greedy(34))
    least = slabs
    for _ in range(100):
        driver.step()
        driver.core.check_integrity()
        pool = driver.pool("a")
        needed = -(-pool.num_referenced // pool.blocks_per_slab)
        least = min(least, slabs - driver.pool("b").num_slabs - needed)
    assert least <= 0
    driver.drain()
    assert all(driver.finished[request, 0].finish_reason == "length" for request in kept)


def test_no_block_is_copied_while_no_model_waits_for_memory() -> None:
    driver = CoreDriver({"a": 1, "b": 1}, slabs=30)
    for i in range(20):
        driver.add([i] * 20, "ab"[i % 2], sampling=greedy(5 + 3 * i))
    driver.drain()
    assert [runner.copied for runner in driver.runners.values()] == [0, 0]


def test_moves_are_bounded_per_step() -> None:
    driver = CoreDriver({"a": 1, "b": 1}, slabs=4, knobs=Knobs(block_moves_per_step=2))
    for i in range(4):
        driver.add([40 + i] * 20, "a", sampling=greedy(60))
        driver.step()
        fill = driver.add([i] * 40, "a", sampling=greedy(1))
        while (fill, 0) not in driver.finished:
            driver.step()
    driver.add([9] * 80, "b", sampling=greedy(1))
    copies = []
    for _ in range(30):
        driver.step()
        copies.append(len(driver.last_plan("a").copies))
    assert max(copies) == 2


def test_a_busy_models_cache_grows_over_an_idle_ones_without_memory_pressure() -> None:
    """One request at a time needs few blocks, yet B's cache displaces A's, which was unused for longer."""
    driver = CoreDriver({"a": 1, "b": 1}, slabs=6)
    for model in ("a", "b"):
        for i in range(30):
            driver.add([i] * 40, model, sampling=greedy(1))
            driver.drain()
    assert driver.pool("b").num_slabs >= 5


def test_a_model_that_waits_for_memory_is_not_kept_out_by_new_arrivals_of_another() -> None:
    """KV-10: B's request needs nearly the whole arena; A's arrivals of the same class hold back until it fits."""
    driver = CoreDriver({"a": 1, "b": 1}, slabs=2, knobs=Knobs(max_num_seqs=8, prefix_caching=False))
    large = None
    for i in range(300):
        while len(driver.scheduler("a").waiting) < 3:
            driver.add([i % 50] * 10, "a", sampling=greedy(12))
        if i == 20:
            large = driver.add([1] * 90, "b", sampling=greedy(4))
        driver.step()
    assert large is not None
    assert (large, 0) in driver.finished


def test_a_higher_class_takes_memory_from_another_models_batch_work() -> None:
    """BS-05 across models: the lowest class is preempted in whichever model it runs."""
    driver = CoreDriver({"a": 1, "b": 1}, slabs=1)
    batch = driver.add([1] * 30, "a", priority=2, sampling=greedy(25))
    driver.step(2)
    urgent = driver.add([2] * 30, "b", priority=0, sampling=greedy(4))
    driver.drain()
    assert driver.finished[batch, 0].times.preemptions == 1
    assert driver.first_token_step[urgent, 0] <= 3


def test_two_models_that_need_the_whole_arena_each_both_finish() -> None:
    driver = CoreDriver({"a": 1, "b": 1}, slabs=1, knobs=Knobs(prefill_chunk=4))
    for model in ("a", "b"):
        driver.add([3] * 4, model, sampling=greedy(60))
    driver.drain(limit=600)
    assert [output.finish_reason for output in driver.finished.values()] == ["length"] * 2
