"""Prometheus metrics: vLLM's names where the meaning is the same, for its dashboards to work, `aio_*` for the rest."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from classifier.policy import promoted_from
from gateway.answer import Answer
from gateway.core_reading import read_cores
from gateway.telemetry.core_collector import CoreCollector
from gateway.telemetry.many_histogram import ManyHistogram
from gateway.telemetry.replica_gauges import ReplicaGauges
from inference_core.client import CoreClient
from quality.record import Record
from tiers.tier import Tier

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

SECONDS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.15,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
)
ROUTE_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000)


@dataclass(slots=True)
class PrefixUse:
    """Prompt tokens of a tier's answers since start, and how many of them the prefix cache had."""

    prompt_tokens: int = 0
    cached_tokens: int = 0


class Metrics:
    """All metrics of one gateway, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.core = CoreCollector()
        self.registry.register(self.core)
        self.prefix_use: defaultdict[int, PrefixUse] = defaultdict(PrefixUse)
        self._declare_latencies()
        self._declare_counts()
        self._declare_gauges()

    def _declare_latencies(self) -> None:
        self._ttft = self._histogram("vllm:time_to_first_token_seconds", "Arrival to first token.", SECONDS)
        self._gap = ManyHistogram("vllm:inter_token_latency_seconds", "Gap between two tokens.", SECONDS)
        self.registry.register(self._gap)
        self._per_token = self._histogram(
            "vllm:time_per_output_token_seconds", "Mean time per token after the first, per request.", SECONDS
        )
        self._e2e = self._histogram("vllm:e2e_request_latency_seconds", "Arrival to the end of the answer.", SECONDS)
        self._queue = self._histogram("vllm:request_queue_time_seconds", "Time in the queue, per request.", SECONDS)
        self._prefill = self._histogram(
            "vllm:request_prefill_time_seconds", "From the queue's end to the first token, per request.", SECONDS
        )
        self._decode = self._histogram(
            "vllm:request_decode_time_seconds", "From the first token to the last, per request.", SECONDS
        )
        self._prompt = self._histogram("vllm:request_prompt_tokens", "Prompt tokens per request.", TOKENS)
        self._generated = self._histogram("vllm:request_generation_tokens", "Output tokens per request.", TOKENS)
        self._route = Histogram(
            "aio_route_seconds", "Parsing and routing decision.", registry=self.registry, buckets=ROUTE_SECONDS
        )
        self._overhead = Histogram(
            "aio_overhead_seconds", "Time outside the tier.", registry=self.registry, buckets=SECONDS
        )

    def _declare_counts(self) -> None:
        self._success = self._counter("vllm:request_success", "Finished requests.", ["model_name", "finished_reason"])
        self._requests = self._counter("aio_requests", "Requests by tier and status.", ["tier", "status"])
        self._attempts = self._counter("aio_attempts", "Tiers tried, fall-overs included.", ["tier", "status"])
        self._judged = self._counter(
            "aio_judged_answers", "Answers judged by their own evidence.", ["tier", "stage", "verdict"]
        )
        self._cost = self._counter("aio_cost_usd", "Cost of answers in US dollars.", ["tier"])
        self._baseline = self._counter("aio_baseline_cost_usd", "What the strongest tier would have cost.", ["tier"])
        self._prompt_tokens = self._counter("aio_prompt_tokens", "Prompt tokens of answers.", ["tier"])
        self._cached_tokens = self._counter("aio_cached_tokens", "Of these, found in the prefix cache.", ["tier"])
        self._promoted = self._counter(
            "aio_promoted_requests", "Answers promoted by recent verified outcomes.", ["from_tier", "tier"]
        )
        self._promotion_cost = self._counter(
            "aio_promotion_cost_usd", "Predicted cost that promotions added.", ["tier"]
        )
        self._decisions = self._counter("aio_decisions", "Decisions by tier and kind.", ["tier", "kind"])

    def _declare_gauges(self) -> None:
        self._saving = Gauge("aio_saving_ratio", "1 - cost / baseline cost, since start.", registry=self.registry)
        self._healthy = Gauge("aio_tier_healthy", "Whether a tier takes requests.", ["tier"], registry=self.registry)
        self._tier_wait = Gauge(
            "aio_tier_predicted_wait_seconds",
            "Predicted queueing, as routing sees it.",
            ["tier"],
            registry=self.registry,
        )
        self._replicas = ReplicaGauges(self.registry)
        self.in_flight = Gauge("aio_in_flight", "Answers begun and not finished.", registry=self.registry)
        self.ledger_lag = Gauge(
            "aio_ledger_lag_records", "Records that the database does not hold yet.", registry=self.registry
        )
        self.upgrade_rate = Gauge(
            "aio_upgrade_rate", "Share of the last 100 verified answers that need an upgrade.", ["tier"],
            registry=self.registry,
        )  # fmt: skip
        self.promotions_in_force = Gauge(
            "aio_promotions_in_force", "Neighbourhoods of prompts that recent outcomes promote.", registry=self.registry
        )
        self.classifier = Gauge(
            "aio_classifier_info", "1 for the version in force.", ["version"], registry=self.registry
        )
        self.canary = Gauge(
            "aio_classifier_canary_share", "Share of requests that a version on trial decides about.", ["version"],
            registry=self.registry,
        )  # fmt: skip
        self._cost_sum = 0.0
        self._baseline_sum = 0.0

    def observe(self, answer: Answer, record: Record) -> None:
        """Count one finished request."""
        tier, model = str(record.tier), record.model
        prediction = record.decision.inputs.prediction
        self._requests.labels(tier, record.status).inc()
        self._decisions.labels(str(record.decision.tier), prediction.kind).inc()
        for attempt in record.attempts:
            self._attempts.labels(str(attempt.tier), attempt.status).inc()
            self._cost.labels(str(attempt.tier)).inc(attempt.cost_usd)
            if attempt.stage is not None:
                verdict = "escalated" if attempt.status == "escalated" else "kept"
                self._judged.labels(str(attempt.tier), attempt.stage, verdict).inc()
        self._baseline.labels(tier).inc(record.baseline_cost_usd)
        self._count_promotion(record)
        self._cost_sum += record.cost_usd
        self._baseline_sum += record.baseline_cost_usd
        self._route.observe(record.timings.route_ms / 1e3)
        self._overhead.observe(record.timings.overhead_ms / 1e3)
        if record.status == "ok":
            self._success.labels(model, record.finish_reason or "stop").inc()
            self._observe_tokens(answer, record)

    def _count_promotion(self, record: Record) -> None:
        before, tier, costs = promoted_from(record.decision), record.decision.tier, record.decision.inputs.costs
        if before is not None:
            self._promoted.labels(str(before), str(tier)).inc()
            self._promotion_cost.labels(str(tier)).inc(costs[tier - 1] - costs[before - 1])

    def show_classifier(self, version: str, canary: str | None = None, share: float = 0.0) -> None:
        """Name the classifier version in force, and the one on trial for a `share` of the requests."""
        self.classifier.clear()
        self.classifier.labels(version).set(1)
        self.canary.clear()
        if canary is not None:
            self.canary.labels(canary).set(share)

    async def read_cores(self, cores: Mapping[str, CoreClient]) -> None:
        """Take a snapshot of every core; a core that is gone leaves no stale figures behind."""
        self.core.stats, away = await read_cores(cores)
        self.core.away = list(away)

    def _observe_tokens(self, answer: Answer, record: Record) -> None:
        model, stamps = record.model, answer.stamps
        self._e2e.labels(model).observe(record.timings.e2e_ms / 1e3)
        self._prompt.labels(model).observe(record.prompt_tokens)
        self._generated.labels(model).observe(record.completion_tokens)
        use = self.prefix_use[record.tier]
        use.prompt_tokens += record.prompt_tokens
        use.cached_tokens += record.cached_tokens
        self._prompt_tokens.labels(str(record.tier)).inc(record.prompt_tokens)
        self._cached_tokens.labels(str(record.tier)).inc(record.cached_tokens)
        self._queue.labels(model).observe(stamps.queue_seconds)
        if stamps.first_delta is not None and stamps.last_delta is not None:
            waited = stamps.first_delta - stamps.attempted
            self._prefill.labels(model).observe(max(waited - stamps.queue_seconds, 0.0))
            self._decode.labels(model).observe(stamps.last_delta - stamps.first_delta)
        if record.timings.ttft_ms is not None:
            self._ttft.labels(model).observe(record.timings.ttft_ms / 1e3)
        self._gap.observe_all(model, [seconds / max(tokens, 1) for seconds, tokens in stamps.gaps])
        later = sum(tokens for _, tokens in stamps.gaps)
        if later:
            self._per_token.labels(model).observe(sum(seconds for seconds, _ in stamps.gaps) / later)

    def exposition(self, tiers: list[Tier]) -> bytes:
        """The text that Prometheus scrapes, with the tiers' health as of now."""
        for tier in tiers:
            load = tier.load()
            self._healthy.labels(str(tier.number)).set(load.healthy)
            self._tier_wait.labels(str(tier.number)).set(load.predicted_wait_seconds)
        self._replicas.show(tiers)
        self._saving.set(1 - self._cost_sum / self._baseline_sum if self._baseline_sum else 0.0)
        return generate_latest(self.registry)

    def _histogram(self, name: str, documentation: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, documentation, ["model_name"], registry=self.registry, buckets=buckets)

    def _counter(self, name: str, documentation: str, labels: list[str]) -> Counter:
        return Counter(name, documentation, labels, registry=self.registry)
