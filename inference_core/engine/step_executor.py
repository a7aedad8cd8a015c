"""Carries out plans: at once, or each launched before the one before it is waited for; and whom a fault concerns."""

import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from inference_core.engine.fault_isolation import bisect_failure
from inference_core.errors import RankLostError
from inference_core.execution.runner import ModelRunner, OverlappingRunner
from inference_core.protocol import SequenceOutput
from inference_core.scheduling.in_flight import ScheduledEntry, entries_of
from inference_core.scheduling.scheduler import Scheduler
from inference_core.scheduling.sequence import Sequence, Status
from inference_core.step_plan import ScheduledSequence, StepPlan, StepResult

logger = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True)
class Outcome:
    """What came of a step of `tokens` in `sequences`: outputs, and why some of its sequences cannot go on, by id.

    `tokens` without drafts, whose price is the decodes'. `depth`: see `StepPlan.prompt_depth`. `seconds`: how long the
    device, or whoever computes, was busy with it. `swap_seconds`: how much of that was copying from and to host memory.
    """

    model: str
    sequences: int
    tokens: int
    depth: float
    seconds: float
    outputs: list[SequenceOutput]
    failed: dict[str, str] = field(default_factory=dict)
    swap_seconds: float = 0.0


@dataclass(slots=True, frozen=True)
class _InFlightStep:
    """A launched step; `tokens` and `depth` as of its plan, whose objects are another step's by now."""

    model: str
    entries: list[ScheduledEntry]
    land: Callable[[], StepResult]
    launched: float
    tokens: int
    depth: float
    moved_blocks: bool


