"""A core whose requests are aborted or fail: what ends, what goes on, what is free."""

import pytest
from core_driver import CoreDriver, greedy

from inference_core.errors import BadLogitsError, IntegrityError
from inference_core.protocol import Knobs


def test_an_abort_frees_all_blocks_of_all_choices_at_once() -> None:
    driver = CoreDriver(knobs=Knobs(prefix_caching=False))
    request = driver.add([1] * 10, n=3, sampling=greedy(50))
    driver.step(3)
    driver.abort(request)
    assert not driver.core.has_work
    assert driver.arena.num_free == driver.arena.num_slabs
    assert [driver.finished[request, i].finish_reason for i in range(3)] == ["abort"] * 3


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("index", [0, 1, 2])
def test_an_aborted_choice_frees_its_blocks_and_leaves_the_others_alone(index: int, steps: int) -> None:
    driver = CoreDriver(knobs=Knobs(prefix_caching=False))
    request = driver.add([1] * 10, n=3, sampling=greedy(20))
    driver.step(steps)
    held = driver.pool().num_referenced
    driver.abort(request, index)
    assert driver.finished.keys() == {(request, index)}
    assert driver.finished[request, index].finish_reason == "abort"
    assert driver.pool().num_referenced < held or not held
    driver.drain()
    assert [driver.finished[request, i].finish_reason for i in range(3) if i != index] == ["length"] * 2
    driver.assert_all_free()


def test_a_request_is_over_once_its_last_choice_is_aborted() -> None:
    driver = CoreDriver()
    request = driver.add([1] * 10, n=2, sampling=greedy(20))
    driver.step(2)
    driver.abort(request, 1)
    assert driver.core.has_work
    driver.abort(request, 0)
    assert not driver.core.has_work


def test_an_abort_of_an_unknown_or_finished_choice_is_ignored() -> None:
    driver = CoreDriver()
    request = driver.add([1], n=2, sampling=greedy(20))
    driver.step(2)
    driver.abort(request, 1)
    assert driver.core.abort(request, 1) == []
    assert driver.core.abort(request, 2) == []
    assert driver.core.abort("never seen", 0) == []


def test_an_abort_of_an_unknown_or_finished_request_is_ignored() -> None:
    driver = CoreDriver()
    request = driver.add([1])
    driver.drain()
    assert driver.core.abort(request) == []
    assert driver.core.abort("never seen") == []


def test_a_runner_exception_ends_only_the_sequences_of_that_step() -> None:
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


def test_a_runner_that_returns_nonsense_ends_its_step_with_a_clear_error() -> None:
    driver = CoreDriver()
    request = driver.add([1])
    driver.runners["m"]._draw = lambda *_: 50  # type: ignore[method-assign]
    driver.step()
    assert driver.finished[request, 0].finish_reason == "error"
    assert "1 tokens were asked for" in str(driver.finished[request, 0].error)


def test_a_lost_sequence_is_an_integrity_error() -> None:
    driver = CoreDriver()
    driver.add([1], sampling=greedy(9))
    driver.step()
    driver.scheduler().running.clear()
    with pytest.raises(IntegrityError):
        driver.core.check_integrity()
