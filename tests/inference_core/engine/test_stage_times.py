"""What planning and blocks cost a request before its first token is said apart from waiting and computing (GW-01)."""

import msgspec
import pytest
from core_driver import CoreDriver, greedy
from test_swap import cramped

from inference_core.protocol import NO_TIMES, Knobs, SequenceOutput, StepTimes


def slow(driver: CoreDriver, monkeypatch: pytest.MonkeyPatch, *, planning: float, allocating: float) -> None:
    """Let each planning, and each allocation of blocks, take so many seconds of the driver's clock."""
    scheduler = driver.scheduler()
    lift, allocate = scheduler.waiting.lift, scheduler.pool.allocate

    def slow_lift(now: float, ageing_seconds: float) -> None:
        driver.clock.advance(planning)
        lift(now, ageing_seconds)

    def slow_allocate(count: int) -> list[int] | None:
        driver.clock.advance(allocating if count else 0.0)
        return allocate(count)

    monkeypatch.setattr(scheduler.waiting, "lift", slow_lift)
    monkeypatch.setattr(scheduler.pool, "allocate", slow_allocate)


def outputs_of(driver: CoreDriver) -> list[SequenceOutput]:
    outputs = []
    while driver.core.has_work:
        outputs += driver.core.step()
    return outputs


def test_planning_and_blocks_are_timed_up_to_the_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = CoreDriver(knobs=Knobs(prefill_chunk=16), seconds_per_step=1.0)
    slow(driver, monkeypatch, planning=0.5, allocating=0.25)
    driver.add(range(40), sampling=greedy(8))

    first, *others, last = outputs_of(driver)

    # Three chunks: the planning of each takes half a second, and the blocks of each a quarter.
    assert first.times == last.times == StepTimes(planning_seconds=1.5, kv_seconds=0.75)
    assert all(output.times is NO_TIMES for output in others)


def test_times_come_again_with_the_first_token_after_a_preemption() -> None:
    driver = CoreDriver(knobs=Knobs(max_num_seqs=1), seconds_per_step=1.0)
    late = driver.add(range(4), sampling=greedy(8), priority=2)
    outputs = driver.core.step() + driver.core.step()
    driver.add(range(4), sampling=greedy(2), priority=0)

    outputs += outputs_of(driver)

    first, second, third, *others, last = (output for output in outputs if output.request_id == late)
    # Two steps of the other request pass before it goes on.
    assert third.times == last.times == msgspec.structs.replace(first.times, queue_seconds=2.0, preemptions=1)
    assert all(output.times is NO_TIMES for output in (second, *others))


def test_sequences_side_by_side_wait_as_long_as_the_longest_and_add_up_their_preemptions() -> None:
    one = StepTimes(queue_seconds=1.0, planning_seconds=0.5, preemptions=1)
    other = StepTimes(queue_seconds=0.5, kv_seconds=0.25, preemptions=2)

    both = StepTimes(queue_seconds=1.0, planning_seconds=0.5, kv_seconds=0.25, preemptions=3)
    assert one.merged(other) == other.merged(one) == StepTimes.of_all([one, other]) == both
    assert StepTimes.of_all([]) == NO_TIMES


def test_copies_from_host_memory_are_time_of_the_blocks() -> None:
    driver = cramped(swap=0.0001)
    prompt = list(range(20))
    driver.add(prompt, sampling=greedy(4))
    driver.drain()
    for token in (30, 31, 32):
        driver.add([token] * 40, sampling=greedy(10))
        driver.drain()
    before = driver.core.stats().models[0].swap
    restored = before.out_blocks + before.back_blocks
    again = driver.add(prompt + driver.tokens["r0", 0], sampling=greedy(1))
    driver.drain()

    after = driver.core.stats().models[0].swap
    copied = after.out_blocks + after.back_blocks - restored
    assert copied >= 5
    assert driver.finished[again, 0].times.kv_seconds == pytest.approx(copied * 0.0001)
