"""A circuit breaker: stop sending to a failing server, test it with one request, then close again."""

import math


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
        """Note a completed answer."""
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
