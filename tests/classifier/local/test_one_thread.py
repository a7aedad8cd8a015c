"""Fits of labels leave BLAS one thread while they last, and give the others back."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from classifier.local.estimator import one_blas_thread
from classifier.local.own import LabelledRow, OwnOutcomes


def blas_threads() -> list[int]:
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


def in_a_thread(act: Callable[[], object]) -> None:
    thread = threading.Thread(target=act)
    thread.start()
    thread.join()


@pytest.fixture(autouse=True)
def usual() -> Iterator[list[int]]:
    """BLAS has two threads while nothing is fitted; those of the tests' processes usually have one. A thread that has
    ended sets them: while it lives, no other could."""
    before = blas_threads()
    in_a_thread(lambda: threadpool_limits(2, user_api="blas"))
    yield blas_threads()
    in_a_thread(lambda: threadpool_limits(max(before), user_api="blas"))


def fit() -> None:
    rng = np.random.default_rng(0)
    told = [
        LabelledRow(
            classes=(1.0, 0.0, 0.0, 0.0),
            embedding=rng.normal(size=8).astype(np.float32),
            features=rng.normal(size=86).astype(np.float32),
            scores=(float(rng.random() < 0.5),),
            weights=(1.0,),
            key="key",
            app="",
            at=0.0,
        )
        for _ in range(40)
    ]
    OwnOutcomes(told, np.full((4, 1), 0.5, np.float32))


@pytest.mark.parametrize("begin", [in_a_thread, lambda act: act()], ids=["in a thread", "here"])
def test_own_labels_are_fitted_on_one_thread_and_the_others_come_back(
    begin: Callable[[Callable[[], object]], None], monkeypatch: pytest.MonkeyPatch, usual: list[int]
) -> None:
    during: list[list[int]] = []
    inverse = np.linalg.inv

    def inv(matrix: Any) -> Any:
        during.append(blas_threads())
        return inverse(matrix)

    monkeypatch.setattr(np.linalg, "inv", inv)
    for _ in range(2):
        begin(fit)
        assert blas_threads() == usual == [2] * len(usual)
    assert len(during) > 2
    assert all(count == 1 for counts in during for count in counts)


def test_a_fit_that_fails_gives_the_threads_back(usual: list[int]) -> None:
    with pytest.raises(ZeroDivisionError), one_blas_thread():
        raise ZeroDivisionError
    assert blas_threads() == usual
