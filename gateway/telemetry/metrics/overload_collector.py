"""Shed requests as Prometheus metrics."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.base.requests.slo_class import SERVICE_TIERS
from gateway.tenancy.limits.overload import OverloadQueue


class OverloadCollector(Collector):
    """Reads the counts of `overload` at the scrape."""

    def __init__(self, overload: OverloadQueue) -> None:
        self._overload = overload

    def collect(self) -> Iterator[Metric]:
        """Yield one family, by OpenAI's name of the class and by reason."""
        family = CounterMetricFamily(
            "aio_shed_requests",
            "Requests shed with a 503, by class and reason.",
            labels=["service_tier", "reason"],
        )
        for (priority, reason), count in self._overload.shed.items():
            family.add_metric([SERVICE_TIERS[priority], reason], count)
        yield family
