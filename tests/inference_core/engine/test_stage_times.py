"""What planning and blocks cost a request before its first token is said apart from waiting and computing (GW-01)."""

import pytest
from core_driver import CoreDriver, greedy
from test_swap import cramped

from inference_core.protocol import Knobs, SequenceOutput


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
    assert (first.planning_seconds, first.kv_seconds) == (1.5, 0.75)
    assert {(output.planning_seconds, output.kv_seconds) for output in others} == {(0.0, 0.0)}
    assert (last.planning_seconds, last.kv_seconds) == (1.5, 0.75)
    assert last.queue_seconds == 0.0


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
    assert driver.finished[again, 0].kv_seconds == pytest.approx(copied * 0.0001)
