"""A histogram that takes many observations at once, for what happens once per token."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class ManyHistogram(Collector):
    """Like `prometheus_client.Histogram` with the label `model_name`, at a tenth of the cost per observation."""

    def __init__(self, name: str, documentation: str, bounds: tuple[float, ...]) -> None:
        self._name, self._documentation, self._bounds = name, documentation, bounds
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def observe_all(self, model: str, values: Iterable[float]) -> None:
        """Count `values` for a model, which is listed from now on even if there are none."""
        counts = self._counts.setdefault(model, [0] * (len(self._bounds) + 1))
        total = 0.0
        for value in values:
            counts[bisect_left(self._bounds, value)] += 1
            total += value
        self._sums[model] = self._sums.get(model, 0.0) + total

    def collect(self) -> Iterator[Metric]:
        """One family; its buckets are cumulative, as Prometheus wants them."""
        family = HistogramMetricFamily(self._name, self._documentation, labels=["model_name"])
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        for model, counts in self._counts.items():
            family.add_metric([model], list(zip(names, accumulate(counts), strict=True)), self._sums[model])
        yield family
