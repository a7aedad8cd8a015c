"""Counters and histograms for the request path: the output of prometheus_client at a tenth of its cost.

They are written and read in one thread, the event loop's, so they need no locks; labels are given as a tuple.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from operator import add

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

Labels = tuple[str, ...]
Bounds = tuple[float, ...]


class CounterFamily(Collector):
    """A sum for each combination of labels. `sums` may be added to directly: a request counts in a dozen of them."""

    def __init__(self, name: str, documentation: str, labels: Iterable[str]) -> None:
        self._name, self._documentation, self._labels = name, documentation, list(labels)
        self.sums: defaultdict[Labels, float] = defaultdict(float)

    def add(self, labels: Labels, amount: float = 1.0) -> None:
        """Add `amount`."""
        self.sums[labels] += amount

    def value(self, labels: Labels) -> float:
        """Return the sum."""
        return self.sums.get(labels, 0.0)

    def collect(self) -> Iterator[Metric]:
        """One family."""
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

    Values may be observed with more labels than `labels`: under its own name the family sums over those, and `named`
    shows them.
    """

    def __init__(self, name: str, documentation: str, labels: Iterable[str], bounds: Bounds) -> None:
        self.name, self.documentation, self.labels, self.bounds = name, documentation, list(labels), bounds
        self._histograms: defaultdict[Labels, _Histogram] = defaultdict(lambda: _Histogram(len(bounds) + 1))

    def observe(self, labels: Labels, value: float) -> None:
        """Count one value."""
        histogram = self._histograms[labels]
        histogram.counts[bisect_left(self.bounds, value)] += 1
        histogram.sum += value

    def observe_all(self, labels: Labels, values: Sequence[float]) -> dict[int, int]:
        """Count `values`; the labels are exported from now on even without values. Returns the counts per bucket, by
        index."""
        histogram = self._histograms[labels]
        buckets: dict[int, int] = {}
        for value in values:
            place = bisect_left(self.bounds, value)
            histogram.counts[place] += 1
            buckets[place] = buckets.get(place, 0) + 1
        histogram.sum += sum(values)
        return buckets

    def collect(self) -> Iterator[Metric]:
        """Yield one family; its buckets are cumulative, as Prometheus requires."""
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
