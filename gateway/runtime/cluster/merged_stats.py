"""Merges the statistics of several replicas of a core."""

from collections.abc import Sequence
from typing import Any

import msgspec

from inference_core.protocol import (
    CoreStats,
    JoinStats,
    KVTransferStats,
    ModelStats,
    PipelineStats,
    SpeculationStats,
    SwapStats,
)

# Current state, which is lost with a replica.
_LEVELS = (
    "running",
    "waiting",
    "idle_work",
    "blocks_in_use",
    "blocks_cached",
    "blocks_total",
    "blocks_pinned",
    "adapter_slots",
    "weight_bytes",
)
# Counts since start, which outlive a replica.
_COUNTS = (
    "prompt_tokens",
    "generated_tokens",
    "prefix_hit_tokens",
    "prefix_query_tokens",
    "preemptions",
    "step_seconds_sum",
    "deadline_refusals",
    "repetitions_ended",
    "adapter_installs",
    "adapter_evictions",
)
_HANDOVER_COUNTS = ("out_blocks", "in_blocks", "refused_frames")
_SWAP_LEVELS = ("blocks_total", "blocks_kept")
_SWAP_COUNTS = ("out_blocks", "back_blocks", "refused_blocks", "copying_seconds", "spared_seconds")


def merged(
    query_id: str, present: Sequence[CoreStats], past: Sequence[CoreStats] = (), *, answering: int | None = None
) -> CoreStats:
    """Merge the statistics of the replicas at `present`, at least one, and of former ones, whose counts are kept.

    A new request goes where the wait is shortest, so the predicted wait is the least of those that answer: the first
    `answering`, or all. Knobs, tuning and threads are those of the first: replicas of a role have the same.
    """
    first = present[0]
    past = [_counts_alone(stats) for stats in past]
    return CoreStats(
        query_id=query_id,
        steps=sum(stats.steps for stats in (*present, *past)),
        arena_bytes=sum(stats.arena_bytes for stats in present),
        slab_bytes=first.slab_bytes,
        slabs_free=sum(stats.slabs_free for stats in present),
        models=[
            _merged_model(_named(model.name, present), _named(model.name, past), answering) for model in first.models
        ],
        threads=first.threads,
    )


def summed_past(past: CoreStats | None, gone: CoreStats) -> CoreStats:
    """Return the counts of all former replicas, after one more has left."""
    return merged("", [_counts_alone(gone)], [] if past is None else [past])


def _named(name: str, stats: Sequence[CoreStats]) -> list[ModelStats]:
    return [model for core in stats for model in core.models if model.name == name]


def _counts_alone(stats: CoreStats) -> CoreStats:
    """Keep the counts only, as if nothing was running, waiting or cached."""
    models = [
        msgspec.structs.replace(
            model,
            **dict.fromkeys(_LEVELS, 0),
            queue_alert=False,
            adapters=[],
            prefixes=[],
            swap=msgspec.structs.replace(model.swap, **dict.fromkeys(_SWAP_LEVELS, 0)),
        )
        for model in stats.models
    ]
    return msgspec.structs.replace(stats, arena_bytes=0, slabs_free=0, models=models)


def _merged_model(present: list[ModelStats], past: list[ModelStats], answering: int | None) -> ModelStats:
    both = [*present, *past]
    steps = [sum(model.step_seconds_counts) for model in both]
    return msgspec.structs.replace(
        present[0],
        **{name: sum(getattr(model, name) for model in both) for name in (*_LEVELS, *_COUNTS)},
        step_seconds_mean=_mean([model.step_seconds_mean for model in both], steps),
        step_seconds_counts=_added([model.step_seconds_counts for model in both]),
        batch_sizes=_by_size([model.batch_sizes for model in both]),
        predicted_wait_seconds=min(model.predicted_wait_seconds for model in present[: answering or None]),
        queue_alert=any(model.queue_alert for model in present),
        joins=_merged_joins([join for model in both for join in model.joins]),
        speculation=_merged_speculation([model.speculation for model in both if model.speculation is not None]),
        swap=_merged_swap([model.swap for model in both]),
        pipeline=_merged_pipeline([model.pipeline for model in both if model.pipeline is not None]),
        handover=KVTransferStats(
            **{name: sum(getattr(model.handover, name) for model in both) for name in _HANDOVER_COUNTS}
        ),
    )


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    total = sum(weights)
    if not total:
        return values[0]
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / total


def _added(lists: Sequence[list[int]]) -> list[int]:
    longest = max(map(len, lists))
    return [sum(counts[i] for counts in lists if i < len(counts)) for i in range(longest)]


def _by_size(counts: Sequence[dict[int, int]]) -> dict[int, int]:
    sizes = sorted({size for by_size in counts for size in by_size})
    return {size: sum(by_size.get(size, 0) for by_size in counts) for size in sizes}


def _merged_joins(joins: Sequence[JoinStats]) -> list[JoinStats]:
    merged_joins: list[JoinStats] = []
    for decoding in sorted({join.decoding for join in joins}):
        same = [join for join in joins if join.decoding == decoding]
        counts = [join.count for join in same]
        seconds = _mean([join.seconds_mean for join in same], counts)
        per_token = _mean([join.seconds_per_token for join in same], counts)
        merged_joins.append(JoinStats(decoding, sum(counts), seconds, per_token))
    return merged_joins


def _merged_speculation(all_of: Sequence[SpeculationStats]) -> SpeculationStats | None:
    if not all_of:
        return None
    return SpeculationStats(
        proposed=_added([stats.proposed for stats in all_of]),
        accepted=_added([stats.accepted for stats in all_of]),
        rounds=sum(stats.rounds for stats in all_of),
        seconds=sum(stats.seconds for stats in all_of),
        plain_seconds=sum(stats.plain_seconds for stats in all_of),
    )


def _merged_swap(all_of: Sequence[SwapStats]) -> SwapStats:
    summed: dict[str, Any] = {
        name: sum(getattr(stats, name) for stats in all_of) for name in (*_SWAP_LEVELS, *_SWAP_COUNTS)
    }
    return msgspec.structs.replace(all_of[0], **summed)


def _merged_pipeline(all_of: Sequence[PipelineStats]) -> PipelineStats | None:
    if not all_of:
        return None
    return PipelineStats(
        stages=all_of[0].stages,
        steps=sum(stats.steps for stats in all_of),
        micro_batches=sum(stats.micro_batches for stats in all_of),
        idle_sum=sum(stats.idle_sum for stats in all_of),
    )
