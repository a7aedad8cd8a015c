"""The state of one replica: its requests in flight, its speed, its failures. No I/O, no clock."""

from tiers.attempt import ReplicaCondition, ReplicaStatus
from tiers.catalog.replica_spec import ReplicaSpec
from tiers.replicas.circuit_breaker import CircuitBreaker
from tiers.replicas.minute_limits import MinuteEntry, MinuteLimits
from tiers.replicas.peak_ewma import FadingCount, PeakEwma

MIN_TTFT_SECONDS = 1e-3
COOLDOWN_SECONDS = 10.0


class InFlightRequest:
    """One request at one replica, from sending until its answer has ended in any way. `entry`: its place in the limits
    of the replica, None where it has none."""

    def __init__(self, replica: "Replica", now: float, entry: MinuteEntry | None = None) -> None:
        self.replica, self.began, self.entry = replica, now, entry
        self.is_over = False


class Replica:
    """State of the server at `spec.base_url`; `requests_in_flight` oldest first. The mean `weight` is 1.

    `url`: its name, which is its address (`replica_names`). `is_key`: it is one of several keys for one address.
    `limits`: None without any. `silent`: those without a first token, which reveal a hanging server before any of them
    fails. `elsewhere`: the server's requests from other clients, such as other gateways, as last reported.
    """

    def __init__(self, spec: ReplicaSpec, mean_weight: float, name: str = "") -> None:
        self.url, self.weight = name or spec.base_url, spec.weight / mean_weight
        self.is_key = self.url != spec.base_url
        self.limits = MinuteLimits(spec.requests_per_minute, spec.tokens_per_minute) if spec.is_limited else None
        self.requests_in_flight: dict[InFlightRequest, None] = {}
        self.silent: dict[InFlightRequest, None] = {}
        self.ttft = PeakEwma()
        self.breaker = CircuitBreaker()
        self.recent_requests, self.recent_failures = FadingCount(), FadingCount()
        self.requests = self.failures = 0
        self.elsewhere = 0

    @property
    def outstanding(self) -> int:
        """Requests in flight."""
        return len(self.requests_in_flight)

    def available_in(self, now: float, tokens: int = 0) -> float:
        """Return the seconds until the next request, of so many prompt tokens, may be sent."""
        paused = self.breaker.available_in(now)
        return paused if self.limits is None else max(paused, self.limits.wait(now, tokens))

    def is_within_limits(self, now: float, tokens: int) -> bool:
        """Return whether a request of so many prompt tokens keeps to the limits."""
        return self.limits is None or self.limits.wait(now, tokens) <= 0

    def expected_wait(self, now: float, decay_seconds: float, rest: float) -> float:
        """Return the relative expected time to the first token of the next request: peak EWMA × queue over weight.

        A request that has waited longer than the average counts as the average, and recent consecutive failures
        multiply it, because a server that fails at once has no queue.
        """
        longest = now - next(iter(self.silent)).began if self.silent else 0.0
        ttft = max(self.ttft.value(now, decay_seconds, rest), longest, MIN_TTFT_SECONDS)
        failures = 0 if self.is_well(now) else self.breaker.failures
        return ttft * (1 + (self.outstanding + self.elsewhere) / self.weight) * (1 + failures)

    def note_queue(self, requests: int | None) -> None:
        """Store the server's number of requests, ours included; None: not reported."""
        self.elsewhere = 0 if requests is None else max(requests - self.outstanding, 0)

    def is_well(self, now: float) -> bool:
        """Return whether its last failure is long enough ago, or an answer came after it."""
        return now - self.breaker.failed_at >= COOLDOWN_SECONDS

    def error_counts(self, now: float, decay_seconds: float) -> tuple[float, float]:
        """Return the decaying counts of failures and of ended requests."""
        return self.recent_failures.value(now, decay_seconds), self.recent_requests.value(now, decay_seconds)

    def forget_errors(self) -> None:
        """Reset the counts after an ejection."""
        self.recent_requests, self.recent_failures = FadingCount(), FadingCount()

    def condition(self, now: float) -> ReplicaCondition:
        """Return the condition in one word."""
        if self.breaker.is_open:
            return "ejected" if self.breaker.available_in(now) > 0 else "probing"
        is_open = not self.breaker.is_paused(now) and self.is_within_limits(now, 0)
        return "serving" if is_open else "paused"

    def status(self, now: float) -> ReplicaStatus:
        """Return the state as plain data."""
        return ReplicaStatus(
            replica=self.url,
            weight=self.weight,
            condition=self.condition(now),
            available_in_seconds=self.available_in(now),
            outstanding=self.outstanding,
            elsewhere=self.elsewhere,
            ttft_seconds=self.ttft.latest,
            consecutive_failures=self.breaker.failures,
            requests=self.requests,
            failures=self.failures,
        )
