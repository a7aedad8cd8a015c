"""Metrics kept by the cores, read from their last snapshots when Prometheus scrapes."""

import time
from collections.abc import Callable, Iterator, Mapping

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from inference_core.protocol import CoreStats, ModelStats
from inference_core.protocol.outputs import STEP_SECONDS

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
Number = Callable[[ModelStats], float | None]
# With the label of each one's core.
Models = list[tuple[str, ModelStats]]
_LABELS = ["model_name", "core"]


class CoreCollector(Collector):
    """Gauges, counters and histograms of the cores' models; vLLM's names where the meaning is the same.

    `stats`: the last snapshot of every core that answered, by name; `away`: the cores that did not.
    """

    def __init__(self) -> None:
        self.stats: dict[str, CoreStats] = {}
        self.away: list[str] = []

    def collect(self) -> Iterator[Metric]:
        """Yield the families of all models; nothing before the first snapshot, or with remote tiers only."""
        if not self.stats and not self.away:
            return
        models = [(name, model) for name, stats in self.stats.items() for model in stats.models]
        yield from _queue_families(models)
        yield from _token_families(models)
        yield from _swap_families(models)
        yield from _handover_families(models)
        yield from _step_families(models)
        yield from _tuning_families(models)
        yield from _speculation_families(models)
        yield _knob_family(models)
        yield from _memory_families(self.stats)
        threads = GaugeMetricFamily(
            "aio_core_threads", "Threads of a step; fewer while other processes take their CPUs.", labels=["core"]
        )
        for name, stats in self.stats.items():
            if stats.threads:
                threads.add_metric([name], stats.threads)
        yield threads
        up = GaugeMetricFamily("aio_core_up", "Whether a core answers.", labels=["core"])
        for name in (*self.stats, *self.away):
            up.add_metric([name], name in self.stats)
        yield up


def _queue_families(models: Models) -> Iterator[Metric]:
    yield _gauge("vllm:num_requests_running", "Sequences in the running batch.", models, lambda m: m.running)
    yield _gauge("vllm:num_requests_waiting", "Sequences in the waiting queue.", models, lambda m: m.waiting)
    yield _gauge("vllm:kv_cache_usage_perc", "Share of KV blocks in use; 1 is all.", models, _kv_usage)
    yield _counter("vllm:num_preemptions", "Sequences preempted.", models, lambda m: m.preemptions)
    yield _gauge("aio_predicted_wait_seconds", "Predicted queueing.", models, lambda m: m.predicted_wait_seconds)
    yield _gauge("aio_queue_alert", "1 while more than alert_waiting sequences wait.", models, lambda m: m.queue_alert)


def _token_families(models: Models) -> Iterator[Metric]:
    yield _counter("vllm:prompt_tokens", "Prompt tokens processed.", models, lambda m: m.prompt_tokens)
    yield _counter("vllm:generation_tokens", "Tokens generated.", models, lambda m: m.generated_tokens)
    yield _counter("vllm:prefix_cache_queries", "Tokens looked up.", models, lambda m: m.prefix_query_tokens)
    yield _counter("vllm:prefix_cache_hits", "Tokens found.", models, lambda m: m.prefix_hit_tokens)
    yield _counter(
        "aio_repetitions_ended", "Answers ended because of repetition.", models, lambda m: m.repetitions_ended
    )


def _speculation_families(models: Models) -> Iterator[Metric]:
    speculating = [(m.name, core, m.speculation) for core, m in models if m.speculation is not None]
    drafts = CounterMetricFamily("vllm:spec_decode_num_drafts", "Drafts verified.", labels=_LABELS)
    proposed = CounterMetricFamily("vllm:spec_decode_num_draft_tokens", "Tokens drafted.", labels=_LABELS)
    accepted = CounterMetricFamily("vllm:spec_decode_num_accepted_tokens", "Of these, accepted.", labels=_LABELS)
    by_position = CounterMetricFamily(
        "vllm:spec_decode_num_accepted_tokens_per_pos", "Accepted, by place.", labels=[*_LABELS, "position"]
    )
    speedup = GaugeMetricFamily("aio_speculation_speedup", "Speed-up of tokens per second by drafts.", labels=_LABELS)
    for name, core, stats in speculating:
        drafts.add_metric([name, core], stats.rounds)
        proposed.add_metric([name, core], sum(stats.proposed))
        accepted.add_metric([name, core], sum(stats.accepted))
        for position, count in enumerate(stats.accepted):
            by_position.add_metric([name, core, str(position)], count)
        if stats.seconds:
            speedup.add_metric([name, core], stats.plain_seconds / stats.seconds)
    yield from (drafts, proposed, accepted, by_position, speedup)


