"""Counters and histograms for the request path: the output of prometheus_client at a tenth of its cost.

They are written and read in one thread, the event loop's, so they need no locks; labels are given as a tuple. Those of
batches count the outcomes of lines here and the length of the shared queue; that of the event loop measures how late
it runs what is due, since what holds it up holds up every stream.
"""

import asyncio
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate, repeat
from operator import add

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

Labels = tuple[str, ...]
Bounds = tuple[float, ...]
Settle = Callable[[], None]
"""Called before a family is read: counts what still waits to be counted together."""


def _nothing_waits() -> None:
    pass


class CounterFamily(Collector):
    """A sum for each combination of labels. `sums` may be added to directly: requests count in a dozen of them."""

    def __init__(self, name: str, documentation: str, labels: Iterable[str], settle: Settle = _nothing_waits) -> None:
        self._name, self._documentation, self._labels = name, documentation, list(labels)
        self._settle = settle
        self.sums: defaultdict[Labels, float] = defaultdict(float)

    def add(self, labels: Labels, amount: float = 1.0) -> None:
        self.sums[labels] += amount

    def value(self, labels: Labels) -> float:
        self._settle()
        return self.sums.get(labels, 0.0)

    def collect(self) -> Iterator[Metric]:
        self._settle()
        family = CounterMetricFamily(self._name, self._documentation, labels=self._labels)
        for labels, total in self.sums.items():
            family.add_metric(labels, total)
        yield family


class _Histogram:
    """The counts of one combination of labels, by bucket."""

    __slots__ = ("counts", "sum")

    def __init__(self, buckets: int) -> None:
        self.counts, self.sum = [0] * buckets, 0.0


class HistogramFamily(Collector):
    """A histogram for each combination of labels; `bounds` ascend, and a value on a bound is in the bucket below it.

    Values may be observed with more labels than `labels`: the family's name sums them, and `named` shows them.
    """

    def __init__(
        self,
        name: str,
        documentation: str,
        labels: Iterable[str],
        bounds: Bounds,
        settle: Settle = _nothing_waits,
    ) -> None:
        self.name, self.documentation, self.labels, self.bounds = name, documentation, list(labels), bounds
        self._settle = settle
        self._histograms: defaultdict[Labels, _Histogram] = defaultdict(lambda: _Histogram(len(bounds) + 1))

    def observe(self, labels: Labels, value: float) -> None:
        histogram = self._histograms[labels]
        histogram.counts[bisect_left(self.bounds, value)] += 1
        histogram.sum += value

    def observe_all(self, labels: Labels, values: Sequence[float]) -> dict[int, int]:
        """Count `values`; the labels are exported from now on even without any. Returns counts per bucket, by index."""
        histogram = self._histograms[labels]
        buckets = Counter(map(bisect_left, repeat(self.bounds), values))
        for index, count in buckets.items():
            histogram.counts[index] += count
        histogram.sum = sum(values, histogram.sum)
        return buckets

    def collect(self) -> Iterator[Metric]:
        """Yield one family; its buckets are cumulative, as Prometheus requires."""
        self._settle()
        family = HistogramMetricFamily(self.name, self.documentation, labels=self.labels)
        summed: dict[Labels, list[int]] = {}
        sums: dict[Labels, float] = {}
        for labels, histogram in self._histograms.items():
            shown = labels[: len(self.labels)]
            before = summed.get(shown)
            summed[shown] = histogram.counts if before is None else list(map(add, before, histogram.counts))
            sums[shown] = sums.get(shown, 0.0) + histogram.sum
        for shown, counts in summed.items():
            family.add_metric(list(shown), self._buckets(counts), sums[shown])
        yield family

    def named(self, name: str, labels: Iterable[str]) -> HistogramMetricFamily:
        """Return the family under another name, with other label names."""
        family = HistogramMetricFamily(name, self.documentation, labels=list(labels))
        self.add_to(family, [])
        return family

    def add_to(self, family: HistogramMetricFamily, more: list[str]) -> None:
        """Add all histograms to `family`, with the values of `more` labels."""
        for labels, histogram in self._histograms.items():
            family.add_metric([*labels, *more], self._buckets(histogram.counts), histogram.sum)

    def _buckets(self, counts: Iterable[int]) -> list[tuple[str, float]]:
        names = [*(str(float(bound)) for bound in self.bounds), "+Inf"]
        return list(zip(names, accumulate(counts), strict=True))


class JobMetrics:
    """Counters of this process in `own`; gauges of the shared queue in `shared`."""

    def __init__(self, own: CollectorRegistry, shared: CollectorRegistry) -> None:
        self.lines = CounterFamily(
            "aio_batch_lines",
            "Batch lines by outcome here: done, failed, retried, or late (another worker's answer counts).",
            ["outcome"],
        )
        self.redelivered = CounterFamily("aio_batch_lines_redelivered", "Lines taken over from another worker.", [])
        own.register(self.lines)
        own.register(self.redelivered)
        self.running = Gauge("aio_batch_lines_running", "Batch lines being answered here.", registry=own)
        self.waiting = Gauge("aio_batch_lines_waiting", "Batch lines that wait for an answer.", registry=shared)
        self.oldest = Gauge("aio_batch_oldest_seconds", "Age of the oldest open batch.", registry=shared)


class ChatQueueMetrics:
    """What waits in the chat queue, in `shared`; what this process answers of it, in `own`."""

    def __init__(self, own: CollectorRegistry, shared: CollectorRegistry) -> None:
        gauge = partial(Gauge, labelnames=["tier"], registry=shared)
        self._waiting = gauge("aio_chat_queue_waiting", "Chats that wait in the queue.")
        self._running = gauge("aio_chat_queue_running", "Chats of the queue that workers answer.")
        self._oldest = gauge("aio_chat_queue_oldest_seconds", "How long the oldest chat waits in the queue.")
        self.redelivered = CounterFamily(
            "aio_chat_queue_redelivered", "Chats of the queue taken over from another worker.", []
        )
        own.register(self.redelivered)

    def show(self, tier: str, waiting: int, running: int, oldest_seconds: float) -> None:
        """Set what is in the queue for a tier."""
        self._waiting.labels(tier).set(waiting)
        self._running.labels(tier).set(running)
        self._oldest.labels(tier).set(oldest_seconds)


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
