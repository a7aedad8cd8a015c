"""What is known of one replica: its requests in flight, its speed, its failures. No I/O, no clock of its own."""

from tiers.attempt import ReplicaCondition, ReplicaStatus
from tiers.catalog.replica_spec import ReplicaSpec
from tiers.replicas.circuit_breaker import Breaker
from tiers.replicas.peak_ewma import FadingCount, PeakEwma

MIN_TTFT_SECONDS = 1e-3
COOLDOWN_SECONDS = 10.0


class InFlightRequest:
    """One request at one replica, from when it is sent until its answer has ended, however it ends."""

    def __init__(self, replica: "Replica", now: float) -> None:
        self.replica, self.began = replica, now
        self.is_over = False


class Replica:
    """State of the server at `spec.base_url`; `requests_in_flight` oldest first. The mean `weight` is 1.

    `silent`: those whose first token has not come, which tells of a server that hangs before any of them has failed.
    `elsewhere`: what the server has of others, other gateways for one, as it told last.
    """

    def __init__(self, spec: ReplicaSpec, mean_weight: float) -> None:
        self.url, self.weight = spec.base_url, spec.weight / mean_weight
        self.requests_in_flight: dict[InFlightRequest, None] = {}
        self.silent: dict[InFlightRequest, None] = {}
        self.ttft = PeakEwma()
        self.breaker = Breaker()
        self.recent_requests, self.recent_failures = FadingCount(), FadingCount()
        self.requests = self.failures = 0
        self.elsewhere = 0

    @property
    def outstanding(self) -> int:
        """Requests in flight."""
        return len(self.requests_in_flight)

    def expected_wait(self, now: float, decay_seconds: float, rest: float) -> float:
        """Seconds to the first token of the next request, as far as comparing goes: peak EWMA × queue over weight.

        A request that waits longer than the average counts as the average, and fresh failures in a row multiply it,
        since who fails at once has no queue.
        """
        longest = now - next(iter(self.silent)).began if self.silent else 0.0
        ttft = max(self.ttft.value(now, decay_seconds, rest), longest, MIN_TTFT_SECONDS)
        failures = 0 if self.is_well(now) else self.breaker.failures
        return ttft * (1 + (self.outstanding + self.elsewhere) / self.weight) * (1 + failures)

    def note_queue(self, requests: int | None) -> None:
        """The server has so many, ours among them; None: it does not say."""
        self.elsewhere = 0 if requests is None else max(requests - self.outstanding, 0)

    def is_well(self, now: float) -> bool:
        """Whether its last failure is long enough ago, or an answer came after it."""
        return now - self.breaker.failed_at >= COOLDOWN_SECONDS

    def error_counts(self, now: float, decay_seconds: float) -> tuple[float, float]:
        """Recent failures and recent requests that came to an end."""
        return self.recent_failures.value(now, decay_seconds), self.recent_requests.value(now, decay_seconds)

    def forget_errors(self) -> None:
        """Begin anew, once the past has been punished."""
        self.recent_requests, self.recent_failures = FadingCount(), FadingCount()

    def condition(self, now: float) -> ReplicaCondition:
        """In a word."""
        if self.breaker.is_open:
            return "ejected" if self.breaker.available_in(now) > 0 else "probing"
        return "paused" if self.breaker.is_paused(now) else "serving"

    def status(self, now: float) -> ReplicaStatus:
        """As plain data."""
        return ReplicaStatus(
            replica=self.url,
            weight=self.weight,
            condition=self.condition(now),
            available_in_seconds=self.breaker.available_in(now),
            outstanding=self.outstanding,
            elsewhere=self.elsewhere,
            ttft_seconds=self.ttft.latest,
            consecutive_failures=self.breaker.failures,
            requests=self.requests,
            failures=self.failures,
        )
