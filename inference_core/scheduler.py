"""Hands out the tokens of each step of one model: decodes first, then prompt chunks, within a token budget."""

import math
from heapq import heappop, heappush

from inference_core.block_pool import BlockPool
from inference_core.errors import IntegrityError, QueueFullError
from inference_core.protocol import Knobs, SequenceOutput
from inference_core.scheduling_order import Rank, aged_class, holding_rank, newcomer_claim, service_order
from inference_core.sequence import Sequence, Status
from inference_core.step_draft import SchedulerTotals, StepDraft
from inference_core.step_plan import SampledToken, ScheduledSequence, StepPlan, StepResult


class Scheduler:
    """Continuous batching of one model (SPEC BS-01): every step, sequences join and leave.

    There are no phases. A step gives one token to each sequence that lacks exactly one (in turn, if the
    budget is too small for all, BS-07), then one chunk of at most `prefill_chunk` tokens (BS-06) to
    those that lack more, admitting waiting ones while their blocks fit, in `service_order` (BS-05). If
    blocks run out, the worst by `holding_rank` gives way: it waits again, to be recomputed
    (KV-09). `peers` are the schedulers that share the arena, this one included: memory pressure is resolved
    across all of them by the same orders.
    """

    def __init__(self, name: str, pool: BlockPool, knobs: Knobs) -> None:
        self.name = name
        self.pool = pool
        self.knobs = knobs
        self.peers: list[Scheduler] = [self]
        self.waiting: dict[str, Sequence] = {}
        self.running: dict[str, Sequence] = {}
        self.blocked: Sequence | None = None
        self.totals = SchedulerTotals()
        self._draft = StepDraft(0, 0)
        self._first_tokens_due: list[tuple[float, int, Sequence]] = []

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def first_token_due(self) -> float:
        """The earliest deadline of a sequence without a first token; infinity if there is none."""
        due = self._first_tokens_due
        while due and (due[0][2].output_token_ids or due[0][2].status is Status.FINISHED):
            heappop(due)
        return due[0][0] if due else math.inf

    def add(self, choices: list[Sequence]) -> None:
        """Queue all choices of a request. Raises `QueueFullError` if they do not fit `max_waiting` (SPEC BS-13)."""
        if len(self.waiting) + len(choices) > self.knobs.max_waiting:
            raise QueueFullError(
                f"{self.name}: {len(self.waiting)} sequences wait and {len(choices)} more would pass "
                f"the limit of {self.knobs.max_waiting}; try again later"
            )
        for sequence in choices:
            self.waiting[sequence.id] = sequence
            sequence.prompt_computed = self._prompt_is_shareable(sequence)
            if sequence.deadline < math.inf:
                heappush(self._first_tokens_due, (sequence.deadline, sequence.number, sequence))

    def remove(self, sequence: Sequence, now: float) -> None:
        """Forget a live sequence; its blocks are free at once."""
        if sequence.status is Status.WAITING:
            sequence.queue_seconds += now - sequence.queued_since
            del self.waiting[sequence.id]
            if self.blocked is sequence:
                self.blocked = None
        else:
            del self.running[sequence.id]
            self._release(sequence)
        sequence.status = Status.FINISHED

    # -- planning ------------------------------------------------------------------------------

    def schedule(self, step: int, now: float) -> StepPlan | None:
        """The next step's plan; None if no sequence can advance before another model's do."""
        budget = self.knobs.max_num_batched_tokens
        self._draft = StepDraft(budget, budget)
        self.blocked = None
        self._share_among_decodes(now)
        self._share_among_lagging(now)
        planned = [self._planned(sequence, tokens, step) for sequence, tokens in self._draft.shares.items()]
        return StepPlan(step, self.name, planned) if planned else None

    def _share_among_decodes(self, now: float) -> None:
        draft = self._draft
        decodes = [s for s in self.running.values() if s.num_uncomputed_tokens == 1]
        if len(decodes) > draft.left:
            decodes.sort(key=lambda s: (s.last_step, s.number))
        for sequence in decodes:
            if not draft.left:
                break
            if sequence.status is Status.RUNNING and self._grow(sequence, 1, now):
                draft.hand_out(sequence, 1)

    def _share_among_lagging(self, now: float) -> None:
        draft = self._draft
        if not draft.left:
            return
        lagging = [s for s in self.running.values() if s.num_uncomputed_tokens > 1]
        if not draft.short and self._has_seat_for_someone():
            lagging += [s for s in self.waiting.values() if not (self.knobs.prefix_caching and s.waits_for_leader())]
        lagging.sort(key=lambda s: service_order(s, now, self.knobs.ageing_seconds))
        queue_stands = False
        for sequence in lagging:
            if not draft.left:
                break
            if sequence in draft.preempted:
                continue
            if sequence.status is Status.WAITING:
                # Nobody overtakes the head of the queue: small requests would keep a large one out for ever.
                queue_stands = queue_stands or draft.short or not self._admit(sequence, now)
                if queue_stands:
                    continue
            tokens = min(sequence.num_uncomputed_tokens, self.knobs.prefill_chunk, draft.left)
            if self._grow(sequence, tokens, now):
                draft.hand_out(sequence, tokens)

    def _planned(self, sequence: Sequence, tokens: int, step: int) -> ScheduledSequence:
        sequence.last_step = step
        start = sequence.num_computed_tokens
        catches_up = start + tokens == len(sequence.token_ids)
        return ScheduledSequence(
            sequence.id,
            sequence.token_ids[start : start + tokens],
            start,
            sequence.block_table.copy(),
            sequence.sample_spec() if catches_up else None,
        )

    # -- admission and memory ------------------------------------------------------------------

    def _has_seat_for_someone(self) -> bool:
        """Whether a waiting sequence could be seated, on a free seat or by pushing someone out."""
        if len(self.running) < self.knobs.max_num_seqs:
            return True
        worst = max(s.held_class for s in self.running.values())
        return any(s.priority < worst for s in self.waiting.values())

    def _admit(self, sequence: Sequence, now: float) -> bool:
        """Start `sequence` if a seat and its blocks can be had, pushing out strictly lower classes if need be."""
        if self._peer_queue_precedes(sequence, now):
            return False
        digests = sequence.shareable_digests(self.pool.block_size) if self.knobs.prefix_caching else []
        hits = self.pool.match(digests)
        while True:
            if len(self.running) >= self.knobs.max_num_seqs:
                victim = self._victim(newcomer_claim(sequence), [self])
            elif not self._fits(sequence, hits):
                victim = self._victim(newcomer_claim(sequence), self.peers)
                if victim is None:
                    self.blocked = sequence
            else:
                break
            if victim is None:
                return False
            victim[0]._preempt(victim[1], now)
        self._start(sequence, hits, now)
        return True

    def _start(self, sequence: Sequence, hits: list[int], now: float) -> None:
        del self.waiting[sequence.id]
        self.running[sequence.id] = sequence
        sequence.status = Status.RUNNING
        sequence.held_class = aged_class(sequence, now, self.knobs.ageing_seconds)
        sequence.queue_seconds += now - sequence.queued_since
        self.pool.acquire(hits)
        sequence.block_table = hits
        sequence.num_registered_blocks = len(hits)
        sequence.num_computed_tokens = len(hits) * self.pool.block_size
        sequence.prompt_computed = sequence.prompt_computed or self._prompt_is_shareable(sequence)
        sequence.admissions += 1
        if sequence.admissions == 1:
            self._count_first_admission(sequence)

    def _count_first_admission(self, sequence: Sequence) -> None:
        sequence.cached_tokens = sequence.num_computed_tokens
        if self.knobs.prefix_caching:
            self.totals.prefix_query_tokens += len(sequence.prompt_token_ids)
            self.totals.prefix_hit_tokens += sequence.cached_tokens
        if sequence.leader is None:
            self.totals.prompt_tokens += len(sequence.prompt_token_ids)

    def _peer_queue_precedes(self, sequence: Sequence, now: float) -> bool:
        """Whether a peer's head of queue lacks memory and is due before `sequence`: then it is owed what gets free."""
        ageing = self.knobs.ageing_seconds
        order = service_order(sequence, now, ageing)
        heads = (peer.blocked for peer in self.peers if peer is not self)
        return any(head is not None and service_order(head, now, ageing) < order for head in heads)

    def _fits(self, sequence: Sequence, hits: list[int]) -> bool:
        """Whether all known tokens of `sequence` fit beside what running sequences are promised (SPEC KV-10)."""
        pool = self.pool
        needed = pool.blocks_for(len(sequence.token_ids)) - len(hits) + pool.count_idle(hits)
        promised = sum(peer.promised_bytes() for peer in self.peers)
        return (pool.available - needed) * pool.block_bytes >= promised

    def promised_bytes(self) -> int:
        """What running sequences will still take for their known tokens, and a block each to go on with."""
        pool = self.pool
        return pool.block_bytes * sum(
            pool.blocks_for(len(s.token_ids)) + 1 - len(s.block_table) for s in self.running.values()
        )

    def _grow(self, sequence: Sequence, tokens: int, now: float) -> bool:
        """Blocks for `tokens` more tokens, taken from worse holders if need be; False if it gives way itself."""
        lacking = self.pool.blocks_for(sequence.num_computed_tokens + tokens) - len(sequence.block_table)
        if lacking <= 0:
            return True
        while (blocks := self.pool.allocate(lacking)) is None:
            self._draft.short = True
            victim = self._victim(holding_rank(sequence), self.peers)
            if victim is None:
                self._preempt(sequence, now)
                return False
            victim[0]._preempt(victim[1], now)
        sequence.block_table += blocks
        return True

    def _victim(self, claim: Rank, schedulers: "list[Scheduler]") -> "tuple[Scheduler, Sequence] | None":
        """The running sequence that gives way to `claim`: the lowest class first, and in it this model's own.

        Blocks of the own pool are of use at once, those of a peer only when a whole slab comes free.
        """
        holders = ((s, seq) for s in schedulers for seq in s.running.values() if holding_rank(seq) > claim)
        return max(holders, key=lambda h: (h[1].held_class, h[0] is self, holding_rank(h[1])), default=None)

    def _preempt(self, sequence: Sequence, now: float) -> None:
        """Send a running sequence back to the queue, to be recomputed; its full blocks may stay cached."""
        del self.running[sequence.id]
        self._release(sequence)
        self.waiting[sequence.id] = sequence
        sequence.status = Status.WAITING
        sequence.queued_since = now
        if sequence.lagging_since is None:
            sequence.lagging_since = now
        sequence.preemptions += 1
        self.totals.preemptions += 1
        self._draft.take_back(sequence)

    def _release(self, sequence: Sequence) -> None:
        self.pool.release(sequence.block_table)
        sequence.block_table = []
        sequence.num_registered_blocks = 0
        sequence.num_computed_tokens = 0

    # -- results -------------------------------------------------------------------------------

    def commit(self, plan: StepPlan, result: StepResult, now: float) -> list[SequenceOutput]:
        """Take in what a step computed. A finished sequence frees its blocks here, in its last step (SPEC KV-01)."""
        outputs = []
        for scheduled, sampled in zip(plan.sequences, result.sampled, strict=True):
            sequence = self.running[scheduled.sequence_id]
            sequence.num_computed_tokens += len(scheduled.token_ids)
            self._register_full_blocks(sequence)
            if scheduled.sample is None:
                continue
            if sequence.lagging_since is not None:
                sequence.lagged_seconds += now - sequence.lagging_since
                sequence.lagging_since = None
            outputs.append(self._take_token(sequence, sampled[0], now))
        return outputs

    def _take_token(self, sequence: Sequence, token: SampledToken, now: float) -> SequenceOutput:
        self.totals.generated_tokens += 1
        reason = sequence.append(token.token_id)
        if reason is not None:
            self.remove(sequence, now)
        if reason == "stop":
            return sequence.output([], finish_reason=reason, stop_token_id=token.token_id)
        logprobs = None if token.logprob is None else [token.logprob]
        return sequence.output([token.token_id], logprobs, reason)

    def _register_full_blocks(self, sequence: Sequence) -> None:
        if not sequence.prompt_computed:
            sequence.prompt_computed = self._prompt_is_shareable(sequence)
        full = sequence.num_computed_tokens // self.pool.block_size
        if not self.knobs.prefix_caching or full == sequence.num_registered_blocks:
            return
        sequence.extend_digests(full, self.pool.block_size)
        for i in range(sequence.num_registered_blocks, full):
            self.pool.register(sequence.block_table[i], sequence.digests[i])
        sequence.num_registered_blocks = full

    def _prompt_is_shareable(self, sequence: Sequence) -> bool:
        """Whether every prompt block that other choices could take from the cache has been computed."""
        size = self.pool.block_size
        return sequence.num_computed_tokens >= (len(sequence.prompt_token_ids) - 1) // size * size

    # -- integrity -----------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Between steps: tables cover computed tokens with less than a block to spare; the budget was kept."""
        draft = self._draft
        if sum(draft.shares.values()) + draft.left != draft.budget or draft.left < 0:
            raise IntegrityError(f"{self.name}: {draft.shares} does not keep a budget of {draft.budget} tokens")
        for sequence in self.running.values():
            needed = self.pool.blocks_for(sequence.num_computed_tokens)
            if sequence.status is not Status.RUNNING or len(sequence.block_table) != needed:
                raise IntegrityError(
                    f"{sequence.id} ({sequence.status.value}) holds {len(sequence.block_table)} blocks for "
                    f"{sequence.num_computed_tokens} computed tokens; {needed} are needed"
                )
            if not 0 < sequence.num_uncomputed_tokens <= len(sequence.token_ids):
                raise IntegrityError(f"{sequence.id} runs with {sequence.num_uncomputed_tokens} tokens to compute")
        for sequence in self.waiting.values():
            if sequence.status is not Status.WAITING or sequence.block_table or sequence.num_computed_tokens:
                raise IntegrityError(f"{sequence.id} ({sequence.status.value}) waits but holds {sequence.block_table}")
        self.pool.check_integrity(s.block_table for s in self.running.values())
