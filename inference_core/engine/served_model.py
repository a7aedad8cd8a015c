"""One model of a core: its runner, what plans and drafts its steps, and what they are measured by."""

import logging

from inference_core.engine.auto_tuner import AutoTuner
from inference_core.engine.kv_transfer import KVTransfer
from inference_core.engine.step_statistics import StepMeasurement, StepStatistics
from inference_core.errors import QueueFullError
from inference_core.execution.runner import ModelRunner
from inference_core.protocol import AddRequest, Knobs, SequenceOutput
from inference_core.scheduling.scheduler import Scheduler
from inference_core.scheduling.sequence import Sequence
from inference_core.scheduling.wait_estimate import StepMeter
from inference_core.speculation.speculator import Speculator

log = logging.getLogger(__name__)


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

    @property
    def computes_prompts_fast(self) -> bool:
        """Whether new requests' prompts are computed in prompt arithmetic; a request keeps what it began with."""
        return self.runner.has_prompt_arithmetic and self.scheduler.knobs.prefill_arithmetic == "fast"

    def set_knobs(self, knobs: Knobs) -> None:
        """Apply `knobs` from the next step on."""
        self.scheduler.knobs = self.tuner.set_limits(knobs)

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
            if not choice.is_idle_work:
                self.tuner.after_answer(choice.waited_seconds, computed, output.completion_tokens)

    def record_step(self, step: StepMeasurement, num_outputs: int, now: float) -> None:
        """Account for a committed step with so many outputs, and tune the limits of the next one."""
        scheduler, tuner, seconds = self.scheduler, self.tuner, step.seconds
        self.meter.record_step(seconds)
        self.statistics.record(step.sequences, seconds)
        scheduler.knobs = tuner.after_step(
            step.sequences,
            step.tokens,
            num_outputs,
            seconds - step.swap_seconds,
            now,
            backlog=scheduler.prefilling_tokens,
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
