"""Executes plans, at once, with faults isolated, or launched before the step in flight is collected; commits them; and
says whose model is next: deficit round robin on measured step time, deadlines first.

A failed step is split: into the sequences that fail, and parts in which the rest is retried.
"""

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from inference_core.engine.commit import ExecutedPart, ExecutedStep, ScheduledEntry, entries_of
from inference_core.engine.requests import LiveRequests
from inference_core.engine.scheduler import Scheduler
from inference_core.engine.sequence import Sequence, Status
from inference_core.engine.served_model import ServedModel, StepMeasurement
from inference_core.errors import BadLogitsError, RankLostError
from inference_core.execution.runner import ModelRunner, OverlappingRunner
from inference_core.protocol import SequenceOutput
from inference_core.step_plan import ScheduledSequence, ScoreSpec, StepPlan, StepResult

Part = list[ScheduledSequence]


class ModelRoundRobin:
    """Shares a core's time between models with work (Shreedhar and Varghese, "Efficient fair queueing using deficit
    round robin", 1995, with the cost known only afterwards).

    Every model has a credit in seconds. A step is charged to its model; when no model with work is in credit,
    each gets the same number of quanta. So over any period in which two models both have work, their times
    differ by at most a quantum and their longest steps. Among models in credit the earliest deadline
    of a first token goes first, then the one served longest ago: deadlines decide when, never how much.
    """

    # A minimum, so that steps of no measurable cost take turns as well.
    MIN_CHARGE_SECONDS = 1e-4

    def __init__(self, models: list[str], quantum_seconds: float = 0.02) -> None:
        self._quantum = quantum_seconds
        self._credit = dict.fromkeys(models, 0.0)
        self._last_turn = {model: i - len(models) for i, model in enumerate(models)}
        self._turns = 0

    def order(self, deadlines: Mapping[str, float]) -> list[str]:
        """The models to try, best first. `deadlines`: for each model with work, when a first token is due (or inf)."""
        for model in self._credit.keys() - deadlines.keys():
            # An idle model saves nothing up, but still owes what it overdrew.
            self._credit[model] = min(self._credit[model], 0.0)
        if not deadlines:
            return []
        best = max(self._credit[model] for model in deadlines)
        if best <= 0:
            quanta = int(-best / self._quantum) + 1
            for model in deadlines:
                self._credit[model] += quanta * self._quantum
        return sorted(deadlines, key=lambda m: (self._credit[m] <= 0, deadlines[m], self._last_turn[m]))

    def charge(self, model: str, seconds: float) -> None:
        self._credit[model] -= max(seconds, self.MIN_CHARGE_SECONDS)
        self._turns += 1
        self._last_turn[model] = self._turns


def prompt_depth(plan: StepPlan) -> float:
    """Return how many tokens, itself included, a prompt chunk's token attends to on average; 0 without chunks."""
    chunks = [(len(s.token_ids), s.start) for s in plan.sequences if len(s.token_ids) - s.num_drafts > 1]
    tokens = sum(count for count, _ in chunks)
    return sum(count * (start + (count + 1) / 2) for count, start in chunks) / tokens if tokens else 0.0


@dataclass(slots=True, frozen=True)
class FailureSplit:
    """A failed part of a step: the sequences that fail, and the parts to run in its place."""

    failed: Part
    retries: list[Part]


def bisect_failure(part: Part, error: Exception) -> FailureSplit:
    """Halve a failed part; rows of bad logits fail at once, and a single prompt chunk is halved on `MemoryError`."""
    if isinstance(error, BadLogitsError) and error.rows:
        sampled = [share for share in part if share.sample is not None]
        failed = [sampled[row] for row in error.rows]
        rest = [share for share in part if not any(share is g for g in failed)]
        return FailureSplit(failed, [rest] if rest else [])
    if len(part) > 1:
        middle = len(part) // 2
        return FailureSplit([], [part[:middle], part[middle:]])
    if isinstance(error, MemoryError) and len(part[0].token_ids) > 1:
        return FailureSplit([], [[half] for half in _halves(part[0])])
    return FailureSplit(part, [])


