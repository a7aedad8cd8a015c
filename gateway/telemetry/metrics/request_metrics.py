"""What is counted once per request, in the event loop: latencies, tokens, costs, tiers."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.base.inference_request import slo_class
from gateway.inference.answer import Answer
from gateway.inference.exclusions import is_below_target
from gateway.telemetry.metrics.families import Bounds, CounterFamily, HistogramFamily
from gateway.telemetry.objectives.service_levels import ServiceLevels
from gateway.telemetry.objectives.slo import SECONDS
from quality.records.record import Record

ROUTE_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000)
# Of the limit of the time to the first token; the alerts' thresholds are among them.
LIMIT_SHARES = (0.05, 0.1, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 5, 10, 20, 50)
TOKENS_PER_SECOND = (1, 2, 5, 10, 15, 20, 25, 30, 40, 50, 75, 100, 150, 200, 300, 500, 1000)
# The labels of names above the limit, and of no name.
OTHER = "other"
NO_NAME = "none"
_OPERATIONS = {"completion": "text_completion"}


def operation_name(api: str) -> str:
    """Return `gen_ai.operation.name` of a record's `api`, as OpenTelemetry's semantic conventions have it."""
    return _OPERATIONS.get(api, api)


class BoundedNames:
    """Names as label values: those of callers would grow without bound. The first `most` are kept, all later ones are
    "other"; a missing name is "none"."""

    def __init__(self, most: int = 100) -> None:
        self._most = most
        self._known: set[str] = set()

    def label(self, name: str | None) -> str:
        """Return the label of `name`."""
        if name is None:
            return NO_NAME
        if name in self._known:
            return name
        if len(self._known) >= self._most:
            return OTHER
        self._known.add(name)
        return name


@dataclass(slots=True)
class PrefixUse:
    """Prompt tokens of a tier's answers since start, and how many were in the prefix cache."""

    prompt_tokens: int = 0
    cached_tokens: int = 0


