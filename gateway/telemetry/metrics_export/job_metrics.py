"""Metrics of batches: what became of lines here, and what waits in the queue that all processes share."""

from prometheus_client import CollectorRegistry, Gauge

from gateway.telemetry.metrics_export.families import CounterFamily


class JobMetrics:
    """Counters of this process in `own`; gauges of the shared queue in `shared`."""

    def __init__(self, own: CollectorRegistry, shared: CollectorRegistry) -> None:
        self.lines = CounterFamily(
            "aio_batch_lines",
            "Lines of batches by what became of them here: done, failed, retried, or late (another's answer counts).",
            ["outcome"],
        )
        self.redelivered = CounterFamily(
            "aio_batch_lines_redelivered", "Lines taken that another worker had not finished.", []
        )
        own.register(self.lines)
        own.register(self.redelivered)
        self.running = Gauge("aio_batch_lines_running", "Lines of batches under way here.", registry=own)
        self.waiting = Gauge("aio_batch_lines_waiting", "Lines of batches that wait for an answer.", registry=shared)
        self.oldest = Gauge(
            "aio_batch_oldest_seconds", "Age of the oldest batch that has not been answered.", registry=shared
        )