def _halves(share: ScheduledSequence) -> tuple[ScheduledSequence, ScheduledSequence]:
    """Split a prompt chunk in two, to be run one after the other."""
    middle = len(share.token_ids) // 2
    first = replace(share, token_ids=share.token_ids[:middle], sample=None)
    second = replace(share, token_ids=share.token_ids[middle:], start=share.start + middle)
    if share.score is not None:
        targets, top = share.score.token_ids, share.score.top
        first.score = ScoreSpec(targets[:middle], top)
        second.score = ScoreSpec(targets[middle:], top) if len(targets) > middle else None
    if share.state is not None:
        first.state = replace(share.state, first=min(share.state.first, middle))
        second.state = replace(share.state, first=max(share.state.first - middle, 0))
    return first, second


logger = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True)
class InFlightStep:
    """A launched step. It keeps its own counts, because the next step reuses the plan's objects."""

    model: str
    entries: list[ScheduledEntry]
    result: Callable[[], StepResult]
    launched: float
    tokens: int
    """Tokens of the plan."""
    depth: float
    """Depth of the plan."""
    moved_blocks: bool


@dataclass(slots=True, frozen=True)
class CollectedStep:
    """An in-flight step that ended: what it computed, or None if it failed."""

    step: InFlightStep
    computed: ExecutedPart | None = None
    seconds: float = 0.0
    """How long the step kept the device."""


class StepExecutor:
    """Runs the steps of a core's models and returns what they computed; the caller commits it.

    A fault in a step executed alone fails the sequences that cause it. A fault in overlapping steps fails them all: the
    caller requeues their sequences, and until each of these `suspects` has a token again, steps are executed alone.
    """

    def __init__(self, runners: Mapping[str, ModelRunner], clock: Callable[[], float]) -> None:
        self._runners = runners
        self._clock = clock
        self._in_flight: deque[InFlightStep] = deque()
        self._last_end = 0.0
        # How many tokens each suspect had when its step failed.
        self._suspects: dict[Sequence, int] = {}

    @property
    def num_in_flight(self) -> int:
        """Steps that were launched and not collected yet."""
        return len(self._in_flight)

    def may_overlap(self, model: str, running: Iterable[Sequence]) -> bool:
        """Whether the model's next step may be planned before the tokens of the step in flight are known."""
        runner = self._runners[model]
        if not isinstance(runner, OverlappingRunner):
            return False
        if not all(runner.draws_ahead(s.sample_spec) for s in running):
            return False
        if self._suspects:
            self._suspects = {
                sequence: length
                for sequence, length in self._suspects.items()
                if sequence.status is not Status.FINISHED and len(sequence.output_token_ids) <= length
            }
        return not self._suspects

    def suspect(self, sequences: Iterable[Sequence]) -> None:
        """Note the sequences of an overlapping step that failed."""
        for sequence in sequences:
            self._suspects[sequence] = len(sequence.output_token_ids)

    def execute(self, plan: StepPlan, running: Mapping[str, Sequence]) -> ExecutedStep:
        """Run `plan`, in parts if it fails, so that only the sequences that fail alone fail.

        Raises `RankLostError`: no part of the step, nor any later step, can run.
        """
        runner, step = self._runners[plan.model], ExecutedStep(plan)
        copies, offloads, restores, parts = plan.copies, plan.offloads, plan.restores, [plan.sequences]
        decode_steps = plan.decode_steps
        while parts:
            part = parts.pop()
            if step.failed:
                part = [share for share in part if share.sequence_id not in step.failed]
            if not part:
                continue
            attempt = StepPlan(plan.step, plan.model, part, copies, offloads, restores, decode_steps, plan.channels)
            entries = entries_of(attempt, running)
            try:
                result = runner.run(attempt)
                _check_result(entries, result, runner.info.vocab_size, attempt)
            except RankLostError:
                raise
            except Exception as error:
                # The blocks to offload may have been overwritten, so a retry must not copy them.
                step.offloads_lost = step.offloads_lost or not step.parts
                offloads, decode_steps = [], 1
                parts += self._retries(plan, attempt, error, step.failed)
            else:
                step.parts.append(ExecutedPart(entries, result, self._clock()))
                copies, offloads, restores = [], [], []
        return step

    def _retries(
        self, plan: StepPlan, attempt: StepPlan, error: Exception, failed: dict[str, str]
    ) -> list[list[ScheduledSequence]]:
        """The parts to run in place of `attempt`, the first one last; adds to `failed`."""
        part = attempt.sequences
        cut_off = _grammar_failures(part)
        if cut_off:
            logger.info("step %d of %s: the grammars of %d sequences failed", plan.step, plan.model, len(cut_off))
            failed |= cut_off
            return [part]
        if attempt.decode_steps > 1:
            logger.warning("step %d of %s failed: %r; repeated without those after it", plan.step, plan.model, error)
            return [part]
        if attempt.num_drafts:
            # A draft may be the cause, and then no sequence is.
            logger.warning("step %d of %s failed: %r; repeated without drafts", plan.step, plan.model, error)
            return [[share.without_drafts() for share in part]]
        split = bisect_failure(part, error)
        if len(part) == len(plan.sequences) or split.failed:
            logger.exception("step %d of %s failed with %d sequences", plan.step, plan.model, len(part))
        failed |= {share.sequence_id: str(error) or repr(error) for share in split.failed}
        return split.retries[::-1]

    def launch(self, plan: StepPlan, entries: list[ScheduledEntry]) -> InFlightStep | None:
        """Launch `plan` after the steps in flight; None if the runner cannot."""
        runner = self._runners[plan.model]
        assert isinstance(runner, OverlappingRunner)
        tokens, depth, began = plan.num_tokens, prompt_depth(plan), self._clock()
        try:
            result = runner.launch(plan)
        except Exception:
            logger.exception("step %d of %s could not be launched", plan.step, plan.model)
            return None
        step = InFlightStep(plan.model, entries, result, began, tokens, depth, bool(plan.copies))
        self._in_flight.append(step)
        return step

    def collect(self) -> CollectedStep | None:
        """Wait for the oldest step in flight and return it; None if there is none."""
        if not self._in_flight:
            return None
        step = self._in_flight.popleft()
        try:
            result = step.result()
            _check_result(step.entries, result, self._runners[step.model].info.vocab_size)
        except Exception:
            logger.exception("a step of %s failed with %d sequences", step.model, len(step.entries))
            return CollectedStep(step)
        ended = self._clock()
        seconds = ended - max(step.launched, self._last_end)
        self._last_end = ended
        return CollectedStep(step, ExecutedPart(step.entries, result, ended), seconds)

    def cancel(self) -> list[InFlightStep]:
        """Wait until the device has done with all steps in flight, and drop their results."""
        cancelled = list(self._in_flight)
        self._in_flight.clear()
        for step in cancelled:
            with contextlib.suppress(Exception):
                step.result()
        return cancelled


