"""What a scrape reads of parts that keep their own state: shed requests, replicas of remote tiers, service levels;
and the metrics of several gateway processes as one scrape, with a label for the worker.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.base.inference_request import SERVICE_TIERS
from gateway.telemetry.slo import STATE_NUMBERS, Quantiles, SloReport, TierLevel
from gateway.tenancy.admission import OverloadQueue
from tiers.tier import Tier


class OverloadCollector(Collector):
    """Shed requests: reads the counts of `overload`."""

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


class SloCollector(Collector):
    """Service levels: states, and the quantiles of the window. `report` is computed for each scrape."""

    def __init__(self, report: Callable[[], SloReport]) -> None:
        self._report = report

    def collect(self) -> Iterator[Metric]:
        """Yield `aio_slo_*`; unknown figures are left out."""
        report = self._report()
        state = GaugeMetricFamily("aio_slo_state", "0 green, 1 amber, 2 red, -1 unknown.", labels=["tier"])
        checks = GaugeMetricFamily("aio_slo_figure", "Figures behind the state.", labels=["tier", "objective"])
        window = GaugeMetricFamily(
            "aio_window_seconds", "Quantiles of the sliding window.", labels=["tier", "what", "quantile"]
        )
        stages = GaugeMetricFamily(
            "aio_window_stage_seconds", "Quantiles of the parts of answers.", labels=["stage", "quantile"]
        )
        classes = GaugeMetricFamily(
            "aio_slo_class_kept_ratio",
            "Share of a class's requests whose first token came in time.",
            labels=["slo_class"],
        )
        for level in (report.overall, *report.tiers):
            tier = "all" if level.tier is None else str(level.tier)
            state.add_metric([tier], STATE_NUMBERS[level.state])
            for check in level.checks:
                if check.value is not None:
                    checks.add_metric([tier, check.objective.name], check.value)
            _add(window, [tier, "ttft"], level.ttft_seconds)
            _add(window, [tier, "e2e"], level.e2e_seconds)
            if level.itl_p99_seconds is not None:
                window.add_metric([tier, "itl", "0.99"], level.itl_p99_seconds)
        _add_stages(stages, report.overall)
        for slo_class in report.overall.classes:
            classes.add_metric([slo_class.name], slo_class.kept / slo_class.requests)
        yield from (state, checks, window, stages, classes)


def _add_stages(family: GaugeMetricFamily, level: TierLevel) -> None:
    for stage in level.stages:
        shown = stage.milliseconds
        for quantile, value in (("0.5", shown.p50), ("0.95", shown.p95), ("0.99", shown.p99)):
            if value is not None:
                family.add_metric([stage.stage, quantile], value / 1e3)


def _add(family: GaugeMetricFamily, labels: list[str], shown: Quantiles) -> None:
    for quantile, value in (("0.5", shown.p50), ("0.95", shown.p95), ("0.99", shown.p99), ("0.999", shown.p999)):
        if value is not None:
            family.add_metric([*labels, quantile], value)


def merged_exposition(by_worker: Mapping[int, bytes]) -> bytes:
    """Merge each worker's exposition into one, with the label `worker` on every series.

    Series of different workers stay separate, because a restarted worker must appear as a counter reset; `sum without
    (worker)` gives the total.
    """
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for worker, text in sorted(by_worker.items()):
        family = ""
        for line in text.decode().splitlines():
            if line.startswith("# "):
                family = line.split(" ", 3)[2]
                head = heads.setdefault(family, [])
                if line not in head:
                    head.append(line)
            elif line:
                samples.setdefault(family, []).append(_labelled(line, worker))
    lines = [line for family, head in heads.items() for line in (*head, *samples.get(family, ()))]
    return "".join(f"{line}\n" for line in lines).encode()


def _labelled(sample: str, worker: int) -> str:
    """A sample line's name ends at its labels or at its value."""
    end = min(index for index in (sample.find("{"), sample.find(" ")) if index >= 0)
    label = f'worker="{worker}"'
    if sample[end] == " ":
        return f"{sample[:end]}{{{label}}}{sample[end:]}"
    comma = "" if sample[end + 1] == "}" else ","
    return f"{sample[:end]}{{{label}{comma}{sample[end + 1 :]}"
