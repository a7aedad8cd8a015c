"""Retries as a share of requests, so that an outage is not multiplied by those who try again."""


class RetryBudget:
    """A bucket of tokens: every request adds `share` of one, every retry takes a whole one (gRPC's retry throttling).

    So retries never pass `burst + share × requests`.
    """

    def __init__(self, burst: int) -> None:
        self._tokens = float(burst)

    def deposit(self, share: float, burst: int) -> None:
        """A request came; at most `burst` tokens are kept."""
        self._tokens = min(float(burst), self._tokens + share)

    @property
    def is_open(self) -> bool:
        """Whether one more attempt may be made."""
        return self._tokens >= 1

    def withdraw(self) -> None:
        """It is made."""
        self._tokens -= 1
