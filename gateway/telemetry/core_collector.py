"""Metrics that a core keeps itself, read from its last snapshot when Prometheus scrapes."""

import time
from collections.abc import Callable, Iterator

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from inference_core.protocol import CoreStats, ModelStats
from inference_core.step_statistics import STEP_SECONDS

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
Number = Callable[[ModelStats], float | None]


class CoreCollector(Collector):
    """Gauges, counters and histograms of a core's models; vLLM's names where the meaning is the same."""

    def __init__(self) -> None:
        self.stats: CoreStats | None = None

    def collect(self) -> Iterator[Metric]:
        """The families of all models; nothing before the first snapshot, as behind remote tiers alone."""
        if self.stats is None:
            return
        models = self.stats.models
        yield from _queue_families(models)
        yield from _token_families(models)
        yield from _step_families(models)
        yield from _tuning_families(models)
        yield from _speculation_families(models)
        yield _knob_family(models)
        yield _arena_family(self.stats)


def _queue_families(models: list[ModelStats]) -> Iterator[Metric]:
    yield _gauge("vllm:num_requests_running", "Sequences in the running batch.", models, lambda m: m.running)
    yield _gauge("vllm:num_requests_waiting", "Sequences that wait for the batch.", models, lambda m: m.waiting)
    yield _gauge("vllm:kv_cache_usage_perc", "Share of KV blocks in use; 1 is all.", models, _kv_usage)
    yield _counter("vllm:num_preemptions", "Sequences preempted.", models, lambda m: m.preemptions)
    yield _gauge("aio_predicted_wait_seconds", "Predicted queueing.", models, lambda m: m.predicted_wait_seconds)
    yield _gauge("aio_queue_alert", "1 while more wait than alert_waiting.", models, lambda m: m.queue_alert)


def _token_families(models: list[ModelStats]) -> Iterator[Metric]:
    yield _counter("vllm:prompt_tokens", "Prompt tokens taken in.", models, lambda m: m.prompt_tokens)
    yield _counter("vllm:generation_tokens", "Tokens generated.", models, lambda m: m.generated_tokens)
    yield _counter("vllm:prefix_cache_queries", "Tokens looked up.", models, lambda m: m.prefix_query_tokens)
    yield _counter("vllm:prefix_cache_hits", "Tokens found.", models, lambda m: m.prefix_hit_tokens)
    yield _counter("aio_repetitions_ended", "Answers ended in a loop.", models, lambda m: m.repetitions_ended)


def _speculation_families(models: list[ModelStats]) -> Iterator[Metric]:
    speculating = [(m.name, m.speculation) for m in models if m.speculation is not None]
    drafts = CounterMetricFamily("vllm:spec_decode_num_drafts", "Drafts verified.", labels=["model_name"])
    proposed = CounterMetricFamily("vllm:spec_decode_num_draft_tokens", "Tokens drafted.", labels=["model_name"])
    accepted = CounterMetricFamily("vllm:spec_decode_num_accepted_tokens", "Of these, accepted.", labels=["model_name"])
    by_place = CounterMetricFamily(
        "vllm:spec_decode_num_accepted_tokens_per_pos", "Accepted, by place.", labels=["model_name", "position"]
    )
    speedup = GaugeMetricFamily(
        "aio_speculation_speedup", "How much faster steps with drafts made tokens.", labels=["model_name"]
    )
    for name, stats in speculating:
        drafts.add_metric([name], stats.rounds)
        proposed.add_metric([name], sum(stats.proposed))
        accepted.add_metric([name], sum(stats.accepted))
        for place, count in enumerate(stats.accepted):
            by_place.add_metric([name, str(place)], count)
        if stats.seconds:
            speedup.add_metric([name], stats.plain_seconds / stats.seconds)
    yield from (drafts, proposed, accepted, by_place, speedup)


