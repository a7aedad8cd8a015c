"""One model of a core: its runner, what plans and drafts its steps, and what they are measured by.

How long a request added now would wait for its first step is predicted from measured steps and the queue.
"""

import logging
import math
from bisect import bisect_left
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from inference_core.engine.auto_tuner import AutoTuner
from inference_core.engine.block_tables import BlockTables
from inference_core.engine.kv_transfer import KVTransfer
from inference_core.engine.live_knobs import LiveKnobs
from inference_core.engine.requests import steps_to_look
from inference_core.engine.scheduler import Scheduler
from inference_core.engine.sequence import Sequence
from inference_core.engine.speculator import Speculator
from inference_core.errors import InvalidRequestError, QueueFullError
from inference_core.execution.runner import ModelRunner
from inference_core.kv_cache.block_pool import BlockPool
from inference_core.kv_cache.layout import KVDtype, KVLayout
from inference_core.protocol import AddRequest, Knobs, ModelStats, PrefixStats, SequenceOutput, SwapStats
from inference_core.protocol.outputs import STEP_SECONDS
from inference_core.protocol.token_channel import TokenChannel, TokenRoutes, output_head
from inference_core.step_plan import ChannelRows, ScheduledSequence, StepPlan


@dataclass(slots=True, frozen=True)
class StepMeasurement:
    """What one step computed and took."""

    sequences: int
    tokens: int
    """Tokens without drafts, whose cost is counted with the decodes."""
    depth: float
    """The value of `prompt_depth`."""
    seconds: float
    """How long the step kept the device."""
    swap_seconds: float
    """The part of `seconds` that went to copies from and to host memory."""
    decode_steps: int = 1
    """How many steps of `tokens` each followed each other in this time."""


class StepStatistics:
    """`seconds_counts[i]` counts steps of at most `STEP_SECONDS[i]`, the last one all beyond; `batch_sizes` by size."""

    def __init__(self) -> None:
        self.seconds_counts = [0] * (len(STEP_SECONDS) + 1)
        self.seconds_sum = 0.0
        self.batch_sizes: dict[int, int] = {}

    def record(self, sequences: int, seconds: float, steps: int = 1) -> None:
        """Record so many `steps` of `sequences` that took `seconds` each."""
        self.seconds_counts[bisect_left(STEP_SECONDS, seconds)] += steps
        self.seconds_sum += seconds * steps
        self.batch_sizes[sequences] = self.batch_sizes.get(sequences, 0) + steps


