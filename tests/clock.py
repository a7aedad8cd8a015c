"""A clock that stands still."""


class Clock:
    """Seconds `now`, which a test sets."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