def _step_families(models: list[ModelStats]) -> Iterator[Metric]:
    yield _gauge("aio_step_seconds_mean", "Mean duration of a step.", models, lambda m: m.step_seconds_mean)
    seconds = HistogramMetricFamily("aio_step_seconds", "Duration of a step.", labels=["model_name"])
    sequences = HistogramMetricFamily("aio_step_sequences", "Sequences in a step.", labels=["model_name"])
    for model in models:
        counts = dict(zip((*map(str, STEP_SECONDS), "+Inf"), model.step_seconds_counts, strict=False))
        seconds.add_metric([model.name], _cumulative(counts), model.step_seconds_sum)
        sizes = model.batch_sizes
        counts = {str(most): sum(sizes[n] for n in sizes if least < n <= most) for least, most in _SIZE_RANGES}
        counts["+Inf"] = sum(sizes[n] for n in sizes if n > BATCH_SIZES[-1])
        sequences.add_metric([model.name], _cumulative(counts), sum(n * count for n, count in sizes.items()))
    yield seconds
    yield sequences


def _tuning_families(models: list[ModelStats]) -> Iterator[Metric]:
    tuned = [(model, model.tuning) for model in models if model.tuning is not None]
    values = {model.name: tuning for model, tuning in tuned}
    models = [model for model, _ in tuned]
    yield _gauge("aio_token_budget", "Tokens of a step, in force.", models,
                 lambda m: values[m.name].max_num_batched_tokens)  # fmt: skip
    yield _gauge("aio_prefill_chunk", "Prompt tokens of a sequence in a step, in force.", models,
                 lambda m: values[m.name].prefill_chunk)  # fmt: skip
    yield _gauge("aio_seats", "Sequences that may run, in force.", models, lambda m: values[m.name].max_num_seqs)
    yield _counter("aio_tuner_decisions", "Changes made by the tuner.", models, lambda m: values[m.name].decisions)
    yield _gauge("aio_tuner_itl_p95_seconds", "95th percentile of the last gaps between tokens.", models,
                 lambda m: values[m.name].itl_p95_seconds)  # fmt: skip
    yield _gauge("aio_tuner_ttft_p95_seconds", "95th percentile of the last times to first token.", models,
                 lambda m: values[m.name].ttft_p95_seconds)  # fmt: skip
    yield _gauge("aio_tuner_last_decision_timestamp_seconds", "When the tuner last changed something.", models,
                 lambda m: _epoch(values[m.name].decided_at))  # fmt: skip


def _knob_family(models: list[ModelStats]) -> Metric:
    """Every knob whose value is a number or a switch, as it is set."""
    family = GaugeMetricFamily("aio_knob", "Live knobs as they are set.", labels=["model_name", "knob"])
    for model in models:
        for name, value in msgspec.structs.asdict(model.knobs).items():
            if isinstance(value, (bool, int, float)):
                family.add_metric([model.name, name], value)
    return family


def _arena_family(stats: CoreStats) -> Metric:
    arena = GaugeMetricFamily("aio_kv_arena_bytes", "Bytes of the KV arena by state.", labels=["state"])
    free = stats.slabs_free * stats.slab_bytes
    arena.add_metric(["free"], free)
    arena.add_metric(["owned"], stats.arena_bytes - free)
    return arena


_SIZE_RANGES = tuple(zip((0, *BATCH_SIZES), BATCH_SIZES, strict=False))


def _cumulative(counts: dict[str, int]) -> list[tuple[str, float]]:
    total, buckets = 0, []
    for bound, count in counts.items():
        total += count
        buckets.append((bound, float(total)))
    return buckets


def _kv_usage(model: ModelStats) -> float:
    return model.blocks_in_use / model.blocks_total if model.blocks_total else 0.0


def _epoch(monotonic: float | None) -> float | None:
    return None if monotonic is None else time.time() - (time.monotonic() - monotonic)


def _gauge(name: str, text: str, models: list[ModelStats], value: Number) -> Metric:
    return _filled(GaugeMetricFamily(name, text, labels=["model_name"]), models, value)


def _counter(name: str, text: str, models: list[ModelStats], value: Number) -> Metric:
    return _filled(CounterMetricFamily(name, text, labels=["model_name"]), models, value)


def _filled(
    family: GaugeMetricFamily | CounterMetricFamily, models: list[ModelStats], value: Number
) -> GaugeMetricFamily | CounterMetricFamily:
    """One sample per model that has a value."""
    for model in models:
        if (number := value(model)) is not None:
            family.add_metric([model.name], number)
    return family