class CommittedSteps:
    """Runs the planned steps of a core's `models`, commits what they computed, and accounts for it: `turns` shares the
    time among the models, and `count` is of all steps since start."""

    def __init__(self, models: Mapping[str, ServedModel], live: LiveRequests, clock: Callable[[], float]) -> None:
        self.turns = ModelRoundRobin(list(models))
        self.count = 0
        self._models = models
        self._live = live
        self._clock = clock
        self._executor = StepExecutor({name: model.runner for name, model in models.items()}, clock)

    @property
    def num_in_flight(self) -> int:
        """Steps that were launched and not collected yet."""
        return self._executor.num_in_flight

    def may_overlap(self, model: ServedModel) -> bool:
        """Whether the next step of `model` may be planned before the tokens of the step in flight are known."""
        return self._executor.may_overlap(model.name, model.scheduler.running.values())

    def execute(self, model: ServedModel, plan: StepPlan, began: float) -> list[SequenceOutput]:
        """Run and commit a step before the next one is planned."""
        scheduler = model.scheduler
        executed = self._executor.execute(plan, scheduler.running)
        outputs = scheduler.commit_step(executed)
        seconds = self._clock() - began
        model.speculator.learn(seconds, executed.decode_steps)
        measured = StepMeasurement(
            sequences=len(plan.sequences),
            tokens=plan.num_tokens - plan.num_drafts,
            depth=prompt_depth(plan),
            seconds=seconds,
            swap_seconds=executed.swap_seconds,
            decode_steps=executed.decode_steps,
        )
        self.count += measured.decode_steps - 1
        return executed.without_sent(self._end_step(model, measured, outputs, executed.failed))

    def launch(self, scheduler: Scheduler, plan: StepPlan) -> list[SequenceOutput]:
        """Launch a step and commit the one that was in flight before."""
        entries = entries_of(plan, scheduler.running)
        step = self._executor.launch(plan, entries)
        if step is None:
            scheduler.tables.end_copies(plan, copied=False)
            outputs = self.collect()
            self._requeue(scheduler, entries, moved_blocks=False)
            return outputs
        scheduler.launched(plan, entries, step.launched)
        return self.collect() if self._executor.num_in_flight > 1 else []

    def collect(self) -> list[SequenceOutput]:
        """Wait for the oldest step in flight, if there is one, and commit it."""
        collected = self._executor.collect()
        if collected is None:
            return []
        step, computed = collected.step, collected.computed
        if computed is None:
            # Steps that were launched after one that failed computed with wrong tokens.
            for lost in (step, *self._executor.cancel()):
                self._requeue(self._models[lost.model].scheduler, lost.entries, moved_blocks=lost.moved_blocks)
            return []
        model, swapped = self._models[step.model], computed.result.swapped
        outputs = model.scheduler.commit(computed)
        measured = StepMeasurement(
            sequences=len(step.entries),
            tokens=step.tokens,
            depth=step.depth,
            seconds=collected.seconds,
            swap_seconds=0.0 if swapped is None else swapped.seconds,
        )
        return self._end_step(model, measured, outputs, {})

    def _requeue(self, scheduler: Scheduler, entries: list[ScheduledEntry], *, moved_blocks: bool) -> None:
        self._executor.suspect(scheduler.requeue(entries, self._clock(), moved_blocks=moved_blocks))

    def _end_step(
        self, model: ServedModel, step: StepMeasurement, outputs: list[SequenceOutput], failed: Mapping[str, str]
    ) -> list[SequenceOutput]:
        """Account for a committed step, end the sequences that failed, and tune the limits of the next step."""
        scheduler = model.scheduler
        self._record_ends(outputs)
        if failed:
            outputs += self._live.end_failed(scheduler, failed)
        if scheduler.knobs.repetition_guard:
            outputs += self._live.end_repetitive(scheduler, outputs)
        self.turns.charge(model.name, step.seconds)
        model.record_step(step, len(outputs), self._clock())
        return outputs

    def _record_ends(self, outputs: list[SequenceOutput]) -> None:
        """Account for the choices that these outputs end."""
        for output in outputs:
            if output.finish_reason is not None:
                request = self._live.by_id[output.request_id]
                self._models[request.scheduler.name].record_finish(request.choices[output.index], output)
                self._live.forget_choice(request, output.request_id)


