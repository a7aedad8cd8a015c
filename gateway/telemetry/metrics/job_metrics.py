"""Metrics of batches: outcomes of lines here, and the length of the shared queue."""

from prometheus_client import CollectorRegistry, Gauge

from gateway.telemetry.metrics.families import CounterFamily


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