class RequestMetrics(Collector):
    """Registers its families in `registry`, those with names of keys or with costs in `private`. `levels` also gets
    every request, with its measurements."""

    def __init__(self, registry: CollectorRegistry, private: CollectorRegistry, levels: ServiceLevels) -> None:
        self._registry, self._private, self._levels = registry, private, levels
        self._keys = BoundedNames()
        self.prefix_use: defaultdict[int, PrefixUse] = defaultdict(PrefixUse)
        self._declare_latencies()
        self._declare_counts()
        self._declare_costs()
        registry.register(self)
        private.register(_CostPerToken(self))

    def _declare_latencies(self) -> None:
        self._ttft = self._by_model("vllm:time_to_first_token_seconds", "Arrival to first token.", SECONDS)
        self._gap = self._by_model("vllm:inter_token_latency_seconds", "Gap between two tokens.", SECONDS)
        self._per_token = self._by_model(
            "vllm:time_per_output_token_seconds", "Mean time per token after the first, per request.", SECONDS
        )
        self._e2e = self._by_model("vllm:e2e_request_latency_seconds", "Arrival to the end of the answer.", SECONDS)
        self._queue = self._by_model("vllm:request_queue_time_seconds", "Time in the queue, per request.", SECONDS)
        self._prefill = self._by_model(
            "vllm:request_prefill_time_seconds", "From leaving the queue to the first token, per request.", SECONDS
        )
        self._decode = self._by_model(
            "vllm:request_decode_time_seconds", "From the first token to the last, per request.", SECONDS
        )
        self._prompt = self._by_model("vllm:request_prompt_tokens", "Prompt tokens per request.", TOKENS)
        self._generated = self._by_model("vllm:request_generation_tokens", "Output tokens per request.", TOKENS)
        self._ttft_share = self._histogram(
            "aio_ttft_limit_ratio", "Time to first token divided by the request's limit.", ["slo_class"], LIMIT_SHARES
        )
        self._speed = self._histogram(
            "aio_decode_tokens_per_second", "(tokens - 1) / (end - first token).", ["tier"], TOKENS_PER_SECOND
        )
        self._route = self._histogram("aio_route_seconds", "Parsing and routing decision.", [], ROUTE_SECONDS)
        self._overhead = self._histogram("aio_overhead_seconds", "Time outside the tier.", [], SECONDS)

    def _declare_counts(self) -> None:
        self._success = self._counter("vllm:request_success", "Finished requests.", ["model_name", "finished_reason"])
        self._requests = self._counter("aio_requests", "Requests by tier and status.", ["tier", "status"])
        self._cache = self._counter("aio_cache_requests", "Requests by outcome of the response cache.", ["result"])
        self._failed = self._counter("aio_failed_requests", "Requests that failed with server errors.", ["tier"])
        self._below_target = self._counter(
            "aio_below_target_answers", "Answers below their quality target because a tier was down.", ["tier"]
        )
        self._attempts = self._counter("aio_attempts", "Tiers tried, fallbacks included.", ["tier", "status"])
        self._disputed = self._counter(
            "aio_disputed_usage", "Answers whose server reported tokens that cannot be; others are billed.", ["tier"]
        )
        self._judged = self._counter(
            "aio_judged_answers", "Answers judged by their own evidence.", ["tier", "stage", "verdict"]
        )
        self._agreements = self._counter(
            "aio_agreements", "Answers of tiers that were compared.", ["tier", "kind", "outcome"]
        )
        self._prompt_tokens = self._counter("aio_prompt_tokens", "Prompt tokens of answers.", ["tier"])
        self._answer_tokens = self._counter("aio_completion_tokens", "Generated tokens of answers.", ["tier"])
        self._cached_tokens = self._counter("aio_cached_tokens", "Prompt tokens found in the prefix cache.", ["tier"])
        self._decisions = self._counter("aio_decisions", "Decisions by tier and kind.", ["tier", "kind"])
        self._would_be = self._counter(
            "aio_would_be_requests", "Tiers that routing in observe mode would choose.", ["tier"]
        )

    def _declare_costs(self) -> None:
        self._cost = self._private_counter("aio_cost_usd", "Cost of answers in US dollars.", ["tier"])
        self._baseline = self._private_counter(
            "aio_baseline_cost_usd", "Cost of the same answers by the strongest tier.", ["tier"]
        )
        self._would_be_cost = self._private_counter(
            "aio_would_be_cost_usd", "Predicted cost of these answers.", ["tier"]
        )
        self._key_cost = self._private_counter(
            "aio_key_cost_usd", "Cost of a key's answers; the first 100 keys.", ["key"]
        )
        self._key_requests = self._private_counter(
            "aio_key_requests", "Requests of a key; the first 100 keys.", ["key"]
        )
        self._key_tokens = self._private_counter(
            "aio_key_tokens", "Tokens of a key's answers, prompt and answer.", ["key"]
        )
        self._cost_sum = self._baseline_sum = 0.0

    def observe(self, answer: Answer, record: Record) -> None:
        """Count one finished request."""
        tier, made = (str(record.tier),), record.is_made
        decision = record.decision
        self._requests.sums[tier[0], record.status] += 1
        self._cache.sums[(record.cache or "bypass",)] += 1
        if record.status == "error" and record.http_status >= 500:
            self._failed.sums[tier] += 1
        self._decisions.sums[str(decision.tier), decision.inputs.prediction.kind] += 1
        for attempt in record.attempts if made else ():
            place = str(attempt.tier)
            self._attempts.sums[place, attempt.status] += 1
            self._cost.sums[(place,)] += attempt.cost_usd
            if attempt.claimed is not None:
                self._disputed.sums[(place,)] += 1
            if attempt.stage is not None:
                self._judged.sums[place, attempt.stage, "escalated" if attempt.status == "escalated" else "kept"] += 1
        if made and (found := record.comparison) is not None:
            self._agreements.sums[tier[0], found.compared_as.kind, found.outcome] += 1
        self._baseline.sums[tier] += record.baseline_cost_usd
        self._cost_sum += record.cost_usd
        self._baseline_sum += record.baseline_cost_usd
        self._count_tokens(record, tier, made=made)
        if decision.would_be is not None:
            self._would_be.sums[(str(decision.would_be),)] += 1
            self._would_be_cost.sums[(str(decision.would_be),)] += decision.inputs.costs[decision.would_be - 1]
        self._route.observe((), record.timings.route_ms / 1e3)
        self._overhead.observe((), record.timings.overhead_ms / 1e3)
        if record.status == "ok":
            self._success.sums[record.model, record.finish_reason or "stop"] += 1
        timed = record.status == "ok" and made
        self._levels.observe(answer, record, self._observe_latencies(answer, record) if timed else {})
        # Nearly every request may go to every tier, and the first one answers.
        if (decision.inputs.exclusions or len(record.attempts) > 1) and is_below_target(record):
            self._below_target.sums[tier] += 1
            self._levels.count_below_target(record.tier)

    def _count_tokens(self, record: Record, tier: tuple[str], *, made: bool) -> None:
        key = (self._keys.label(record.key_id),)
        self._key_cost.sums[key] += record.cost_usd
        self._key_requests.sums[key] += 1
        self._key_tokens.sums[key] += record.prompt_tokens + record.completion_tokens
        if not made:
            return
        self._prompt_tokens.sums[tier] += record.prompt_tokens
        self._answer_tokens.sums[tier] += record.completion_tokens
        self._cached_tokens.sums[tier] += record.cached_tokens
        use = self.prefix_use[record.tier]
        use.prompt_tokens += record.prompt_tokens
        use.cached_tokens += record.cached_tokens

    def _observe_latencies(self, answer: Answer, record: Record) -> dict[int, int]:
        """Count the gaps between tokens by bucket, which are returned, and all other latencies."""
        model, stamps, timings = (record.model, operation_name(record.api)), answer.stamps, record.timings
        self._e2e.observe(model, timings.e2e_ms / 1e3)
        self._prompt.observe(model, record.prompt_tokens)
        self._generated.observe(model, record.completion_tokens)
        self._queue.observe(model, stamps.times.queue_seconds)
        if timings.ttft_ms is not None and timings.prefill_ms is not None and timings.decode_ms is not None:
            self._prefill.observe(model, timings.prefill_ms / 1e3)
            self._decode.observe(model, timings.decode_ms / 1e3)
            self._ttft.observe(model, timings.ttft_ms / 1e3)
            wanted = slo_class(answer.request.options.slo, answer.request.generation.priority)
            self._ttft_share.observe((wanted.name,), timings.ttft_ms / 1e3 / answer.ttft_limit)
        buckets = self._gap.observe_all(
            model, [seconds / tokens if tokens > 1 else seconds for seconds, tokens in stamps.gaps]
        )
        speed = stamps.tokens_per_second
        if speed is not None:
            self._per_token.observe(model, 1 / speed)
            self._speed.observe((str(record.tier),), speed)
        return buckets

    @property
    def saving(self) -> float:
        """1 - cost / baseline cost, since start."""
        return 1 - self._cost_sum / self._baseline_sum if self._baseline_sum else 0.0

    def collect(self) -> Iterator[Metric]:
        """Yield OpenTelemetry's names for vLLM's metrics."""
        model = ["gen_ai_response_model", "gen_ai_operation_name"]
        yield self._ttft.named("gen_ai_server_time_to_first_token_seconds", model)
        yield self._per_token.named("gen_ai_server_time_per_output_token_seconds", model)
        yield self._e2e.named("gen_ai_server_request_duration_seconds", model)
        usage = HistogramMetricFamily(
            "gen_ai_client_token_usage", "Tokens of a request.", labels=[*model, "gen_ai_token_type"]
        )
        self._prompt.add_to(usage, ["input"])
        self._generated.add_to(usage, ["output"])
        yield usage

    def cost_per_1k_tokens(self) -> Metric:
        """Return the cost of a thousand tokens of each tier that answered."""
        family = GaugeMetricFamily(
            "aio_cost_per_1k_tokens_usd", "Cost of a thousand tokens of a tier's answers, since start.", labels=["tier"]
        )
        for number in sorted(self.prefix_use):
            tier = (str(number),)
            tokens = self._prompt_tokens.value(tier) + self._answer_tokens.value(tier)
            if tokens:
                family.add_metric(tier, self._cost.value(tier) / tokens * 1e3)
        return family

    def _by_model(self, name: str, documentation: str, bounds: Bounds) -> HistogramFamily:
        """Observations by model and operation; vLLM's metrics have the label model only."""
        return self._histogram(name, documentation, ["model_name"], bounds)

    def _histogram(self, name: str, documentation: str, labels: list[str], bounds: Bounds) -> HistogramFamily:
        family = HistogramFamily(name, documentation, labels, bounds)
        self._registry.register(family)
        return family

    def _counter(self, name: str, documentation: str, labels: list[str]) -> CounterFamily:
        family = CounterFamily(name, documentation, labels)
        self._registry.register(family)
        return family

    def _private_counter(self, name: str, documentation: str, labels: list[str]) -> CounterFamily:
        family = CounterFamily(name, documentation, labels)
        self._private.register(family)
        return family


class _CostPerToken(Collector):
    """The one derived metric with costs."""

    def __init__(self, requests: RequestMetrics) -> None:
        self._requests = requests

    def collect(self) -> Iterator[Metric]:
        """Yield one family."""
        yield self._requests.cost_per_1k_tokens()