class StepExecutor:
    """Of the models of a core. A fault in a step that was executed alone ends those who cause it; one in steps that
    overlapped sends all who were under way back to the queue, and until each of them has had a token again, steps are
    executed alone."""

    def __init__(
        self, runners: Mapping[str, ModelRunner], schedulers: Mapping[str, Scheduler], clock: Callable[[], float]
    ) -> None:
        self._runners = runners
        self._schedulers = schedulers
        self._clock = clock
        self._in_flight: _InFlightStep | None = None
        self._landed = 0.0
        # Who was under way when a step failed, and how many tokens each had.
        self._suspects: dict[Sequence, int] = {}

    @property
    def has_in_flight_step(self) -> bool:
        """Whether a launched step is to be landed."""
        return self._in_flight is not None

    def may_overlap(self, model: str) -> bool:
        """Whether the model's next step may be planned before the last one's tokens are known."""
        runner = self._runners[model]
        if not isinstance(runner, OverlappingRunner):
            return False
        if not all(runner.draws_ahead(s.sample_spec) for s in self._schedulers[model].running.values()):
            return False
        if self._suspects:
            self._suspects = {
                sequence: known
                for sequence, known in self._suspects.items()
                if sequence.status is not Status.FINISHED and len(sequence.output_token_ids) <= known
            }
        return not self._suspects

    def execute(self, plan: StepPlan, began: float) -> Outcome:
        """Run `plan`, in parts if it fails: who fails alone is to be ended, and the rest loses nothing."""
        runner, scheduler = self._runners[plan.model], self._schedulers[plan.model]
        outputs: list[SequenceOutput] = []
        failed: dict[str, str] = {}
        copies, offloads, restores, parts = plan.copies, plan.offloads, plan.restores, [plan.sequences]
        swap_seconds = 0.0
        while parts:
            part = [share for share in parts.pop() if share.sequence_id not in failed]
            if not part:
                continue
            attempt = StepPlan(plan.step, plan.model, part, copies, offloads, restores)
            entries = entries_of(attempt, scheduler.running)
            try:
                result = runner.run(attempt)
                _check_result(entries, result, runner.info.vocab_size, attempt)
            except RankLostError:
                raise  # no part of the step can run any more, nor any later step
            except Exception as error:
                # What was to be offloaded may have been overwritten by now.
                scheduler.pool.host.lose_offloads()
                offloads = []
                cut_off = _grammar_failures(part)
                if cut_off:
                    count, step = len(cut_off), plan.step
                    logger.info("step %d of %s: %d grammars cannot be followed any further", step, plan.model, count)
                    failed |= cut_off
                    parts.append(part)
                    continue
                if attempt.num_drafts:
                    # Whatever is wrong may come of a guess, which nobody is guilty of.
                    logger.warning("step %d of %s failed: %r; repeated without drafts", plan.step, plan.model, error)
                    parts.append([share.without_drafts() for share in part])
                    continue
                split = bisect_failure(part, error)
                if len(part) == len(plan.sequences) or split.failed:
                    logger.exception("step %d of %s failed with %d sequences", plan.step, plan.model, len(part))
                failed |= {share.sequence_id: str(error) or repr(error) for share in split.failed}
                parts += reversed(split.retries)
            else:
                scheduler.end_moves(copies, copied=True)
                scheduler.pool.host.end(copied=True)
                swap_seconds += _note_swaps(scheduler, result)
                copies, offloads, restores = [], [], []
                now = self._clock()
                scheduler.advance(entries, now)
                outputs += scheduler.commit(entries, result, now)
        scheduler.end_moves(copies, copied=False)
        scheduler.pool.host.end(copied=False)
        seconds, tokens = self._clock() - began, plan.num_tokens - plan.num_drafts
        depth = plan.prompt_depth()
        return Outcome(plan.model, len(plan.sequences), tokens, depth, seconds, outputs, failed, swap_seconds)

    def launch(self, plan: StepPlan) -> Outcome | None:
        """Launch `plan`, then land the step before it and return what came of that."""
        scheduler, runner, before = self._schedulers[plan.model], self._runners[plan.model], self._in_flight
        assert isinstance(runner, OverlappingRunner)
        entries = entries_of(plan, scheduler.running)
        tokens, depth, began = plan.num_tokens, plan.prompt_depth(), self._clock()
        try:
            landing = runner.launch(plan)
        except Exception:
            logger.exception("step %d of %s could not be launched", plan.step, plan.model)
            scheduler.end_moves(plan.copies, copied=False)
            scheduler.pool.host.end(copied=False)
            outcome = self.collect()
            self._requeue(scheduler, entries, moved_blocks=False)
            return outcome
        scheduler.end_moves(plan.copies, copied=True)
        scheduler.pool.host.end(copied=True)
        scheduler.advance(entries, began)
        self._in_flight = _InFlightStep(plan.model, entries, landing, began, tokens, depth, bool(plan.copies))
        return None if before is None else self._collect(before)

    def collect(self) -> Outcome | None:
        """Wait for the step under way, if there is one, and take in what it computed."""
        step, self._in_flight = self._in_flight, None
        return None if step is None else self._collect(step)

    def _collect(self, step: _InFlightStep) -> Outcome | None:
        scheduler = self._schedulers[step.model]
        try:
            result = step.land()
            _check_result(step.entries, result, self._runners[step.model].info.vocab_size)
        except Exception:
            logger.exception("a step of %s failed with %d sequences", step.model, len(step.entries))
            self._requeue(scheduler, step.entries, step.moved_blocks)
            self._cancel()
            return None
        now = self._clock()
        outputs = scheduler.commit(step.entries, result, now)
        seconds = now - max(step.launched, self._landed)
        self._landed = now
        return Outcome(
            step.model,
            len(step.entries),
            step.tokens,
            step.depth,
            seconds,
            outputs,
            swap_seconds=_note_swaps(scheduler, result),
        )

    def _cancel(self) -> None:
        """What was launched after a step that failed is of no use; wait until the device has done with it."""
        step, self._in_flight = self._in_flight, None
        if step is not None:
            with contextlib.suppress(Exception):
                step.land()
            self._requeue(self._schedulers[step.model], step.entries, step.moved_blocks)

    def _requeue(self, scheduler: Scheduler, entries: list[ScheduledEntry], moved_blocks: bool) -> None:
        for sequence in scheduler.requeue(entries, self._clock(), moved_blocks=moved_blocks):
            self._suspects[sequence] = len(sequence.output_token_ids)


def _note_swaps(scheduler: Scheduler, result: StepResult) -> float:
    """Seconds that the step's copies from and to host memory took, which the next decisions rest on."""
    if result.swapped is None:
        return 0.0
    scheduler.pool.host.measure(result.swapped)
    return result.swapped.seconds


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
    none but accepted drafts of `plan`."""
    if len(result.sampled) != len(entries):
        raise ValueError(f"the runner returned {len(result.sampled)} results for {len(entries)} sequences")
    for index, ((sequence, _, expected, _), drawn) in enumerate(zip(entries, result.sampled, strict=True)):
        if bool(drawn) != expected or (drawn and not 0 <= drawn[-1].token_id < vocab_size):
            raise ValueError(f"the runner drew {drawn} for {sequence.id}; {int(expected)} tokens were asked for")
        if len(drawn) > 1:
            drafts = [] if plan is None else plan.sequences[index].drafts
            if [token.token_id for token in drawn[:-1]] != drafts[: len(drawn) - 1] or len(drawn) > len(drafts) + 1:
                raise ValueError(f"the runner drew {drawn} for {sequence.id}, which {drafts} were drafted for")
