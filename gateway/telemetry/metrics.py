"""Prometheus metrics: vLLM's names where the meaning is the same, for its dashboards to work, `aio_*` for the rest."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.answer import Answer
from inference_core.client import CoreClient
from inference_core.errors import CoreError
from inference_core.protocol import CoreStats, ModelStats
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


class CoreCollector(Collector):
    """Gauges and counters that a core keeps itself, read from its last snapshot."""

    def __init__(self) -> None:
        self.stats: CoreStats | None = None

    def collect(self) -> Iterator[Metric]:
        """The families of all models; nothing before the first snapshot, as behind remote tiers alone."""
        if self.stats is None:
            return
        models = self.stats.models
        yield _gauge("vllm:num_requests_running", "Sequences in the running batch.", models, lambda m: m.running)
        yield _gauge("vllm:num_requests_waiting", "Sequences that wait for the batch.", models, lambda m: m.waiting)
        yield _gauge("vllm:kv_cache_usage_perc", "Share of KV blocks in use; 1 is all.", models, _kv_usage)
        yield _counter("vllm:prompt_tokens", "Prompt tokens taken in.", models, lambda m: m.prompt_tokens)
        yield _counter("vllm:generation_tokens", "Tokens generated.", models, lambda m: m.generated_tokens)
        yield _counter("vllm:num_preemptions", "Sequences preempted.", models, lambda m: m.preemptions)
        yield _counter("vllm:prefix_cache_queries", "Tokens looked up.", models, lambda m: m.prefix_query_tokens)
        yield _counter("vllm:prefix_cache_hits", "Tokens found.", models, lambda m: m.prefix_hit_tokens)
        yield _gauge("aio_predicted_wait_seconds", "Predicted queueing.", models, lambda m: m.predicted_wait_seconds)
        yield _gauge("aio_step_seconds_mean", "Mean duration of a step.", models, lambda m: m.step_seconds_mean)
        arena = GaugeMetricFamily("aio_kv_arena_bytes", "Bytes of the KV arena by state.", labels=["state"])
        free = self.stats.slabs_free * self.stats.slab_bytes
        arena.add_metric(["free"], free)
        arena.add_metric(["owned"], self.stats.arena_bytes - free)
        yield arena


class Metrics:
    """All metrics of one gateway, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.core = CoreCollector()
        self.registry.register(self.core)
        self._declare_latencies()
        self._declare_counts()
        self._declare_gauges()

    def _declare_latencies(self) -> None:
        self._ttft = self._histogram("vllm:time_to_first_token_seconds", "Arrival to first token.", SECONDS)
        self._gap = self._histogram("vllm:inter_token_latency_seconds", "Gap between two tokens.", SECONDS)
        self._per_token = self._histogram(
            "vllm:time_per_output_token_seconds", "Mean time per token after the first, per request.", SECONDS
        )
        self._e2e = self._histogram("vllm:e2e_request_latency_seconds", "Arrival to the end of the answer.", SECONDS)
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
        self._cost = self._counter("aio_cost_usd", "Cost of answers in US dollars.", ["tier"])
        self._baseline = self._counter("aio_baseline_cost_usd", "What the strongest tier would have cost.", ["tier"])
        self._decisions = self._counter("aio_decisions", "Decisions by tier and kind.", ["tier", "kind"])

    def _declare_gauges(self) -> None:
        self._saving = Gauge("aio_saving_ratio", "1 - cost / baseline cost, since start.", registry=self.registry)
        self._healthy = Gauge("aio_tier_healthy", "Whether a tier takes requests.", ["tier"], registry=self.registry)
        self.in_flight = Gauge("aio_in_flight", "Answers begun and not finished.", registry=self.registry)
        self.ledger_lag = Gauge(
            "aio_ledger_lag_records", "Records that the database does not hold yet.", registry=self.registry
        )
        self.upgrade_rate = Gauge(
            "aio_upgrade_rate", "Share of the last 100 verified answers that need an upgrade.", ["tier"],
            registry=self.registry,
        )  # fmt: skip
        self.classifier = Gauge(
            "aio_classifier_info", "1 for the version in force.", ["version"], registry=self.registry
        )
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
        self._baseline.labels(tier).inc(record.baseline_cost_usd)
        self._cost_sum += record.cost_usd
        self._baseline_sum += record.baseline_cost_usd
        self._route.observe(record.timings.route_ms / 1e3)
        self._overhead.observe(record.timings.overhead_ms / 1e3)
        if record.status == "ok":
            self._success.labels(model, record.finish_reason or "stop").inc()
            self._observe_tokens(answer, record)

    def show_classifier(self, version: str) -> None:
        """Name the classifier version in force."""
        self.classifier.clear()
        self.classifier.labels(version).set(1)

    async def read_core(self, core: CoreClient | None) -> None:
        """Take a snapshot of the core; a core that is gone leaves no stale figures behind."""
        try:
            self.core.stats = None if core is None else await core.stats()
        except CoreError:
            self.core.stats = None

    def _observe_tokens(self, answer: Answer, record: Record) -> None:
        model, stamps = record.model, answer.stamps
        self._e2e.labels(model).observe(record.timings.e2e_ms / 1e3)
        self._prompt.labels(model).observe(record.prompt_tokens)
        self._generated.labels(model).observe(record.completion_tokens)
        if record.timings.ttft_ms is not None:
            self._ttft.labels(model).observe(record.timings.ttft_ms / 1e3)
        gap = self._gap.labels(model)
        for seconds, tokens in stamps.gaps:
            gap.observe(seconds / max(tokens, 1))
        later = sum(tokens for _, tokens in stamps.gaps)
        if later:
            self._per_token.labels(model).observe(sum(seconds for seconds, _ in stamps.gaps) / later)

    def exposition(self, tiers: list[Tier]) -> bytes:
        """The text that Prometheus scrapes, with the tiers' health as of now."""
        for tier in tiers:
            self._healthy.labels(str(tier.number)).set(tier.load().healthy)
        self._saving.set(1 - self._cost_sum / self._baseline_sum if self._baseline_sum else 0.0)
        return generate_latest(self.registry)

    def _histogram(self, name: str, documentation: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, documentation, ["model_name"], registry=self.registry, buckets=buckets)

    def _counter(self, name: str, documentation: str, labels: list[str]) -> Counter:
        return Counter(name, documentation, labels, registry=self.registry)


def _kv_usage(model: ModelStats) -> float:
    return model.blocks_in_use / model.blocks_total if model.blocks_total else 0.0


def _gauge(name: str, text: str, models: list[ModelStats], value: Callable[[ModelStats], float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=["model_name"])
    for model in models:
        family.add_metric([model.name], value(model))
    return family


def _counter(
    name: str, text: str, models: list[ModelStats], value: Callable[[ModelStats], float]
) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=["model_name"])
    for model in models:
        family.add_metric([model.name], value(model))
    return family
