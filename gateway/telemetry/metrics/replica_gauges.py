"""Metrics of the replicas of remote tiers."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Gauge

from tiers.tier import Tier


class ReplicaGauges:
    """`aio_replica_*`, by tier and base URL, in `registry`; set at each scrape from the tiers' state."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, documentation: str) -> Gauge:
            return Gauge(f"aio_replica_{name}", documentation, ["tier", "replica"], registry=registry)

        self._outstanding = gauge("outstanding", "Requests in flight at a replica.")
        self._serving = gauge("serving", "Whether a replica accepts requests: neither ejected nor paused.")
        self._ttft = gauge("ttft_seconds", "Moving average of a replica's time to the first token.")
        self._failures = gauge("failures", "Failures of a replica since start.")

    def show(self, tiers: Iterable[Tier]) -> None:
        """Set the current state of all replicas."""
        for tier in tiers:
            for replica in tier.replicas():
                labels = (str(tier.number), replica.replica)
                self._outstanding.labels(*labels).set(replica.outstanding)
                self._serving.labels(*labels).set(replica.condition == "serving")
                self._failures.labels(*labels).set(replica.failures)
                if replica.ttft_seconds is not None:
                    self._ttft.labels(*labels).set(replica.ttft_seconds)
