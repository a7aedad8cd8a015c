"""Concurrent requests are answered in one batch, each with its own result."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from classifier.encoders.micro_batcher import MicroBatcher


def test_items_that_arrive_during_a_batch_form_the_next_one() -> None:
    seen: list[list[int]] = []
    first, release = threading.Event(), threading.Event()

    def run(items: list[int]) -> list[int]:
        seen.append(items)
        first.set()
        assert release.wait(60)
        return [-item for item in items]

    batcher = MicroBatcher(run)
    futures = [batcher.submit(0)]
    assert first.wait(60)
    futures += [batcher.submit(i) for i in range(1, 6)]
    release.set()
    assert [future.result(60) for future in futures] == [0, -1, -2, -3, -4, -5]
    assert seen == [[0], [1, 2, 3, 4, 5]]


def test_batches_are_never_larger_than_allowed_and_results_stay_with_their_requests() -> None:
    largest = 0

    def run(items: list[int]) -> list[int]:
        nonlocal largest
        largest = max(largest, len(items))
        return [item * item for item in items]

    batcher = MicroBatcher(run, max_items=4)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: batcher.submit(i).result(60), range(200)))
    assert found == [i * i for i in range(200)]
    assert largest <= 4


def test_an_error_is_the_batchs_own_and_the_next_request_is_answered() -> None:
    def run(items: list[int]) -> list[int]:
        if 0 in items:
            raise ValueError("zero")
        return items

    batcher = MicroBatcher(run)
    with pytest.raises(ValueError, match="zero"):
        batcher.submit(0).result(60)
    assert batcher.submit(1).result(60) == 1


def test_the_thread_ends_when_nothing_comes_and_starts_again() -> None:
    batcher: MicroBatcher[int, int] = MicroBatcher(lambda items: items, idle=0.01)
    assert batcher.submit(1).result(60) == 1
    thread = batcher._thread
    if thread is not None:
        thread.join(60)
    assert batcher._thread is None
    assert batcher.submit(2).result(60) == 2


def test_a_cancelled_request_is_not_computed() -> None:
    started, release, seen = threading.Event(), threading.Event(), []

    def run(items: list[int]) -> list[int]:
        seen.extend(items)
        started.set()
        assert release.wait(60)
        return items

    batcher = MicroBatcher(run)
    running = batcher.submit(1)
    assert started.wait(60)
    waiting, last = batcher.submit(2), batcher.submit(3)
    assert waiting.cancel()
    release.set()
    assert (running.result(60), last.result(10)) == (1, 3)
    assert seen == [1, 3]
