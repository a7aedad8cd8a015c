"""A circuit breaker: a server that fails is left alone, then tried with one request, then trusted again."""

import math


class CircuitBreaker:
    """Closed, open, half-open (Nygard, Release It!). Times are seconds of one clock.

    An ejection opens it; when its time is over one request may probe. The probe's first token closes it on probation:
    one failure before an answer has come to its end opens it again, for twice as long.
    A pause is no ejection: the server is well, and has said when it wants to be asked again.
    `trial`: the request that probes, while it has shown nothing yet. `failures` are those in a row.
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
        """Whether any request may go there."""
        return not self.is_open and now >= self._paused_until

    def awaits_trial(self, now: float) -> bool:
        """Whether one request may go there, to see."""
        return self.is_open and self.trial is None and now >= max(self._open_until, self._paused_until)

    def is_paused(self, now: float) -> bool:
        """Whether the server asked to be left alone."""
        return now < self._paused_until

    def available_in(self, now: float) -> float:
        """Seconds until the next request may go there; a probe in flight is not counted."""
        return max(self._paused_until - now, self._open_until - now if self.is_open else 0.0, 0.0)

    def begin_probation(self, threshold: int) -> None:
        """A probe's answer has begun: closed, one failure before the `threshold` of those in a row."""
        self.is_open, self.trial = False, None
        self.failures = threshold - 1

    def succeed(self) -> None:
        """An answer came to its end."""
        self.failures = self._ejections = 0
        self.failed_at = -math.inf
        self.is_open, self.trial = False, None

    def fail(self, now: float) -> None:
        """The server failed; who counts decides whether it is ejected."""
        self.failures += 1
        self.failed_at = now

    def eject(self, now: float, seconds: float, most: float) -> float:
        """Open for `seconds`, doubled by every ejection since the last success up to `most`; returns for how long."""
        period = min(seconds * 2.0 ** min(self._ejections, 64), most)
        self._ejections += 1
        self.is_open, self.trial = True, None
        self._open_until = now + period
        return period

    def pause(self, now: float, seconds: float) -> None:
        """Leave it alone for `seconds`."""
        self.trial = None
        self._paused_until = max(self._paused_until, now + seconds)
