"""Aborts: which choices end, which continue, and which blocks are free."""

import pytest
from core_driver import CoreDriver, greedy

from inference_core.errors import IntegrityError
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


def test_a_lost_sequence_is_an_integrity_error() -> None:
    driver = CoreDriver()
    driver.add([1], sampling=greedy(9))
    driver.step()
    driver.scheduler().running.clear()
    with pytest.raises(IntegrityError):
        driver.core.check_integrity()
