"""The requests that a core has queued and not yet ended, and what ends them before their answers are complete."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from inference_core.errors import IntegrityError
from inference_core.protocol import FinishReason, SequenceOutput
from inference_core.protocol.error_outputs import blame
from inference_core.sampling.repetition import LOOK_EVERY, is_looping
from inference_core.scheduling.scheduler import Scheduler
from inference_core.scheduling.sequence import Sequence, Status


@dataclass(slots=True)
class LiveRequest:
    """A live request; `live` of its choices are unfinished."""

    scheduler: Scheduler
    choices: list[Sequence]
    live: int


class LiveRequests:
    """The live requests of all models of a core, in `by_id`. Steps complete answers and call `forget_choice`; each of
    the other methods ends choices early and returns their last outputs. `clock`: seconds, as of the core."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.by_id: dict[str, LiveRequest] = {}
        self._clock = clock

    def add(self, scheduler: Scheduler, choices: list[Sequence], now: float) -> None:
        """Queue the choices of a request. Raises `QueueFullError`."""
        scheduler.add(choices, now)
        self.by_id[choices[0].request_id] = LiveRequest(scheduler, choices, len(choices))

    def abort(self, request_id: str, index: int | None) -> list[SequenceOutput]:
        """End a request, or its choice `index` alone; [] if it is not live."""
        request = self.by_id.get(request_id)
        if request is None:
            return []
        chosen = [s for s in request.choices if index is None or s.index == index]
        return [self._end(request, s, "abort") for s in chosen if s.status is not Status.FINISHED]

    def end_late(self, schedulers: Iterable[Scheduler], now: float) -> list[SequenceOutput]:
        """End the sequences whose strict deadline has passed before their first token (SPEC BS-04)."""
        outputs = []
        for scheduler in schedulers:
            for sequence in scheduler.deadlines.too_late(now):
                scheduler.totals.deadline_refusals += 1
                late = f"{scheduler.name}: the first token was due {(now - sequence.deadline) * 1e3:.0f} ms ago"
                output = self._end(self.by_id[sequence.request_id], sequence, "error", late)
                output.error_kind = "overloaded"
                outputs.append(output)
        return outputs

    def end_failed(self, scheduler: Scheduler, failed: Mapping[str, str]) -> list[SequenceOutput]:
        """End running sequences that a step failed for: errors by the sequences' ids."""
        outputs = []
        for sequence_id, error in failed.items():
            sequence = scheduler.running[sequence_id]
            matcher = sequence.sample_spec.matcher
            output = self._end(self.by_id[sequence.request_id], sequence, "error", error)
            if matcher is not None and matcher.failure is not None:
                blame(output, matcher.failure)
            outputs.append(output)
        return outputs

    def end_repetitive(self, scheduler: Scheduler, outputs: list[SequenceOutput]) -> list[SequenceOutput]:
        """Of the answers that `outputs` continue, end those that loop with reason "length", but for `ignore_eos`."""
        span = scheduler.knobs.repetition_guard
        ended = []
        for output in outputs:
            if output.finish_reason is not None or not output.token_ids:
                continue
            request = self.by_id[output.request_id]
            sequence = request.choices[output.index]
            known = len(sequence.output_token_ids) - sequence.num_pending
            looked = known - len(output.token_ids)
            if known // LOOK_EVERY == looked // LOOK_EVERY or known < max(span, sequence.sampling.min_tokens):
                continue
            if not sequence.sampling.ignore_eos and is_looping(sequence.output_token_ids[known - span : known], span):
                scheduler.totals.repetitions_ended += 1
                ended.append(self._end(request, sequence, "length"))
        return ended

    def _end(
        self, request: LiveRequest, sequence: Sequence, reason: FinishReason, error: str | None = None
    ) -> SequenceOutput:
        request.scheduler.remove(sequence, self._clock())
        self.forget_choice(request, sequence.request_id)
        return sequence.output([], finish_reason=reason, error=error)

    def forget_choice(self, request: LiveRequest, request_id: str) -> None:
        """Note that a choice has ended; with the last one its request goes."""
        request.live -= 1
        if not request.live:
            del self.by_id[request_id]
        if request.scheduler.adapters.has_leaving:
            request.scheduler.forget_adapters()

    def check_integrity(self, schedulers: Iterable[Scheduler]) -> None:
        """Check that the live choices are those that wait or run. Raises `IntegrityError`."""
        live = {
            sequence.id: sequence.status
            for request in self.by_id.values()
            for sequence in request.choices
            if sequence.status is not Status.FINISHED
        }
        queued: dict[str, Status] = {}
        for scheduler in schedulers:
            queued |= dict.fromkeys(scheduler.running, Status.RUNNING)
            queued |= dict.fromkeys(scheduler.waiting, Status.WAITING)
        if live != queued:
            raise IntegrityError(f"live choices {live} are not those that wait or run: {queued}")
