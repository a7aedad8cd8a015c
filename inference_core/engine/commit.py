"""Commits the results of steps: sampled tokens, accepted drafts, prompt scores, and the blocks that became full; with a
scheduler's totals since start."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from inference_core.engine.block_tables import BlockTables
from inference_core.engine.queues import Deadlines, RunningSet
from inference_core.engine.sequence import Join, Sequence, Status
from inference_core.protocol import FinishReason, JoinStats, SequenceOutput
from inference_core.step_plan import SampledToken, StepPlan, StepResult


@dataclass(slots=True)
class SchedulerTotals:
    """Counts since start.

    Prompts count once per request, prefix look-ups once per choice, generated tokens as drawn, stop tokens too.
    """

    prompt_tokens: int = 0
    generated_tokens: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    preemptions: int = 0
    deadline_refusals: int = 0
    repetitions_ended: int = 0

    def count_prompt(self, sequence: Sequence, *, prefix_caching: bool) -> None:
        """Count the prompt of a sequence that is admitted for the first time."""
        if prefix_caching:
            self.prefix_query_tokens += sequence.num_prompt_tokens
            self.prefix_hit_tokens += sequence.cached_tokens
        if sequence.leader is None:
            self.prompt_tokens += sequence.num_prompt_tokens


@dataclass(slots=True)
class _Joins:
    count: int = 0
    seconds: float = 0.0
    tokens: int = 0


class JoinStatistics:
    """First-token latency since start, by powers of two of the sequences that decoded when one joined (SPEC BS-12)."""

    def __init__(self) -> None:
        self._by_occupancy: dict[int, _Joins] = {}

    def record(self, join: Join, now: float) -> None:
        """Record the first token of a sequence that was never preempted."""
        joins = self._by_occupancy.setdefault(join.decoding.bit_length(), _Joins())
        joins.count += 1
        joins.seconds += now - join.at
        joins.tokens += join.tokens

    def rows(self) -> list[JoinStats]:
        """Return the statistics, fewest decoding sequences first."""
        return [
            JoinStats(1 << level >> 1, joins.count, joins.seconds / joins.count, joins.seconds / joins.tokens)
            for level, joins in sorted(self._by_occupancy.items())
        ]


class ScheduledEntry(msgspec.Struct, gc=False):
    """The state in which a step will leave a sequence.

    One is made per sequence and step, so it is no NamedTuple, which costs 0.4 us more; it is in no reference cycle.
    """

    sequence: Sequence
    num_computed: int
    """Its computed tokens, drafts excepted."""
    draws: bool
    """Whether the step draws a token."""
    admissions: int
    """How often the sequence had been admitted; after another admission its blocks are not those that the step wrote.
    """


def entries_of(plan: StepPlan, running: Mapping[str, Sequence]) -> list[ScheduledEntry]:
    """Return the entries of a plan that has not been executed yet, in its order."""
    return [
        ScheduledEntry(
            sequence,
            share.start + len(share.token_ids) - share.num_drafts,
            share.sample is not None,
            sequence.admissions,
        )
        for share in plan.sequences
        for sequence in (running[share.sequence_id],)
    ]


class ExecutedPart(NamedTuple):
    """A part of a step that the runner computed."""

    entries: list[ScheduledEntry]
    result: StepResult
    ended: float
    """When it ended, by the clock."""


@dataclass(slots=True)
class ExecutedStep:
    """What an executor made of `plan`: the parts that were computed, in order (one unless the step failed)."""

    plan: StepPlan
    parts: list[ExecutedPart] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """Why some sequences cannot continue, by id."""
    offloads_lost: bool = False
    """An attempt failed before the copies to host memory were known to be complete."""

    @property
    def decode_steps(self) -> int:
        """How many of the plan's decode steps were taken."""
        if self.plan.decode_steps == 1:
            return 1
        return max((len(drawn) for part in self.parts for drawn in part.result.sampled), default=1)

    def without_sent(self, outputs: list[SequenceOutput]) -> list[SequenceOutput]:
        """Return the step's outputs without the tokens that left before its end."""
        sent = {
            (entry.sequence.request.request_id, entry.sequence.index): count
            for part in self.parts
            for entry, count in zip(part.entries, part.result.sent, strict=False)
            if count
        }
        if not sent:
            return outputs
        for output in outputs:
            output.drop_first(sent.get((output.request_id, output.index), 0))
        return [output for output in outputs if output.token_ids or output.finish_reason is not None]

    @property
    def swap_seconds(self) -> float:
        """Seconds of copies from and to host memory."""
        return sum(part.result.swapped.seconds for part in self.parts if part.result.swapped is not None)


