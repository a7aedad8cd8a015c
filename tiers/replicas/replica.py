"""The state of one replica: its requests in flight, its speed, its failures, its limits. No I/O, no clock.

A circuit breaker stops sending to a failing server, tests it with one request, then closes again. Requests and tokens
to one replica, or with one API key, are counted in a sliding minute. Moving averages need no timer: values decay by
the time between observations.
"""

import math
from collections import deque

from tiers.catalog.replica_spec import ReplicaSpec
from tiers.errors import ReplicaCondition, ReplicaStatus


class CircuitBreaker:
    """Closed, open, half-open (Nygard, Release It!). Times are seconds of one clock.

    An ejection opens it; when its time is over one trial request is let through. The trial's first token closes it on
    probation: one failure before a completed answer opens it again, for twice as long. A pause is no ejection: the
    server is healthy, and has said when it accepts requests again. `trial`: the trial request, before its first token.
    `failures`: consecutive ones.
    """

    def __init__(self) -> None:
        self.failures = 0
        self.failed_at = -math.inf
        self.is_open = False
        self.trial: object | None = None
        self._ejections = 0
        self._open_until = -math.inf
        self._paused_until = -math.inf

    def takes_requests(self, now: float) -> bool:
        """Return whether any request may be sent."""
        return not self.is_open and now >= self._paused_until

    def awaits_trial(self, now: float) -> bool:
        """Return whether one trial request may be sent."""
        return self.is_open and self.trial is None and now >= max(self._open_until, self._paused_until)

    def is_paused(self, now: float) -> bool:
        """Return whether the server asked for a pause."""
        return now < self._paused_until

    def available_in(self, now: float) -> float:
        """Return the seconds until the next request may be sent; a running trial is not counted."""
        return max(self._paused_until - now, self._open_until - now if self.is_open else 0.0, 0.0)

    def begin_probation(self, threshold: int) -> None:
        """Close after a trial's first token, one failure below the `threshold` of consecutive ones."""
        self.is_open, self.trial = False, None
        self.failures = threshold - 1

    def succeed(self) -> None:
        self.failures = self._ejections = 0
        self.failed_at = -math.inf
        self.is_open, self.trial = False, None

    def fail(self, now: float) -> None:
        """Note a failure; the caller decides on ejection."""
        self.failures += 1
        self.failed_at = now

    def eject(self, now: float, seconds: float, most: float) -> float:
        """Open for `seconds`, doubled by every ejection since the last success up to `most`; return for how long."""
        period = min(seconds * 2.0 ** min(self._ejections, 64), most)
        self._ejections += 1
        self.is_open, self.trial = True, None
        self._open_until = now + period
        return period

    def pause(self, now: float, seconds: float, *, then_try: bool = False) -> None:
        """Send nothing for `seconds`; `then_try`: then one trial request first."""
        self.trial = None
        self.is_open = self.is_open or then_try
        self._paused_until = max(self._paused_until, now + seconds)


SECONDS = 60.0


class MinuteEntry:
    """One request: when it was sent, and its tokens, an estimate until its answer has ended."""

    __slots__ = ("at", "tokens")

    def __init__(self, at: float, tokens: int) -> None:
        self.at, self.tokens = at, tokens


class MinuteLimits:
    """At most `requests` requests, and no further one once `tokens` tokens were sent and answered, in any 60 seconds;
    None is no bound. The last request may pass `tokens` by its answer, whose length is not known before."""

    def __init__(self, requests: int | None, tokens: int | None) -> None:
        self._requests, self._tokens = requests, tokens
        self._entries: deque[MinuteEntry] = deque()
        self._sum = 0

    def wait(self, now: float, tokens: int) -> float:
        """Return the seconds until a request of so many prompt tokens may be sent. One that alone is above the limit
        may be sent in an empty minute."""
        self._forget(now)
        excess = 0 if self._tokens is None else self._sum + tokens - self._tokens
        too_many = 0 if self._requests is None else len(self._entries) + 1 - self._requests
        until = -math.inf
        for entry in self._entries:
            if excess <= 0 and too_many <= 0:
                break
            excess, too_many, until = excess - entry.tokens, too_many - 1, entry.at + SECONDS
        return max(until - now, 0.0)

    def add(self, now: float, tokens: int) -> MinuteEntry:
        """Count a request with the estimated tokens of its prompt."""
        entry = MinuteEntry(now, tokens)
        self._entries.append(entry)
        self._sum += tokens
        return entry

    def settle(self, entry: MinuteEntry, tokens: int, now: float) -> None:
        """Replace the estimate of a request by what it used."""
        self._forget(now)
        if self._entries and entry.at >= self._entries[0].at:
            self._sum += tokens - entry.tokens
        entry.tokens = tokens

    def _forget(self, now: float) -> None:
        while self._entries and self._entries[0].at <= now - SECONDS:
            self._sum -= self._entries.popleft().tokens


class PeakEwma:
    """Moving average that rises to a peak at once and decays slowly (Finagle's peak EWMA).

    Times in seconds of one clock; `decay_seconds` is the time after which an observation counts 1/e.
    """

    def __init__(self) -> None:
        self.latest: float | None = None
        self._at = 0.0

    def observe(self, seconds: float, now: float, decay_seconds: float) -> None:
        """Add a measurement."""
        if self.latest is None or seconds >= self.latest:
            self.latest = seconds
        else:
            self.latest = self.value(now, decay_seconds, seconds)
        self._at = now

    def value(self, now: float, decay_seconds: float, rest: float) -> float:
        """Return the average; without recent measurements it decays to `rest`."""
        if self.latest is None:
            return rest
        kept = math.exp(-max(now - self._at, 0.0) / decay_seconds)
        return rest + (self.latest - rest) * kept


class FadingCount:
    """An exponentially decaying count; each event counts 1/e after `decay_seconds`."""

    def __init__(self) -> None:
        self._count = 0.0
        self._at = 0.0

    def add(self, now: float, decay_seconds: float) -> None:
        self._count, self._at = self.value(now, decay_seconds) + 1, now

    def value(self, now: float, decay_seconds: float) -> float:
        return self._count * math.exp(-max(now - self._at, 0.0) / decay_seconds)


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
