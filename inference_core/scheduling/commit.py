"""Takes in what steps computed: tokens, accepted drafts, scores of prompts, and the blocks that are full now."""

from collections.abc import Callable

from inference_core.kv_cache.block_pool import BlockPool
from inference_core.protocol import FinishReason, SequenceOutput
from inference_core.scheduling.deadlines import Deadlines
from inference_core.scheduling.in_flight import ScheduledEntry
from inference_core.scheduling.occupancy_stats import JoinStatistics
from inference_core.scheduling.running_set import RunningSet
from inference_core.scheduling.sequence import Sequence, Status
from inference_core.scheduling.step_budget import SchedulerTotals
from inference_core.step_plan import SampledToken, StepResult


class StepCommit:
    """What a scheduler does with the results of its steps. `remove` takes a sequence that has ended off its seat."""

    def __init__(
        self,
        pool: BlockPool,
        running_set: RunningSet,
        totals: SchedulerTotals,
        joins: JoinStatistics,
        deadlines: Deadlines,
        remove: Callable[[Sequence, float], None],
    ) -> None:
        self._pool = pool
        self._running_set = running_set
        self._totals = totals
        self._joins = joins
        self._deadlines = deadlines
        self._remove = remove

    def advance(self, entries: list[ScheduledEntry], now: float) -> None:
        """A step is under way: go on as if it were done, with the tokens that it draws still pending."""
        for sequence, computed, sampled, _ in entries:
            sequence.num_computed_tokens = computed
            if sampled and sequence.waiting_since is not None:
                self._start_decoding(sequence, now)
        self._running_set.append_pending(sequence for sequence, _, sampled, _ in entries if sampled)

    def commit(
        self, entries: list[ScheduledEntry], result: StepResult, now: float, *, prefix_caching: bool
    ) -> list[SequenceOutput]:
        """Take in what an assumed step computed, in the order of steps. Those who have left since are passed over.

        A finished sequence frees its blocks here, in its last step (SPEC KV-01).
        """
        silent = self._commit_scores(entries, result) if result.scored else []
        if result.states:
            silent += self._commit_states(entries, result, now)
        outputs = []
        size = self._pool.block_size
        running, finished = Status.RUNNING, Status.FINISHED
        for (sequence, computed, sampled, admissions), drawn in zip(entries, result.sampled, strict=True):
            status = sequence.status
            if status is finished:
                continue
            if status is running and sequence.admissions == admissions:
                if prefix_caching and computed // size > sequence.num_registered_blocks and not sequence.exits:
                    self._register_full_blocks(sequence, computed // size)
                if not sequence.prompt_computed:
                    sequence.prompt_computed = sequence.prompt_is_shareable(computed, size)
                if sequence.prefills and computed == len(sequence.token_ids):
                    self._remove(sequence, now)
                    silent.append(sequence.output([], finish_reason="stop"))
            if not sampled:
                continue
            if sequence.share.num_drafts:
                outputs.append(self._commit_verified(sequence, computed, drawn, now, prefix_caching))
                continue
            token = drawn[0]
            reason = sequence.receive(token.token_id)
            if reason is not None:
                outputs.append(self._finish(sequence, token, reason, now))
                continue
            outputs.append(
                SequenceOutput(
                    request_id=sequence.request_id,
                    index=sequence.index,
                    token_ids=[token.token_id],
                    logprobs=None if token.logprob is None else [token.logprob],
                    cached_tokens=sequence.cached_tokens,
                    queue_seconds=sequence.queue_seconds,
                )
            )
            if sequence.tells_evidence:
                outputs[-1].evidence = sequence.evidence_of(drawn)
        self._totals.generated_tokens += len(outputs)
        return silent + outputs if silent else outputs

    def _commit_verified(
        self, sequence: Sequence, computed: int, drawn: list[SampledToken], now: float, prefix_caching: bool
    ) -> SequenceOutput:
        """Take in the drafts that were accepted and the token after them; a stop within them ends it (SPEC SD-09)."""
        kept: list[SampledToken] = []
        reason: FinishReason | None = None
        for token in drawn:
            if kept:
                # The token before was drafted, so it is computed already.
                sequence.num_computed_tokens += 1
                self._running_set.append_pending((sequence,))
            reason = sequence.receive(token.token_id)
            if reason != "stop":
                kept.append(token)
            if reason is not None:
                break
        sequence.num_accepted = len(drawn) - 1
        self._totals.generated_tokens += len(kept) - 1 + (reason == "stop")
        self._take_back_drafted_blocks(sequence)
        full = (computed + max(len(kept) - 1, 0)) // self._pool.block_size
        if prefix_caching and full > sequence.num_registered_blocks:
            self._register_full_blocks(sequence, full)
        if reason is not None:
            self._remove(sequence, now)
        logprobs = [token.logprob for token in kept if token.logprob is not None]
        stop = token.token_id if reason == "stop" else None
        output = sequence.output([t.token_id for t in kept], logprobs or None, reason, stop)
        return _told(sequence, output, kept)

    def _take_back_drafted_blocks(self, sequence: Sequence) -> None:
        """Blocks that only rejected drafts were written to are free again (SPEC SD-08)."""
        table = sequence.block_table
        needed = self._pool.blocks_for(sequence.num_computed_tokens)
        if len(table) > needed:
            self._pool.release(table[needed:])
            self._running_set.reserved_blocks += len(table) - needed
            # Runners that keep tables know a list by its identity, and that it only grows.
            sequence.block_table = sequence.share.block_table = table[:needed]

    def _commit_scores(self, entries: list[ScheduledEntry], result: StepResult) -> list[SequenceOutput]:
        """What a step says of the prompts that are to be scored."""
        outputs = []
        for (sequence, computed, *_), scored in zip(entries, result.scored, strict=True):
            if not scored or sequence.status is Status.FINISHED:
                continue
            output = sequence.output([])
            output.prompt_logprobs = sequence.receive_scores(scored, computed)
            if output.prompt_logprobs:
                outputs.append(output)
        return outputs

    def _commit_states(self, entries: list[ScheduledEntry], result: StepResult, now: float) -> list[SequenceOutput]:
        """Take in hidden states; those who were computed for nothing else are finished with the last of theirs."""
        outputs = []
        for (sequence, computed, *_), states in zip(entries, result.states, strict=True):
            pool = sequence.states
            if pool is None or sequence.status is Status.FINISHED:
                continue
            pool.take(states)
            if pool.exits and computed == len(sequence.token_ids):
                self._remove(sequence, now)
                outputs.append(_told(sequence, sequence.output([], finish_reason="stop"), []))
        return outputs

    def _start_decoding(self, sequence: Sequence, now: float) -> None:
        """A sequence that lagged has its first token in sight, or is where it was before it was preempted."""
        assert sequence.waiting_since is not None
        sequence.waited_seconds += now - sequence.waiting_since
        sequence.waiting_since = None
        sequence.share.score = sequence.share.state = None
        self._running_set.start_decoding(sequence)
        if not sequence.output_token_ids:
            self._deadlines.remove(sequence)
            if sequence.admissions == 1:
                self._joins.record(sequence, now)

    def _finish(self, sequence: Sequence, token: SampledToken, reason: FinishReason, now: float) -> SequenceOutput:
        self._remove(sequence, now)
        if reason == "stop":
            return _told(sequence, sequence.output([], finish_reason=reason, stop_token_id=token.token_id), [])
        output = sequence.output([token.token_id], None if token.logprob is None else [token.logprob], reason)
        return _told(sequence, output, [token])

    def _register_full_blocks(self, sequence: Sequence, full: int) -> None:
        known = sequence.num_registered_blocks
        sequence.extend_digests(full, self._pool.block_size)
        self._pool.register(sequence.block_table[known:full], sequence.digests[known:full])
        sequence.num_registered_blocks = full


def _told(sequence: Sequence, output: SequenceOutput, drawn: list[SampledToken]) -> SequenceOutput:
    """`output` of these tokens, with the evidence that the sequence is asked for."""
    if sequence.tells_evidence:
        output.evidence = sequence.evidence_of(drawn)
    return output