class StepCommit:
    """Applies the results of a model's steps to its sequences. `remove` drops a sequence that has ended."""

    def __init__(
        self,
        tables: BlockTables,
        running_set: RunningSet,
        totals: SchedulerTotals,
        joins: JoinStatistics,
        deadlines: Deadlines,
        remove: Callable[[Sequence, float], None],
    ) -> None:
        self._tables = tables
        self._running_set = running_set
        self._totals = totals
        self._joins = joins
        self._deadlines = deadlines
        self._remove = remove

    def advance(self, entries: list[ScheduledEntry], now: float) -> None:
        """Treat a launched step as done, with the tokens that it draws still pending."""
        for entry in entries:
            sequence = entry.sequence
            sequence.kv.num_computed_tokens = entry.num_computed
            if sequence.precedence.waiting_since is not None and entry.draws:
                self._start_decoding(sequence, now)
        self._running_set.append_pending([entry.sequence for entry in entries if entry.draws])

    def commit_step(self, executed: ExecutedStep, *, prefix_caching: bool) -> list[SequenceOutput]:
        """Advance and commit the parts of a step that was executed without overlap."""
        if executed.offloads_lost:
            self._tables.pool.host.lose_offloads()
        self._tables.end_copies(executed.plan, copied=bool(executed.parts))
        outputs: list[SequenceOutput] = []
        for part in executed.parts:
            self.advance(part.entries, part.ended)
            outputs += self.commit(part, prefix_caching=prefix_caching)
        if executed.plan.decode_steps > 1:
            for sequence in self._running_set.running.values():
                self._tables.take_back(sequence.kv)
        return outputs

    def commit(self, part: ExecutedPart, *, prefix_caching: bool) -> list[SequenceOutput]:
        """Commit the result of an advanced step, in the order of steps; skip sequences that ended since.

        A finished sequence frees its blocks here, in its last step (SPEC KV-01).
        """
        entries, result, now = part
        if result.swapped is not None:
            self._tables.pool.host.measure(result.swapped)
            for entry in entries:
                if not entry.sequence.has_drawn:
                    entry.sequence.times.charge_copies(result.swapped.seconds)
        silent = self._commit_scores(entries, result) if result.scored else []
        if result.states:
            silent += self._commit_states(entries, result, now)
        outputs = []
        size = self._tables.pool.block_size
        running, finished = Status.RUNNING, Status.FINISHED
        for entry, drawn in zip(entries, result.sampled, strict=True):
            sequence, computed = entry.sequence, entry.num_computed
            status = sequence.status
            if status is finished:
                continue
            if status is running and sequence.admissions == entry.admissions:
                kv = sequence.kv
                if prefix_caching and computed // size > kv.num_registered_blocks and sequence.caches_blocks:
                    self._tables.register_full(kv, computed // size)
                if not sequence.prompt_computed:
                    sequence.prompt_computed = sequence.prompt_is_shareable(computed, size)
                if sequence.request.prefill and computed == len(sequence.token_ids):
                    self._remove(sequence, now)
                    silent.append(sequence.output([], finish_reason="stop"))
            if not entry.draws:
                continue
            if sequence.share.num_drafts or len(drawn) > 1:
                outputs.append(self._commit_several(sequence, drawn, now, prefix_caching))
                continue
            token = drawn[0]
            reason = sequence.receive(token.token_id)
            if reason is not None:
                outputs.append(self._finish(sequence, token, reason, now))
                continue
            outputs.append(
                SequenceOutput(
                    request_id=sequence.request.request_id,
                    index=sequence.index,
                    token_ids=[token.token_id],
                    logprobs=None if token.logprob is None else [token.logprob],
                    cached_tokens=sequence.cached_tokens,
                )
            )
            times = sequence.times
            if times.so_far is not times.reported:
                times.report(outputs[-1])
            if sequence.readings is not None:
                outputs[-1].evidence = sequence.readings.evidence_of(drawn)
        self._totals.generated_tokens += len(outputs)
        return silent + outputs if silent else outputs

    def _commit_several(
        self, sequence: Sequence, drawn: list[SampledToken], now: float, prefix_caching: bool
    ) -> SequenceOutput:
        """Commit the accepted drafts and the token after them, or the tokens of several decode steps; a stop among them
        ends the sequence (SPEC SD-09)."""
        kept: list[SampledToken] = []
        reason: FinishReason | None = None
        for token in drawn:
            if kept:
                # The previous token is computed already.
                sequence.kv.num_computed_tokens += 1
                self._running_set.append_pending((sequence,))
            reason = sequence.receive(token.token_id)
            if reason != "stop":
                kept.append(token)
            if reason is not None:
                break
        sequence.num_accepted = len(drawn) - 1
        self._totals.generated_tokens += len(kept) - 1 + (reason == "stop")
        kv, times = sequence.kv, sequence.times
        self._tables.take_back(kv)
        full = kv.num_computed_tokens // self._tables.pool.block_size
        if prefix_caching and full > kv.num_registered_blocks:
            self._tables.register_full(kv, full)
        if reason is not None:
            self._remove(sequence, now)
        logprobs = [token.logprob for token in kept if token.logprob is not None]
        stop = token.token_id if reason == "stop" else None
        output = sequence.output([t.token_id for t in kept], logprobs or None, reason, stop)
        if times.so_far is not times.reported:
            times.report(output)
        return _with_evidence(sequence, output, kept)

    def _commit_scores(self, entries: list[ScheduledEntry], result: StepResult) -> list[SequenceOutput]:
        """Return outputs with the log-probabilities of prompts that are to be scored."""
        outputs = []
        for entry, scored in zip(entries, result.scored, strict=True):
            sequence = entry.sequence
            scores = None if sequence.readings is None else sequence.readings.scores
            if not scored or scores is None or sequence.status is Status.FINISHED:
                continue
            fresh = scores.receive(scored, entry.num_computed)
            if fresh:
                outputs.append(sequence.output([]))
                outputs[-1].prompt_logprobs = fresh
                sequence.times.report(outputs[-1])
        return outputs

    def _commit_states(self, entries: list[ScheduledEntry], result: StepResult, now: float) -> list[SequenceOutput]:
        """Collect hidden states; a sequence that exists for its state alone finishes with the last of them."""
        outputs = []
        for entry, states in zip(entries, result.states, strict=True):
            sequence = entry.sequence
            pool = None if sequence.readings is None else sequence.readings.states
            if pool is None or sequence.status is Status.FINISHED:
                continue
            pool.take(states)
            if pool.exits and entry.num_computed == len(sequence.token_ids):
                self._remove(sequence, now)
                outputs.append(_with_evidence(sequence, sequence.output([], finish_reason="stop"), []))
        return outputs

    def _start_decoding(self, sequence: Sequence, now: float) -> None:
        """The prefill of `sequence` ends with this step: its next token is in flight."""
        sequence.precedence.start_decoding(now)
        sequence.share.score = sequence.share.state = None
        self._running_set.start_decoding(sequence)
        if not sequence.output_token_ids:
            self._deadlines.remove(sequence)
            if sequence.admissions == 1 and sequence.join is not None:
                self._joins.record(sequence.join, now)

    def _finish(self, sequence: Sequence, token: SampledToken, reason: FinishReason, now: float) -> SequenceOutput:
        self._remove(sequence, now)
        if reason == "stop":
            return _with_evidence(sequence, sequence.output([], finish_reason=reason, stop_token_id=token.token_id), [])
        output = sequence.output([token.token_id], None if token.logprob is None else [token.logprob], reason)
        return _with_evidence(sequence, output, [token])


def _with_evidence(sequence: Sequence, output: SequenceOutput, drawn: list[SampledToken]) -> SequenceOutput:
    """Add the requested evidence of these tokens to `output`."""
    if sequence.readings is not None:
        output.evidence = sequence.readings.evidence_of(drawn)
    return output
