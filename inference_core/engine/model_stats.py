"""The statistics of one model of a core at one moment."""

from copy import copy

from inference_core.engine.live_knobs import LiveKnobs
from inference_core.engine.served_model import ServedModel
from inference_core.protocol import ModelStats, PrefixStats, SwapStats
from inference_core.scheduling.scheduler import Scheduler


def model_stats(model: ServedModel, knobs: LiveKnobs, prefixes: list[PrefixStats]) -> ModelStats:
    """`knobs` of the core; `prefixes` pinned for the model."""
    scheduler, runner, meter, statistics = model.scheduler, model.runner, model.meter, model.statistics
    pool, totals, adapters = scheduler.pool, scheduler.totals, scheduler.adapters
    running, waiting = len(scheduler.asked_running), len(scheduler.asked_waiting)
    return ModelStats(
        name=model.name,
        running=running,
        waiting=waiting,
        idle_work=len(scheduler.running) + len(scheduler.waiting) - running - waiting,
        blocks_in_use=pool.num_referenced - scheduler.num_idle_blocks,
        blocks_cached=pool.num_evictable,
        blocks_total=pool.capacity,
        prompt_tokens=totals.prompt_tokens,
        generated_tokens=totals.generated_tokens,
        prefix_hit_tokens=totals.prefix_hit_tokens,
        prefix_query_tokens=totals.prefix_query_tokens,
        preemptions=totals.preemptions,
        joins=scheduler.joins.rows(),
        deadline_refusals=totals.deadline_refusals,
        repetitions_ended=totals.repetitions_ended,
        step_seconds_mean=meter.step_seconds,
        predicted_wait_seconds=meter.predicted_wait(scheduler, model.num_sharing),
        knobs=knobs.of(model.name),
        start=knobs.start_of(model.name),
        tuning=model.tuner.tuning(),
        queue_alert=model.queue_alert.raised,
        adapters=adapters.infos(),
        adapter_slots=adapters.num_slots,
        adapter_installs=adapters.installs,
        adapter_evictions=adapters.evictions,
        step_seconds_counts=list(statistics.seconds_counts),
        step_seconds_sum=statistics.seconds_sum,
        batch_sizes=dict(statistics.batch_sizes),
        speculation=model.speculator.stats(),
        swap=_swap_stats(scheduler),
        handover=model.kv_transfer.stats(),
        weight_bytes=runner.info.weight_bytes,
        is_loaded=runner.is_loaded,
        pipeline=copy(runner.pipeline),
        blocks_pinned=pool.num_pinned,
        prefixes=prefixes,
    )


def _swap_stats(scheduler: Scheduler) -> SwapStats:
    pool, host = scheduler.pool, scheduler.pool.host
    return SwapStats(
        blocks_total=host.capacity,
        blocks_kept=host.num_kept,
        block_bytes=pool.block_bytes,
        out_blocks=host.totals.out_blocks,
        back_blocks=host.totals.back_blocks,
        refused_blocks=host.totals.refused_blocks,
        copying_seconds=host.totals.copying_seconds,
        spared_seconds=host.totals.spared_seconds,
        out_seconds_per_block=host.swap_cost.out.seconds_per_block,
        back_seconds_per_block=host.swap_cost.back.seconds_per_block,
    )