def _swap_families(models: Models) -> Iterator[Metric]:
    yield _gauge("aio_host_cache_blocks", "KV blocks kept in host memory.", models, lambda m: m.swap.blocks_kept)
    yield _counter("aio_swapped_out_blocks", "KV blocks copied to host memory.", models, lambda m: m.swap.out_blocks)
    yield _counter("aio_swapped_in_blocks", "KV blocks copied back.", models, lambda m: m.swap.back_blocks)
    yield _counter("aio_swap_refused_blocks", "KV blocks dropped because copying costs more than recomputing.", models,
                   lambda m: m.swap.refused_blocks)  # fmt: skip
    yield _counter("aio_swapped_bytes", "Bytes copied either way.", models,
                   lambda m: (m.swap.out_blocks + m.swap.back_blocks) * m.swap.block_bytes)  # fmt: skip
    yield _counter("aio_swap_copying_seconds", "What copying took.", models, lambda m: m.swap.copying_seconds)
    yield _counter("aio_swap_spared_seconds", "Time that recomputing the restored blocks would have taken.", models,
                   lambda m: m.swap.spared_seconds)  # fmt: skip


def _handover_families(models: Models) -> Iterator[Metric]:
    yield _counter("aio_handed_out_blocks", "KV blocks sent to other cores.", models, lambda m: m.handover.out_blocks)
    yield _counter(
        "aio_handed_in_blocks", "KV blocks received from other cores.", models, lambda m: m.handover.in_blocks
    )
    yield _counter("aio_handover_refused_frames", "Runs of KV blocks rejected.", models,
                   lambda m: m.handover.refused_frames)  # fmt: skip
    yield _counter("aio_handover_seconds", "Time spent on transferring prompts.", models, lambda m: m.handover.seconds)
    yield _counter("aio_handover_tokens", "Prompt tokens transferred.", models, lambda m: m.handover.tokens)
    prompts = CounterMetricFamily(
        "aio_handovers", "Long prompts by outcome of their transfer.", labels=[*_LABELS, "outcome"]
    )
    for core, model in models:
        for outcome, count in model.handover.outcomes.items():
            prompts.add_metric([model.name, core, outcome], count)
    yield prompts


def _step_families(models: Models) -> Iterator[Metric]:
    yield _gauge("aio_step_seconds_mean", "Mean duration of a step.", models, lambda m: m.step_seconds_mean)
    yield _gauge("aio_pipeline_idle_share", "Idle share of pipeline stages, mean of the steps.", models, _pipeline_idle)
    seconds = HistogramMetricFamily("aio_step_seconds", "Duration of a step.", labels=_LABELS)
    sequences = HistogramMetricFamily("aio_step_sequences", "Sequences in a step.", labels=_LABELS)
    for core, model in models:
        counts = dict(zip((*map(str, STEP_SECONDS), "+Inf"), model.step_seconds_counts, strict=False))
        seconds.add_metric([model.name, core], _cumulative(counts), model.step_seconds_sum)
        sizes = model.batch_sizes
        counts = {str(most): sum(sizes[n] for n in sizes if least < n <= most) for least, most in _SIZE_RANGES}
        counts["+Inf"] = sum(sizes[n] for n in sizes if n > BATCH_SIZES[-1])
        sequences.add_metric([model.name, core], _cumulative(counts), sum(n * count for n, count in sizes.items()))
    yield seconds
    yield sequences