def _grammar_failures(part: list[ScheduledSequence]) -> dict[str, str]:
    """Why the grammars of some sequences cannot be followed any further, by the sequences' ids."""
    return {
        share.sequence_id: str(share.sample.matcher.failure)
        for share in part
        if share.sample is not None and share.sample.matcher is not None and share.sample.matcher.failure is not None
    }


def _check_result(
    entries: list[ScheduledEntry], result: StepResult, vocab_size: int, plan: StepPlan | None = None
) -> None:
    """Raises `ValueError` unless there is one token in the vocabulary for each sequence to be sampled, and before it
    none but accepted drafts of `plan`, or those of its earlier decode steps."""
    steps = 1 if plan is None else plan.decode_steps
    if len(result.sampled) != len(entries):
        raise ValueError(f"the runner returned {len(result.sampled)} results for {len(entries)} sequences")
    for index, (entry, drawn) in enumerate(zip(entries, result.sampled, strict=True)):
        if bool(drawn) != entry.draws or (drawn and not 0 <= drawn[-1].token_id < vocab_size):
            raise ValueError(
                f"the runner drew {drawn} for {entry.sequence.id}; {int(entry.draws)} tokens were asked for"
            )
        if len(drawn) > steps:
            drafts = [] if plan is None else plan.sequences[index].drafts
            if [token.token_id for token in drawn[:-1]] != drafts[: len(drawn) - 1] or len(drawn) > len(drafts) + 1:
                raise ValueError(f"the runner drew {drawn} for {entry.sequence.id}, which {drafts} were drafted for")