class StepMeter:
    """Running means over a model's steps and finished sequences (exponential, so that old load is forgotten)."""

    WEIGHT = 0.1

    def __init__(self) -> None:
        self.step_seconds = 0.0
        self._length_ratio = 1.0
        self._steps = 0

    def record_step(self, seconds: float) -> None:
        """Record a step of `seconds`, scheduling included."""
        self._steps += 1
        self.step_seconds += max(self.WEIGHT, 1 / self._steps) * (seconds - self.step_seconds)

    def record_finish(self, output_tokens: int, allowed_tokens: int) -> None:
        """Record a sequence that ended after `output_tokens` of `allowed_tokens`."""
        self._length_ratio += self.WEIGHT * (output_tokens / allowed_tokens - self._length_ratio)

    def predicted_wait(self, scheduler: Scheduler, models_sharing: int, prompt_tokens: float = math.inf) -> float:
        """Seconds until a request added now to `scheduler` starts; 0.0 if it could start with the next step.

        Prompts that have more left to compute than its `prompt_tokens` do not delay it: the shortest comes first.
        Idle work does not either.

        The queue is limited by two rates, and the slower one counts: prompt tokens under the token budget, and places
        under `max_num_seqs`, which running sequences free after their `max_tokens` times the share of it that answers
        use on average. Each of `models_sharing` models with work gets an equal share of time.
        """
        knobs = scheduler.knobs
        running = _waited_for(scheduler.running.values())
        waiting = _waited_for(scheduler.waiting.values())
        prefilling = [s.kv.num_prefill_tokens for s in running if s.kv.num_uncomputed_tokens > 1]
        before = (*prefilling, *(s.kv.num_prefill_tokens for s in waiting))
        backlog = sum(tokens for tokens in before if tokens <= prompt_tokens)
        decodes = len(running) - len(prefilling)
        prompt_steps = backlog / max(1, knobs.max_num_batched_tokens - decodes)
        steps = max(prompt_steps, self._admission_steps(scheduler, running, len(waiting)))
        return steps * self.step_seconds * max(1, models_sharing)

    def predicted_first_token(self, scheduler: Scheduler, prompt_tokens: int, models_sharing: int) -> float:
        """Seconds until a request added now has its first token; a lower bound before the first measurement."""
        knobs = scheduler.knobs
        chunk = max(1, min(knobs.prefill_chunk, knobs.max_num_batched_tokens - len(scheduler.running)))
        prompt_seconds = -(-prompt_tokens // chunk) * self.step_seconds * max(1, models_sharing)
        return self.predicted_wait(scheduler, models_sharing, prompt_tokens) + prompt_seconds

    def _admission_steps(self, scheduler: Scheduler, running: list[Sequence], waiting: int) -> float:
        """Steps until the whole queue and a request added now have been admitted."""
        free = 0 if scheduler.blocked else scheduler.knobs.max_num_seqs - len(running)
        places_needed = waiting + 1 - free
        if places_needed <= 0 or not running:
            return 0.0
        left = sorted(s.max_output_tokens - len(s.output_token_ids) for s in running)
        rounds, rest = divmod(places_needed - 1, len(left))
        return (left[rest] + rounds * sum(left) / len(left)) * self._length_ratio


log = logging.getLogger(__name__)


# The share of the objective for the time between tokens that several tokens may take that come out together.
_BURST = 0.125


class ServedModel:
    """A model as its core serves it; `scheduler.knobs` are the model's knobs, with the limits that the tuner sets."""

    def __init__(self, runner: ModelRunner, scheduler: Scheduler, speculator: Speculator) -> None:
        self.name = scheduler.name
        self.runner = runner
        self.scheduler = scheduler
        self.speculator = speculator
        self.kv_transfer = KVTransfer(scheduler.pool, runner)
        self.meter = StepMeter()
        self.tuner = AutoTuner(scheduler.knobs)
        self.statistics = StepStatistics()
        self.queue_alert = QueueAlert(self.name)
        self._loaded_kv_dtype = runner.layout.dtype

    @property
    def computes_prompts_fast(self) -> bool:
        """Whether new requests' prompts are computed in prompt arithmetic; a request keeps what it began with."""
        return self.runner.has_prompt_arithmetic and self.scheduler.knobs.prefill_arithmetic == "fast"

    def set_knobs(self, knobs: Knobs) -> None:
        """Apply `knobs` from the next step on."""
        self.scheduler.knobs = self.tuner.set_limits(knobs)

    def layout_with(self, kv_dtype: KVDtype | Literal["catalogue"]) -> KVLayout | None:
        """Return the layout of its blocks under another value of the knob; None where it is the present one.

        Raises `InvalidRequestError` for a dtype that the model cannot have where it runs.
        """
        runner = self.runner
        dtype = self._loaded_kv_dtype if kv_dtype == "catalogue" else kv_dtype
        if dtype == runner.layout.dtype:
            return None
        if not runner.kv_dtypes:
            raise InvalidRequestError(
                f"kv_dtype is {dtype}; {self.name} runs where the cache keeps the {runner.layout.dtype} that it was "
                "loaded with: change kv_dtype in the catalogue and restart, or name another model",
                "kv_dtype",
            )
        if dtype not in runner.kv_dtypes:
            allowed = ", ".join(runner.kv_dtypes)
            raise InvalidRequestError(f"kv_dtype is {dtype}; {self.name} can have {allowed} where it runs", "kv_dtype")
        return msgspec.structs.replace(runner.layout, dtype=dtype)

    def decode_ahead(self, plan: StepPlan, routes: TokenRoutes | None) -> StepPlan:
        """Return `plan`, which nothing waits behind, with as many decode steps as may be taken before the host looks,
        and the channels of `routes` that their tokens leave by.

        They are expected to take at most the objective for the time between tokens, and at most `_BURST` of it where
        tokens of one of the sequences come out together.
        """
        scheduler, knobs, model = self.scheduler, self.scheduler.knobs, self.tuner.model
        most = min(knobs.decode_steps, self.runner.most_decode_steps)
        if most < 2 or not model.is_warm or scheduler.waiting or self.speculator.drafts_always:
            return plan
        if plan.copies or plan.offloads or plan.restores or plan.num_drafts:
            return plan
        channels: ChannelRows = []
        if routes is not None:
            until_look = min(map(self._steps_to_look, plan.sequences)) if knobs.repetition_guard else math.inf
            # Tokens behind a look are taken back if it ends the answer; few steps that reach none are not worth it.
            if until_look * 2 >= most:
                most = int(min(most, until_look))
                channels = self._channels(plan, routes)
        each = model.cost.predict(len(plan.sequences), len(plan.sequences))
        if each > 0:
            share = 1.0 if sum(len(rows) for _, rows in channels) == len(plan.sequences) else _BURST
            most = min(most, int(knobs.itl_objective_ms / 1e3 * share / each))
        steps = scheduler.tables.reserve_decode_steps(plan, most) if most > 1 else 1
        return plan if steps == 1 else replace(plan, decode_steps=steps, channels=channels)

    def _steps_to_look(self, share: ScheduledSequence) -> float:
        return steps_to_look(self.scheduler.running[share.sequence_id], self.scheduler.knobs.repetition_guard)

    def _channels(self, plan: StepPlan, routes: TokenRoutes) -> ChannelRows:
        rows: dict[TokenChannel, list[tuple[int, bytes]]] = {}
        for row, share in enumerate(plan.sequences):
            sequence = self.scheduler.running[share.sequence_id]
            if route := routes.route(sequence.request.request_id):
                channel, name = route
                logprobs = sequence.request.sampling.logprobs is not None
                head = output_head(name, sequence.index, sequence.cached_tokens, logprobs=logprobs)
                rows.setdefault(channel, []).append((row, head))
        return list(rows.items())

    def watch_queue(self) -> None:
        """Report a queue that has grown past the alert's threshold, or has calmed down."""
        knobs = self.scheduler.knobs
        self.queue_alert.look(len(self.scheduler.waiting), knobs.alert_waiting, knobs.max_waiting)

    @property
    def num_sharing(self) -> int:
        """Among how many models the core's time is shared while this one has work: those with work that somebody asked
        for, and this one."""
        return sum(peer.has_asked_work or peer is self.scheduler for peer in self.scheduler.peers)

    def refuse_hopeless(self, request: AddRequest, now: float) -> None:
        """Raises `QueueFullError` if a strict deadline is before the predicted first token (SPEC BS-04)."""
        if request.deadline is None or not request.strict_deadline:
            return
        seconds = self.meter.predicted_first_token(self.scheduler, len(request.prompt_token_ids), self.num_sharing)
        if now + seconds > request.deadline:
            self.scheduler.totals.deadline_refusals += 1
            raise QueueFullError(
                f"{self.name}: the first token is due in {(request.deadline - now) * 1e3:.0f} ms, but would take "
                f"{seconds * 1e3:.0f} ms as things are; allow more time or try elsewhere"
            )

    def record_finish(self, choice: Sequence, output: SequenceOutput) -> None:
        """Learn from a choice that has ended with `output`."""
        if choice.draws:
            self.meter.record_finish(output.completion_tokens, choice.max_output_tokens)
            computed = output.prompt_tokens - output.cached_tokens
            if not choice.precedence.is_idle_work:
                self.tuner.after_answer(choice.precedence.waited_seconds, computed, output.completion_tokens)

    def record_step(self, step: StepMeasurement, num_outputs: int, now: float) -> None:
        """Account for a committed step with so many outputs, and tune the limits of the next one."""
        scheduler, tuner, seconds = self.scheduler, self.tuner, step.seconds / step.decode_steps
        self.meter.record_step(seconds)
        self.statistics.record(step.sequences, seconds, step.decode_steps)
        scheduler.knobs = tuner.after_step(
            step.sequences,
            step.tokens,
            num_outputs,
            seconds - step.swap_seconds,
            now,
            backlog=sum(sequence.kv.num_uncomputed_tokens for sequence in scheduler.prefilling.values()),
            waiting=len(scheduler.waiting),
            sharing=sum(peer.has_work for peer in scheduler.peers) or 1,
            depth=step.depth,
        )
        scheduler.pool.host.set_compute_cost(tuner.model.cost.further if tuner.model.is_warm else None)


class QueueAlert:
    """Says once when a queue grows past a threshold, and once when it has calmed down (SPEC BS-13): raised by more than
    `threshold` waiting sequences of `model`, lowered by half as many."""

    def __init__(self, model: str) -> None:
        self.raised = False
        self._model = model

    def look(self, waiting: int, threshold: int, most: int) -> None:
        """`waiting` sequences wait now; at `most`, more are refused."""
        if not self.raised and waiting > threshold:
            self.raised = True
            log.warning(
                "%s: %d sequences wait, more than the alert threshold of %d; from %d on they are refused",
                self._model, waiting, threshold, most,
            )  # fmt: skip
        elif self.raised and waiting <= threshold // 2:
            self.raised = False
            log.warning("%s: the queue is down to %d sequences, the alert is over", self._model, waiting)


def _waited_for(sequences: Iterable[Sequence]) -> list[Sequence]:
    """Return those of the sequences that somebody waits for."""
    return [sequence for sequence in sequences if not sequence.precedence.is_idle_work]


def tables_of(pool: BlockPool) -> type[BlockTables]:
    """Return the kind of block tables for sequences of a pool."""
    if pool.windows is None:
        return BlockTables
    # Most models have no layers with a window.
    from inference_core.engine.windowed_tables import WindowedTables

    return WindowedTables


def model_stats(model: ServedModel, knobs: LiveKnobs, prefixes: list[PrefixStats]) -> ModelStats:
    """`knobs` of the core; `prefixes` pinned for the model."""
    scheduler, runner, meter, statistics = model.scheduler, model.runner, model.meter, model.statistics
    pool, totals, adapters = scheduler.pool, scheduler.totals, scheduler.adapters
    running, waiting = len(_waited_for(scheduler.running.values())), len(_waited_for(scheduler.waiting.values()))
    # What idle work alone holds is free as soon as somebody asks.
    idle_kv = (s.kv for s in scheduler.running.values() if s.precedence.is_idle_work)
    idle = (block for kv in idle_kv for block in scheduler.tables.blocks_of(kv))
    return ModelStats(
        name=model.name,
        running=running,
        waiting=waiting,
        idle_work=len(scheduler.running) + len(scheduler.waiting) - running - waiting,
        blocks_in_use=pool.num_referenced - pool.num_held_by(idle),
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
        kv_dtype=runner.layout.dtype,
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
