"""Moving averages without a timer: values decay by the time between observations."""

import math


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
        """Count one event."""
        self._count, self._at = self.value(now, decay_seconds) + 1, now

    def value(self, now: float, decay_seconds: float) -> float:
        """Return the current count."""
        return self._count * math.exp(-max(now - self._at, 0.0) / decay_seconds)
