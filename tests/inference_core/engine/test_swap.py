"""Blocks that the device has no room for come back from host memory instead of being computed (SPEC KV-09, TI-14)."""

import pytest
from core_driver import BLOCK, CoreDriver, greedy

from inference_core.protocol import Knobs, SwapStats


def cramped(host: int = 200, *, overlap: bool = False, swap: float = 0.0, **knobs: object) -> CoreDriver:
    """One slab of 16 blocks; a token takes a millisecond."""
    return CoreDriver(
        slabs=1,
        knobs=Knobs(host_cache_blocks=host, **knobs),
        max_context=64,
        seconds_per_token=0.001,
        seconds_per_swap=swap,
        overlap=overlap,
    )


def crowd(driver: CoreDriver) -> None:
    """Three answers of 13 blocks each, of which one fits."""
    for token in (1, 2, 3):
        driver.add([token] * 12, sampling=greedy(40))
    driver.drain()
    assert {output.finish_reason for output in driver.finished.values()} == {"length"}
    assert driver.scheduler().totals.preemptions > 0


def swaps(driver: CoreDriver) -> SwapStats:
    return driver.core.stats().models[0].swap


@pytest.mark.parametrize("overlap", [False, True])
def test_preempted_sequences_recompute_only_their_partial_block(overlap: bool) -> None:
    without, with_host = cramped(0, overlap=overlap), cramped(overlap=overlap)
    for driver in (without, with_host):
        crowd(driver)
    runner = with_host.runners["m"]
    assert without.runners["m"].restored == 0
    assert runner.restored > 0
    spared = without.runners["m"].tokens_computed - runner.tokens_computed
    # Both are preempted at different times, so counts differ; but restored blocks were not computed.
    assert spared > runner.restored * BLOCK / 2
    # What is beyond all full blocks is less than a block for each preemption, and the last token.
    once = 3 * (12 + 39)
    assert runner.tokens_computed <= once + with_host.scheduler().totals.preemptions * (2 * BLOCK)
    with_host.assert_all_free()


def test_stats_count_waiting_sequences_and_spared_seconds() -> None:
    driver = cramped(swap=0.0001)
    for length in range(5, 45):
        driver.add([length] * length, sampling=greedy(2))
        driver.drain()
    before = swaps(driver)
    crowd(driver)
    stats, runner = swaps(driver), driver.runners["m"]
    assert (stats.out_blocks, stats.back_blocks) == (runner.offloaded, runner.restored)
    assert stats.copying_seconds == pytest.approx((stats.out_blocks + stats.back_blocks) * 0.0001)
    assert stats.out_seconds_per_block == pytest.approx(0.0001)
    assert stats.block_bytes == 64
    # A block of four tokens takes four milliseconds to compute.
    assert stats.back_blocks > before.back_blocks
    spared = stats.spared_seconds - before.spared_seconds
    assert spared == pytest.approx((stats.back_blocks - before.back_blocks) * 0.004, rel=0.1)


def test_if_computing_is_cheaper_only_exploring_copies_are_made() -> None:
    driver = cramped(swap=0.1)
    for _ in range(3):
        crowd(driver)
    stats = swaps(driver)
    assert stats.refused_blocks > 50
    assert stats.out_blocks < stats.refused_blocks / 5


def test_a_conversation_finds_the_blocks_that_others_have_pushed_out() -> None:
    driver = cramped()
    prompt = list(range(20))
    driver.add(prompt, sampling=greedy(4))
    driver.drain()
    for token in (30, 31, 32):
        driver.add([token] * 40, sampling=greedy(10))
        driver.drain()
    before = driver.runners["m"].tokens_computed
    again = driver.add(prompt + driver.tokens["r0", 0], sampling=greedy(4))
    driver.drain()
    assert driver.finished[again, 0].cached_tokens == 20
    assert driver.runners["m"].tokens_computed - before == 24 - 20 + 3


def test_choices_that_wait_for_their_leader_share_its_restored_blocks() -> None:
    driver = cramped()
    prompt = list(range(20))
    driver.add(prompt, sampling=greedy(4))
    for token in (30, 31, 32):
        driver.add([token] * 40, sampling=greedy(10))
    driver.drain()
    before = driver.runners["m"].restored
    driver.add([*prompt, 40], sampling=greedy(4), n=3)
    driver.drain()
    assert driver.runners["m"].restored - before == 5


@pytest.mark.parametrize("capacity", [1, 3, 8])
def test_no_more_blocks_are_kept_than_the_knob_says(capacity: int) -> None:
    driver = cramped(capacity)
    crowd(driver)
    assert driver.pool().host.num_kept == capacity
    slots = {slot for plan in driver.runners["m"].plans for _, slot in plan.offloads}
    assert slots <= set(range(capacity))
    driver.core.set_knobs({"host_cache_blocks": 0})
    crowd(driver)
    assert driver.pool().host.num_kept == 0


def test_without_prefix_caching_nothing_is_kept() -> None:
    driver = cramped(prefix_caching=False)
    crowd(driver)
    assert driver.runners["m"].offloaded == 0


def test_switching_prefix_caching_off_drops_the_host_cache() -> None:
    driver = cramped()
    crowd(driver)
    assert driver.pool().host.num_kept > 0
    driver.core.set_knobs({"prefix_caching": False})
    assert driver.pool().host.num_kept == 0


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("early", [False, True])
def test_a_step_that_fails_undoes_its_copies(overlap: bool, early: bool) -> None:
    """Each step fails once, after or before its copies; overwritten blocks are never restored."""
    driver = cramped(overlap=overlap)
    for token in (1, 2, 3):
        driver.add([token] * 12, sampling=greedy(40))
    for _ in range(400):
        driver.runners["m"].early = early
        driver.runners["m"].fault = RuntimeError("lost") if driver.steps % 3 == 0 else None
        driver.step()
    driver.runners["m"].fault = None
    driver.drain()
    assert driver.runners["m"].restored > 0
    driver.assert_all_free()


def test_blocks_of_waiting_sequences_are_kept_before_others() -> None:
    """Five host slots hold the five blocks that the preempted request had; idle prefixes pass them by."""
    driver = cramped(5, max_num_seqs=1)
    driver.add([1] * 20, sampling=greedy(30), priority=2)
    driver.step(2)
    for token in range(10, 16):
        driver.add([token] * 40, sampling=greedy(2), priority=0)
    driver.drain()
    assert driver.runners["m"].restored == 5


def test_an_aborted_request_no_longer_waits_for_its_blocks() -> None:
    driver = cramped()
    for token in (1, 2, 3):
        driver.add([token] * 12, sampling=greedy(40))
    while not driver.pool().host._wanted:
        driver.step()
    for request in ("r0", "r1", "r2"):
        driver.abort(request)
    assert not driver.pool().host._wanted
    driver.assert_all_free()
