"""How many threads a step uses next to other processes: scripted times of steps in, numbers of threads out."""

from itertools import groupby, pairwise

import pytest

from inference_core.native import cpu

pytestmark = pytest.mark.skipif(not cpu.AVAILABLE, reason="the native kernels were not built (no C++ compiler)")

# Seconds of a step, and of its threads' waits for a processor: alone, and next to a process on the CPU of one of them.
ALONE = (0.0025, 0.0)
SHARED = (0.010, 0.007)
# The same step on one thread, which has a processor for itself.
ONE = (0.0042, 0.0)


def chosen(most: int, steps: list[tuple[float, float]]) -> list[int]:
    """The threads chosen after each step."""
    return list(cpu.extension().choose_threads(most, steps))


def with_neighbour(most: int, steps: int, wait: float = SHARED[1]) -> list[int]:
    """The threads after each of `steps` next to a neighbour, which costs nothing once a thread less is used."""
    observed: list[tuple[float, float]] = []
    threads = [most]
    for _ in range(steps):
        observed.append((SHARED[0], wait) if threads[-1] == most else ONE)
        threads = chosen(most, observed)
    return threads


def test_a_machine_of_its_own_is_used_whole() -> None:
    assert chosen(2, [ALONE] * 1000) == [2] * 1000


def test_one_interruption_is_no_neighbour() -> None:
    assert set(chosen(2, [ALONE] * 10 + [(0.0045, 0.002)] + [ALONE] * 10)) == {2}


def test_waking_threads_is_no_wait_for_a_processor() -> None:
    assert set(chosen(4, [(0.0008, 0.0006)] * 1000)) == {4}


@pytest.mark.parametrize("before", range(96, 101))
def test_next_to_a_neighbour_a_thread_is_left_out_after_six_steps_at_most(before: int) -> None:
    assert chosen(2, [ALONE] * before + [SHARED] * 6)[-1] == 1


def test_one_thread_is_kept_whatever_it_waits() -> None:
    assert chosen(1, [SHARED] * 100) == [1] * 100


def test_a_thread_is_tried_again_ever_more_seldom_while_the_neighbour_stays() -> None:
    threads = with_neighbour(2, 1800)
    rests = [len(list(run)) for used, run in groupby(threads) if used == 1]
    assert rests[0] * ONE[0] == pytest.approx(0.05, abs=0.01)
    assert all(after >= before for before, after in pairwise(rests[:-1]))
    assert rests[-2] * ONE[0] == pytest.approx(2.0, abs=0.01)
    assert threads.count(2) < 0.06 * len(threads)


def test_all_threads_are_used_within_two_seconds_once_the_neighbour_is_gone() -> None:
    threads = with_neighbour(2, 1200)
    before = [SHARED if used == 2 else ONE for used in [2, *threads[:-1]]]
    after: list[tuple[float, float]] = []
    while chosen(2, before + after)[-1] == 1:
        after.append(ONE)
    assert sum(seconds for seconds, _ in after) < 2.1
    assert set(chosen(2, before + after + [ALONE] * 1000)[len(before) + len(after) :]) == {2}


def test_a_thread_that_is_tried_again_stays_once_it_is_moved_to_a_processor_of_its_own() -> None:
    threads = with_neighbour(2, 40)
    before = [SHARED if used == 2 else ONE for used in [2, *threads[:-1]]]
    tried = before + [ONE] * 200
    first = chosen(2, tried).index(2, len(before))
    # Both threads share a processor for the first steps, as one that slept may be woken where another runs.
    steps = tried[: first + 1] + [SHARED] * 6 + [ALONE] * 400
    assert set(chosen(2, steps)[first:]) == {2}


def test_of_many_threads_as_many_are_left_out_as_have_neighbours() -> None:
    observed: list[tuple[float, float]] = []
    threads = [8]
    for _ in range(400):
        # Three neighbours on eight CPUs.
        waits = max(threads[-1] - 5, 0)
        observed.append((0.004 + 0.004 * (waits > 0), 0.003 * waits))
        threads = chosen(8, observed)
    assert min(threads) == 5
    assert threads[-100:].count(5) > 80


def test_a_number_that_was_asked_for_is_kept() -> None:
    assert cpu.set_threads(2) == 2
    assert cpu.threads_in_use() == 2
    cpu.set_threads(None)
