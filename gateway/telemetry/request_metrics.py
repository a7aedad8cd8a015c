"""What is counted once per request, in the event loop: latencies, tokens, costs, tiers.

A request has thirty figures, and most requests have the same labels: those of many are counted together, which takes a
tenth of the time. What is read has been counted to the last request.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.base.inference_request import slo_class
from gateway.inference.answer import Answer
from gateway.inference.exclusions import is_below_target
from gateway.telemetry.families import Bounds, CounterFamily, HistogramFamily
from gateway.telemetry.service_levels import Alike, Figures, ServiceLevels
from gateway.telemetry.slo import SECONDS
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
# Requests and gaps between tokens that wait to be counted together: with more of them, each one's share of the work
# falls by little.
_MOST_WAITING = 512


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
        self._prefix_use: defaultdict[int, PrefixUse] = defaultdict(PrefixUse)
        # By `Alike`, whose fields are the key: the figures of each request, and the gaps of all.
        self._figures: defaultdict[tuple[Any, ...], list[tuple[Any, ...]]] = defaultdict(list)
        self._gaps: defaultdict[tuple[Any, ...], list[float]] = defaultdict(list)
        self._waiting = self._period = 0
        levels.settle = self.settle
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
        self._answers_cost: defaultdict[int, float] = defaultdict(float)

    def observe(self, answer: Answer, record: Record) -> None:
        """Count one finished request: at once what few requests have, and its figures when they are read, with those of
        others that are alike."""
        decision, timings, stamps, attempts = record.decision, record.timings, answer.stamps, record.attempts
        made, is_ok, slo = record.is_made, record.status == "ok", None
        if (period := self._levels.period()) != self._period:
            self.settle()
            self._period = period
        figures: tuple[Any, ...] = (
            record.prompt_tokens, record.completion_tokens, record.cached_tokens, record.cost_usd,
            record.baseline_cost_usd, timings.route_ms / 1e3, timings.overhead_ms / 1e3, timings.e2e_ms / 1e3,
            stamps.times.queue_seconds,
        )  # fmt: skip
        if (
            is_ok and made
            and timings.ttft_ms is not None and timings.prefill_ms is not None and timings.decode_ms is not None
        ):  # fmt: skip
            slo = slo_class(answer.request.options.slo, answer.request.generation.priority).name
            figures += (
                timings.ttft_ms / 1e3, timings.prefill_ms / 1e3, timings.decode_ms / 1e3, answer.ttft_limit,
                stamps.schedule_seconds, stamps.tokens_per_second,
            )  # fmt: skip
        is_usual = made and len(attempts) == 1 and decision.would_be is None and not decision.inputs.exclusions
        if is_usual:
            only = attempts[0]
            is_usual = only.status == "ok" and only.tier == record.tier and only.cost_usd == record.cost_usd
            is_usual = is_usual and only.claimed is None and only.stage is None
        alike = (
            record.tier, record.model, record.api, record.status, made, record.http_status >= 500, is_usual,
            record.cache, record.finish_reason, record.key_id, decision.tier, decision.inputs.prediction.kind, slo,
        )  # fmt: skip
        self._figures[alike].append(figures)
        self._waiting += 1
        if stamps.gaps and is_ok and made:
            self._gaps[alike] += [seconds / tokens if tokens > 1 else seconds for seconds, tokens in stamps.gaps]
            self._waiting += len(stamps.gaps)
        if not is_usual:
            self._observe_unusual(record)
        if self._waiting >= _MOST_WAITING:
            self.settle()

    def _observe_unusual(self, record: Record) -> None:
        """Count what few requests have."""
        tier, decision, made = (str(record.tier),), record.decision, record.is_made
        for attempt in record.attempts if made else ():
            label = str(attempt.tier)
            self._attempts.sums[label, attempt.status] += 1
            self._cost.sums[(label,)] += attempt.cost_usd
            if attempt.claimed is not None:
                self._disputed.sums[(label,)] += 1
            if attempt.stage is not None:
                self._judged.sums[label, attempt.stage, "escalated" if attempt.status == "escalated" else "kept"] += 1
        if made and any(attempt.claimed is not None for attempt in record.attempts):
            self._levels.of(self._period, record.tier).disputed += 1
        if made and (comparison := record.comparison) is not None:
            self._agreements.sums[tier[0], comparison.compared_as.kind, comparison.outcome] += 1
        if decision.would_be is not None:
            self._would_be.sums[(str(decision.would_be),)] += 1
            self._would_be_cost.sums[(str(decision.would_be),)] += decision.inputs.costs[decision.would_be - 1]
        if is_below_target(record):
            self._below_target.sums[tier] += 1
            self._levels.of(self._period, record.tier).below_target += 1

    def settle(self) -> None:
        """Count the requests that wait for it."""
        waiting, gaps = self._figures, self._gaps
        self._figures, self._gaps, self._waiting = defaultdict(list), defaultdict(list), 0
        for key, rows in waiting.items():
            self._count(Alike(*key), Figures(*zip(*rows, strict=True)), gaps[key])

    def _count(self, alike: Alike, figures: Figures, gaps: list[float]) -> None:
        """Count requests that are alike; `gaps`: seconds between their tokens."""
        requests, tier = len(figures.prompt_tokens), (str(alike.tier),)
        self._requests.sums[tier[0], alike.status] += requests
        self._cache.sums[(alike.cache or "bypass",)] += requests
        if alike.status == "error" and alike.is_our_fault:
            self._failed.sums[tier] += requests
        self._decisions.sums[str(alike.decided), alike.kind] += requests
        if alike.is_usual:
            self._attempts.sums[tier[0], "ok"] += requests
            self._cost.sums[tier] = sum(figures.cost_usd, self._cost.sums[tier])
        self._baseline.sums[tier] = sum(figures.baseline_usd, self._baseline.sums[tier])
        self._cost_sum = sum(figures.cost_usd, self._cost_sum)
        self._baseline_sum = sum(figures.baseline_usd, self._baseline_sum)
        self._count_tokens(alike, figures, tier)
        self._route.observe_all((), figures.route)
        self._overhead.observe_all((), figures.overhead)
        if alike.status == "ok":
            self._success.sums[alike.model, alike.finish_reason or "stop"] += requests
        buckets = self._count_latencies(alike, figures, gaps) if alike.is_timed else {}
        if alike.is_made:
            # A cache hit says nothing about a tier.
            self._levels.of(self._period, alike.tier).count(alike, figures, buckets)

    def _count_tokens(self, alike: Alike, figures: Figures, tier: tuple[str]) -> None:
        key = (self._keys.label(alike.key_id),)
        prompt_tokens, answer_tokens = sum(figures.prompt_tokens), sum(figures.answer_tokens)
        self._key_cost.sums[key] = sum(figures.cost_usd, self._key_cost.sums[key])
        self._key_requests.sums[key] += len(figures.prompt_tokens)
        self._key_tokens.sums[key] += prompt_tokens + answer_tokens
        if not alike.is_made:
            return
        cached_tokens = sum(figures.cached_tokens)
        self._prompt_tokens.sums[tier] += prompt_tokens
        self._answer_tokens.sums[tier] += answer_tokens
        self._cached_tokens.sums[tier] += cached_tokens
        # All that the answers cost; `_cost` is of a tier's attempts, those for answers of other tiers too.
        self._answers_cost[alike.tier] = sum(figures.cost_usd, self._answers_cost[alike.tier])
        use = self._prefix_use[alike.tier]
        use.prompt_tokens += prompt_tokens
        use.cached_tokens += cached_tokens

    def _count_latencies(self, alike: Alike, figures: Figures, gaps: list[float]) -> dict[int, int]:
        """Count the gaps between tokens by bucket, which are returned, and all other latencies."""
        model = alike.model, operation_name(alike.api)
        self._e2e.observe_all(model, figures.e2e)
        self._prompt.observe_all(model, figures.prompt_tokens)
        self._generated.observe_all(model, figures.answer_tokens)
        self._queue.observe_all(model, figures.queue)
        if alike.slo is not None:
            self._prefill.observe_all(model, figures.prefill)
            self._decode.observe_all(model, figures.decode)
            self._ttft.observe_all(model, figures.ttft)
            self._ttft_share.observe_all((alike.slo,), figures.ttft_shares)
        if speeds := figures.speeds:
            self._per_token.observe_all(model, [1 / speed for speed in speeds])
            self._speed.observe_all((str(alike.tier),), speeds)
        return self._gap.observe_all(model, gaps)

    @property
    def prefix_use(self) -> Mapping[int, PrefixUse]:
        self.settle()
        return self._prefix_use

    @property
    def saving(self) -> float:
        """1 - cost / baseline cost, since start."""
        self.settle()
        return 1 - self._cost_sum / self._baseline_sum if self._baseline_sum else 0.0

    def collect(self) -> Iterator[Metric]:
        """Yield OpenTelemetry's names for vLLM's metrics."""
        self.settle()
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
                family.add_metric(tier, self._answers_cost[number] / tokens * 1e3)
        return family

    def _by_model(self, name: str, documentation: str, bounds: Bounds) -> HistogramFamily:
        """Observations by model and operation; vLLM's metrics have the label model only."""
        return self._histogram(name, documentation, ["model_name"], bounds)

    def _histogram(self, name: str, documentation: str, labels: list[str], bounds: Bounds) -> HistogramFamily:
        family = HistogramFamily(name, documentation, labels, bounds, self.settle)
        self._registry.register(family)
        return family

    def _counter(self, name: str, documentation: str, labels: list[str]) -> CounterFamily:
        family = CounterFamily(name, documentation, labels, self.settle)
        self._registry.register(family)
        return family

    def _private_counter(self, name: str, documentation: str, labels: list[str]) -> CounterFamily:
        family = CounterFamily(name, documentation, labels, self.settle)
        self._private.register(family)
        return family


class _CostPerToken(Collector):
    """The one derived metric with costs."""

    def __init__(self, requests: RequestMetrics) -> None:
        self._requests = requests

    def collect(self) -> Iterator[Metric]:
        yield self._requests.cost_per_1k_tokens()
