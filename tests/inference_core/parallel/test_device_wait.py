"""A leader's wait for its device ends when the device does, when a rank is lost, or when it took too long."""

from collections.abc import Iterator

import pytest
import torch

from inference_core.errors import RankLostError
from inference_core.parallel.collectives import wait_for_device, wait_until


class Clock:
    """Advances by each pause, at least a hundredth of a second."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += max(seconds, 0.01)


def never() -> bool:
    return False


def no_check() -> None:
    pass


def test_a_device_that_is_done_is_not_waited_for() -> None:
    wait_until(
        lambda: True, lambda: pytest.fail("looked"), 0.0, clock=lambda: 0.0, pause=lambda _: pytest.fail("slept")
    )
    wait_for_device(torch.device("cpu"), lambda: pytest.fail("looked"), 0.0)


def test_the_wait_ends_with_the_device() -> None:
    answers: Iterator[bool] = iter([False] * 30 + [True])
    clock = Clock()
    wait_until(lambda: next(answers), no_check, 10, clock=clock, pause=clock.pause)
    assert next(answers, None) is None


def test_a_rank_that_is_lost_meanwhile_ends_the_wait() -> None:
    def check_ranks() -> None:
        raise RankLostError("rank(s) 3 died without a report")

    clock = Clock()
    with pytest.raises(RankLostError, match="3 died"):
        wait_until(never, check_ranks, 10, clock=clock, pause=clock.pause)
    assert clock.now < 0.2


def test_a_device_that_takes_too_long_is_taken_for_hung() -> None:
    clock = Clock()
    with pytest.raises(RankLostError, match="did not finish within 2 seconds"):
        wait_until(never, no_check, 2, clock=clock, pause=clock.pause)
