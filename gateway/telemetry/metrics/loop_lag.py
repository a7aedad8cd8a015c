"""How late the event loop of this process runs what is due: what holds it up holds up every stream."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry

from gateway.telemetry.metrics.families import HistogramFamily

# Between a sample and the next: a callback that holds the loop for longer is always seen, a shorter one in proportion
# to its time. Ten timers per second cost nothing that can be measured.
INTERVAL_SECONDS = 0.1
LAG_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class LoopLag:
    """A histogram of how long after its time a timer ran. Registers its family in `registry`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._lag = HistogramFamily(
            "aio_event_loop_lag_seconds", "How late the event loop ran a timer that was due.", [], LAG_SECONDS
        )
        # Exported before the first sample.
        self._lag.observe_all((), ())
        registry.register(self._lag)

    @contextmanager
    def sampled(self) -> Iterator[None]:
        """Sample the running event loop while the context is open."""
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle

        def begin() -> None:
            nonlocal timer
            # Not the loop's own clock: uvloop's has whole milliseconds, read once per turn.
            timer = loop.call_later(INTERVAL_SECONDS, sample, time.monotonic() + INTERVAL_SECONDS)

        def sample(due: float) -> None:
            self._lag.observe((), max(time.monotonic() - due, 0.0))
            begin()

        begin()
        try:
            yield
        finally:
            timer.cancel()
