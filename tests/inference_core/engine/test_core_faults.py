"""A step that fails ends the sequences that make it fail, and no others (fault tests over a hash model)."""

import logging

import pytest
from core_driver import BLOCK, CoreDriver, greedy
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_core.errors import BadLogitsError
from inference_core.protocol import Knobs
from tests.examples import examples

# Faults are part of the game here; their tracebacks are noise.
logging.getLogger("inference_core.engine.step_executor").setLevel(logging.CRITICAL)


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data(), count=st.integers(1, 9), early=st.booleans(), chunk=st.sampled_from([3, 100]))
def test_only_the_sequences_that_fail_alone_are_ended(data: st.DataObject, count: int, early: bool, chunk: int) -> None:
    """Any failing sequences, in any batch, in prompts and answers: the others give unchanged answers."""
    driver = CoreDriver(slabs=20, knobs=Knobs(prefill_chunk=chunk))
    ids = [driver.add([i] * (3 + 2 * i), sampling=greedy(6)) for i in range(count)]
    driver.step(data.draw(st.integers(0, 5)))
    guilty = data.draw(st.sets(st.sampled_from(ids)))
    live = {request for request in guilty if (request, 0) not in driver.finished}
    driver.runners["m"].poisoned = frozenset(f"{request}/0" for request in guilty)
    driver.runners["m"].early = early
    driver.drain()
    reasons = {request: driver.finished[request, 0].finish_reason for request in ids}
    assert reasons == {request: "error" if request in live else "length" for request in ids}
    assert all("poisoned" in str(driver.finished[request, 0].error) for request in live)
    driver.assert_all_free()


def test_an_exception_that_does_not_recur_ends_no_request() -> None:
    driver = CoreDriver()
    ids = [driver.add([i], sampling=greedy(5)) for i in range(4)]
    driver.step(2)
    driver.runners["m"].fault = RuntimeError("device hiccup")
    driver.drain()
    assert [driver.finished[request, 0].finish_reason for request in ids] == ["length"] * 4


def test_no_sequence_loses_a_step_to_the_fault_of_another() -> None:
    """The halves run within the same step: every sequence has its token after it."""
    driver = CoreDriver()
    ids = [driver.add([i], sampling=greedy(5)) for i in range(5)]
    driver.step()
    driver.runners["m"].poisoned = frozenset({f"{ids[3]}/0"})
    driver.step()
    assert [len(driver.tokens[request, 0]) for request in ids] == [2, 2, 2, 1, 2]


def test_a_guilty_sequence_among_many_is_found_by_halving() -> None:
    """Of 32 sequences one fails: the whole, then one half of it at a time, 6 failing runs and 5 that succeed."""
    driver = CoreDriver(slabs=40, knobs=Knobs(max_num_seqs=32))
    ids = [driver.add([i], sampling=greedy(3)) for i in range(32)]
    driver.step()
    runner = driver.runners["m"]
    runner.poisoned = frozenset({f"{ids[21]}/0"})
    runs = []
    run = runner._run
    runner._run = lambda plan: runs.append(len(plan.sequences)) or run(plan)  # type: ignore[method-assign]
    driver.step()
    assert sorted(runs) == [1, 1, 2, 2, 4, 4, 8, 8, 16, 16, 32]


def test_a_step_that_lacks_memory_is_run_in_smaller_ones() -> None:
    """Halves of the batch first, then halves of a prompt's chunk, down to single tokens: no sequence is lost."""
    for most in (1, 2, 7, 30):
        driver = CoreDriver(slabs=20)
        ids = [driver.add([i] * 10, sampling=greedy(4)) for i in range(5)]
        driver.runners["m"].most_tokens = most
        driver.drain()
        assert [driver.finished[request, 0].finish_reason for request in ids] == ["length"] * 5


