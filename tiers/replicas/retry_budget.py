"""A retry budget as a share of requests, so that retries do not multiply an outage."""


class RetryBudget:
    """A token bucket: every request adds `share` of a token, every retry takes one (gRPC's retry throttling).

    So there are at most `burst + share × requests` retries.
    """

    def __init__(self, burst: int) -> None:
        self._tokens = float(burst)

    def deposit(self, share: float, burst: int) -> None:
        """Count a request; at most `burst` tokens are kept."""
        self._tokens = min(float(burst), self._tokens + share)

    @property
    def is_open(self) -> bool:
        """Return whether a retry is allowed."""
        return self._tokens >= 1

    def withdraw(self) -> None:
        """Take a token for a retry."""
        self._tokens -= 1