def _tuning_families(models: Models) -> Iterator[Metric]:
    values = {model.name: model.tuning for _, model in models if model.tuning is not None}
    models = [(core, model) for core, model in models if model.name in values]
    yield _gauge("aio_token_budget", "Current token limit of a step.", models,
                 lambda m: values[m.name].max_num_batched_tokens)  # fmt: skip
    yield _gauge("aio_prefill_chunk", "Current limit of a sequence's prompt tokens in a step.", models,
                 lambda m: values[m.name].prefill_chunk)  # fmt: skip
    yield _gauge("aio_seats", "Current limit of running sequences.", models, lambda m: values[m.name].max_num_seqs)
    yield _counter("aio_tuner_decisions", "Changes made by the tuner.", models, lambda m: values[m.name].decisions)
    yield _gauge("aio_tuner_itl_p95_seconds", "95th percentile of the last gaps between tokens.", models,
                 lambda m: values[m.name].itl_p95_seconds)  # fmt: skip
    yield _gauge("aio_tuner_ttft_p95_seconds", "95th percentile of the last times to first token.", models,
                 lambda m: values[m.name].ttft_p95_seconds)  # fmt: skip
    yield _gauge("aio_tuner_last_decision_timestamp_seconds", "Time of the tuner's last change.", models,
                 lambda m: _epoch(values[m.name].decided_at))  # fmt: skip


def _knob_family(models: Models) -> Metric:
    """Return every knob whose value is a number or a switch."""
    family = GaugeMetricFamily("aio_knob", "Current values of the live knobs.", labels=[*_LABELS, "knob"])
    for core, model in models:
        for name, value in msgspec.structs.asdict(model.knobs).items():
            if isinstance(value, (bool, int, float)):
                family.add_metric([model.name, core, name], value)
    return family


def _memory_families(cores: Mapping[str, CoreStats]) -> Iterator[Metric]:
    arena = GaugeMetricFamily("aio_kv_arena_bytes", "Bytes of the KV arena by state.", labels=["state", "core"])
    weights = GaugeMetricFamily("aio_weight_bytes", "Bytes of the loaded weights.", labels=_LABELS)
    share = GaugeMetricFamily("aio_weights_share", "Weights' share of weights and owned KV memory.", labels=["core"])
    for name, stats in cores.items():
        free = stats.slabs_free * stats.slab_bytes
        arena.add_metric(["free", name], free)
        arena.add_metric(["owned", name], stats.arena_bytes - free)
        for model in stats.models:
            weights.add_metric([model.name, name], model.weight_bytes)
        loaded = sum(model.weight_bytes for model in stats.models)
        if loaded:
            share.add_metric([name], loaded / (loaded + stats.arena_bytes - free))
    yield from (arena, weights, share)


_SIZE_RANGES = tuple(zip((0, *BATCH_SIZES), BATCH_SIZES, strict=False))


def _cumulative(counts: dict[str, int]) -> list[tuple[str, float]]:
    total, buckets = 0, []
    for bound, count in counts.items():
        total += count
        buckets.append((bound, float(total)))
    return buckets


def _kv_usage(model: ModelStats) -> float:
    return model.blocks_in_use / model.blocks_total if model.blocks_total else 0.0


def _pipeline_idle(model: ModelStats) -> float | None:
    pipeline = model.pipeline
    return pipeline.idle_sum / pipeline.steps if pipeline is not None and pipeline.steps else None


def _epoch(monotonic: float | None) -> float | None:
    return None if monotonic is None else time.time() - (time.monotonic() - monotonic)


def _gauge(name: str, text: str, models: Models, value: Number) -> Metric:
    return _filled(GaugeMetricFamily(name, text, labels=_LABELS), models, value)


def _counter(name: str, text: str, models: Models, value: Number) -> Metric:
    return _filled(CounterMetricFamily(name, text, labels=_LABELS), models, value)


def _filled(
    family: GaugeMetricFamily | CounterMetricFamily, models: Models, value: Number
) -> GaugeMetricFamily | CounterMetricFamily:
    """Yield one sample per model with a value."""
    for core, model in models:
        if (number := value(model)) is not None:
            family.add_metric([model.name, core], number)
    return family
