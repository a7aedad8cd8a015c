"""Steps that are planned while others are under way give the same tokens, and lose and leak nothing (SPEC AT-08)."""

import pytest
from core_driver import BLOCK, CoreDriver, greedy

from inference_core.protocol import Knobs, SamplingParams


def late_driver(**fields: object) -> CoreDriver:
    return CoreDriver(overlap=True, **fields)


def test_a_step_is_launched_before_the_one_before_it_is_waited_for() -> None:
    driver = late_driver()
    driver.add([1, 2, 3], sampling=greedy(5))
    driver.step(2)
    assert driver.runners["m"].launches == 2
    assert driver.runners["m"].overlapped == 1
    assert len(driver.device.jobs) == 1
    assert len(driver.tokens["r0", 0]) == 1
    driver.drain()
    driver.assert_all_free()


def test_no_row_is_computed_beyond_the_last_token_of_an_answer() -> None:
    driver = late_driver()
    for prompt in ([1] * 5, [2] * 7):
        driver.add(prompt, sampling=greedy(6))
    driver.drain()
    assert driver.runners["m"].tokens_computed == 5 + 7 + 2 * 5


def test_after_a_stop_token_the_step_under_way_is_of_no_consequence() -> None:
    driver = late_driver()
    prompt = [1, 2, 3]
    stop = driver.runners["m"].expected_tokens(prompt, 4, greedy(4))[3]
    driver.add(prompt, sampling=SamplingParams(temperature=0, max_tokens=20, stop_token_ids=(stop,)))
    driver.add([9] * 6, sampling=greedy(12))
    driver.drain()
    assert driver.finished["r0", 0].finish_reason == "stop"
    assert driver.runners["m"].tokens_computed == 3 + 3 + 6 + 11 + 1
    driver.assert_all_free()


def test_who_leaves_while_a_step_is_under_way_frees_the_blocks_at_once() -> None:
    driver = late_driver(slabs=1, knobs=Knobs(prefix_caching=False))
    driver.add([1] * 12 * BLOCK, sampling=greedy(15))
    driver.step(3)
    driver.abort("r0")
    assert driver.pool().num_referenced == 0
    driver.add([2] * 14 * BLOCK, sampling=greedy(5))
    driver.drain()
    assert driver.finished["r1", 0].finish_reason == "length"
    assert driver.finished["r0", 0].completion_tokens == len(driver.tokens["r0", 0])


def test_what_is_drawn_by_its_history_waits_for_it() -> None:
    driver = late_driver()
    penalised = SamplingParams(temperature=0, max_tokens=8, presence_penalty=0.5, ignore_eos=True)
    driver.add([1, 2], sampling=penalised)
    driver.drain()
    assert driver.runners["m"].overlapped == 0


def test_an_in_flight_step_that_fails_costs_no_sequence_a_token() -> None:
    driver = late_driver()
    for prompt in ([1] * 5, [2] * 7, [3] * 9):
        driver.add(prompt, sampling=greedy(10))
    driver.step(4)
    driver.runners["m"].fault = RuntimeError("lost")
    driver.drain()
    assert {output.finish_reason for output in driver.finished.values()} == {"length"}
    driver.assert_all_free()


def test_a_sequence_that_joined_in_the_step_after_a_failed_one_loses_nothing() -> None:
    driver = late_driver()
    driver.add([1] * 5, sampling=greedy(10))
    driver.step(3)
    driver.add([2] * 7, sampling=greedy(10))
    driver.runners["m"].fault = RuntimeError("lost")
    driver.drain()
    assert {output.finish_reason for output in driver.finished.values()} == {"length"}


def test_who_makes_every_step_fail_ends_alone_and_steps_overlap_again_afterwards() -> None:
    driver = late_driver()
    for prompt in ([1] * 5, [2] * 7, [3] * 9):
        driver.add(prompt, sampling=greedy(30))
    driver.step(4)
    driver.runners["m"].poisoned = frozenset({"r1/0"})
    driver.step(12)
    assert driver.finished["r1", 0].finish_reason == "error"
    before = driver.runners["m"].overlapped
    driver.drain()
    assert driver.runners["m"].overlapped > before
    assert [driver.finished[f"r{i}", 0].finish_reason for i in (0, 2)] == ["length", "length"]
    driver.assert_all_free()


def test_a_launch_that_fails_loses_neither_its_step_nor_the_one_before_it() -> None:
    driver = late_driver()
    for prompt in ([1] * 5, [2] * 7):
        driver.add(prompt, sampling=greedy(10))
    driver.step(4)
    known = len(driver.tokens["r0", 0])
    driver.runners["m"].fault_at_launch = RuntimeError("no room")
    driver.step()
    assert len(driver.tokens["r0", 0]) == known + 1
    driver.drain()
    assert {output.finish_reason for output in driver.finished.values()} == {"length"}


@pytest.mark.parametrize("prompt_device", [True, False])
def test_models_that_take_slabs_from_each_other_overlap_too(prompt_device: bool) -> None:
    driver = late_driver(models={"a": 1, "b": 3}, slabs=4, max_context=60)
    driver.device.prompt = prompt_device
    for i in range(40):
        driver.add([i % 3] * (i % 5 + 1) * BLOCK, "ab"[i % 2], sampling=greedy(9), n=1 + i % 2)
        driver.step(2)
    driver.drain()
    assert all(runner.overlapped > 0 for runner in driver.runners.values())
    driver.assert_all_free()
