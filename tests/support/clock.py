"""A clock that stands still until a test moves it."""

import pytest


class Clock:
    """The time in seconds, `now`, for all that takes a clock as a function."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()