def test_a_chunk_whose_second_half_fails_ends_its_sequence() -> None:
    driver = CoreDriver()
    request = driver.add([1] * 10)
    runner = driver.runners["m"]
    runner.most_tokens = 6
    run = runner._run

    def broken_from_5(plan):  # type: ignore[no-untyped-def]
        if plan.sequences[0].start >= 5:
            runner.failed_alone |= {plan.sequences[0].sequence_id}
            raise RuntimeError("bad row")
        return run(plan)

    runner._run = broken_from_5  # type: ignore[method-assign]
    driver.drain()
    assert driver.finished[request, 0].finish_reason == "error"
    driver.assert_all_free()


def test_undrawable_logits_end_their_own_sequences_and_no_others() -> None:
    """The step is run again for the rest, within the same step."""
    driver = CoreDriver()
    ids = [driver.add([i], sampling=greedy(5)) for i in range(4)]
    driver.step()
    driver.runners["m"].fault = BadLogitsError([1, 3], 50)
    driver.step()
    assert [len(driver.tokens[request, 0]) for request in ids] == [2, 1, 2, 1]
    driver.drain()
    reasons = [driver.finished[request, 0].finish_reason for request in ids]
    assert reasons == ["length", "error", "length", "error"]


def test_a_fault_of_one_model_is_none_of_anothers_business() -> None:
    driver = CoreDriver({"a": 1, "b": 1}, knobs=Knobs(max_num_seqs=1))
    hit = driver.add([1] * 5, "a", sampling=greedy(5))
    queued = driver.add([2] * 5, "a", sampling=greedy(5))
    other = driver.add([3] * 5, "b", sampling=greedy(5))
    driver.step(4)
    driver.runners["a"].fault = RuntimeError("device lost")
    driver.drain()
    assert (driver.finished[hit, 0].finish_reason, driver.finished[hit, 0].error) == ("error", "device lost")
    assert driver.finished[queued, 0].finish_reason == driver.finished[other, 0].finish_reason == "length"
    driver.assert_all_free()


def test_a_runner_that_returns_nonsense_ends_its_step_with_a_clear_error() -> None:
    driver = CoreDriver()
    request = driver.add([1])
    runner = driver.runners["m"]
    runner._draw = lambda *_: 50  # type: ignore[method-assign]
    runner.failed_alone = frozenset({f"{request}/0"})
    driver.step()
    assert driver.finished[request, 0].finish_reason == "error"
    assert "1 tokens were asked for" in str(driver.finished[request, 0].error)


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("all_fail", [True, False])
def test_a_step_that_fails_while_blocks_are_moved_corrupts_nothing(early: bool, all_fail: bool) -> None:
    """Copies that were made, were not made, or were made for runs that failed: every token stays right."""
    driver = CoreDriver({"a": 1, "b": 1}, slabs=4, knobs=Knobs(block_moves_per_step=64))
    long_lived = scatter(driver, "a", 3)
    waits = driver.add([7] * BLOCK * 16, "b", sampling=greedy(1))
    runner = driver.runners["a"]
    if all_fail:
        runner.poisoned = frozenset(f"{request}/0" for request in long_lived)
    else:
        runner.poisoned = frozenset({f"{long_lived[1]}/0"})
    runner.early = early
    while (long_lived[1], 0) not in driver.finished:
        driver.step()
    assert any(plan.copies for plan in runner.plans)
    driver.abort(waits)
    for request in long_lived:
        # What was computed before is still in the cache, under its right name.
        driver.add(driver.requests[request].prompt_token_ids + driver.tokens[request, 0], "a", sampling=greedy(4))
    driver.drain()
    failed = [driver.finished[request, 0].finish_reason == "error" for request in long_lived]
    assert failed == ([True] * 3 if all_fail else [False, True, False])
    driver.assert_all_free()


def scatter(driver: CoreDriver, model: str, count: int) -> list[str]:
    """`count` long-lived sequences, each alone in a slab that finished ones left behind."""
    ids = []
    for i in range(count):
        ids.append(driver.add([40 + i] * 3, model, sampling=greedy(120)))
        driver.step()
        fill = driver.add([i] * BLOCK * 14, model, sampling=greedy(1))
        while (fill, 0) not in driver.finished:
            driver.step()
    return ids
