"""Deadlines order service, and strict ones that cannot be met are refused early (SPEC BS-04)."""

import pytest
from core_driver import CoreDriver, greedy

from inference_core.errors import QueueFullError
from inference_core.protocol import Knobs


def busy(seconds_per_step: float = 0.01) -> CoreDriver:
    """One seat, which is taken for 20 steps; steps have been measured."""
    driver = CoreDriver(knobs=Knobs(max_num_seqs=1, prefix_caching=False), seconds_per_step=seconds_per_step)
    driver.add([1], sampling=greedy(5))
    driver.drain()
    driver.add([2], sampling=greedy(20))
    driver.step()
    return driver


def test_a_strict_deadline_that_cannot_be_met_is_refused_at_once() -> None:
    driver = busy()
    with pytest.raises(QueueFullError, match="first token is due in 50 ms, but would take"):
        driver.add([3], deadline=driver.clock() + 0.05, strict_deadline=True)
    assert driver.core.stats().models[0].deadline_refusals == 1


def test_a_strict_deadline_within_reach_is_admitted_and_kept() -> None:
    driver = busy()
    due = driver.clock() + 0.4
    request = driver.add([3], deadline=due, strict_deadline=True)
    while not driver.tokens[request, 0]:
        driver.step()
    assert driver.clock() <= due
    driver.drain()
    assert driver.finished[request, 0].finish_reason == "length"


def test_a_deadline_that_is_not_strict_is_served_late() -> None:
    driver = busy()
    request = driver.add([3], deadline=driver.clock() + 0.001)
    driver.drain()
    assert driver.finished[request, 0].finish_reason == "length"


def test_a_long_prompt_counts_its_own_steps() -> None:
    """Idle, but 40 tokens in chunks of 4 are ten steps of 10 ms."""
    driver = CoreDriver(knobs=Knobs(prefill_chunk=4), seconds_per_step=0.01)
    driver.add([1], sampling=greedy(5))
    driver.drain()
    with pytest.raises(QueueFullError):
        driver.add([2] * 40, deadline=driver.clock() + 0.09, strict_deadline=True)
    driver.add([2] * 40, deadline=driver.clock() + 0.11, strict_deadline=True)


@pytest.mark.parametrize("wait", ["in the queue", "in its prompt"])
def test_a_strict_deadline_that_passes_ends_the_request_as_overloaded(wait: str) -> None:
    """Waiting or half computed, a late request ends and its blocks are free."""
    driver = CoreDriver(
        knobs=Knobs(max_num_seqs=1 if wait == "in the queue" else 4, prefill_chunk=2, prefix_caching=False)
    )
    other = driver.add([2], sampling=greedy(20))
    driver.step()
    late = driver.add([3] * 9, deadline=driver.clock() + 1, strict_deadline=True)
    driver.step()
    driver.clock.advance(1.5)
    driver.runners["m"].failed_alone = frozenset({f"{late}/0"})
    driver.step()
    output = driver.finished[late, 0]
    assert (output.finish_reason, output.error_kind) == ("error", "overloaded")
    assert "due" in str(output.error)
    driver.drain()
    assert driver.finished[other, 0].finish_reason == "length"
    assert driver.core.stats().models[0].deadline_refusals == 1
    driver.assert_all_free()


def test_a_first_token_in_time_is_enough() -> None:
    """The answer may take as long as it takes."""
    driver = CoreDriver()
    request = driver.add([3], deadline=driver.clock() + 0.02, strict_deadline=True, sampling=greedy(10))
    driver.drain()
    assert driver.finished[request, 0].finish_reason == "length"


def test_deadlines_miss_less_often_than_first_come_first_served() -> None:
    """BS-04: the same requests with the same due times, with and without passing them to the core."""

    def misses(given: bool) -> int:
        driver = CoreDriver(knobs=Knobs(max_num_seqs=2, prefix_caching=False), seconds_per_step=0.01)
        due = {}
        for i in range(40):
            # Urgent requests come behind patient ones.
            at = 0.03 + 0.01 * i if i % 2 else 5.0
            due[driver.add([i], sampling=greedy(4), deadline=at if given else None)] = at
        late = 0
        while driver.core.has_work:
            before = set(driver.first_token_step)
            driver.step()
            late += sum(driver.clock() > due[request] for request, _ in driver.first_token_step.keys() - before)
        return late

    assert misses(given=True) < misses(given=False) / 2
