"""Plans each step of one model: decodes first, then prompt chunks, within a token budget."""

from collections.abc import Callable, Iterator
from operator import attrgetter

from inference_core.engine.block_tables import BlockTables, PrefixHit
from inference_core.engine.commit import (
    ExecutedPart,
    ExecutedStep,
    JoinStatistics,
    ScheduledEntry,
    SchedulerTotals,
    StepCommit,
)
from inference_core.engine.queues import (
    Batch,
    Deadlines,
    QueueEntry,
    RunningSet,
    StepBudget,
    WaitingQueue,
    holding_rank,
    joins_now,
    service_order,
)
from inference_core.engine.sequence import Join, Precedence, Rank, Sequence, Status
from inference_core.errors import IntegrityError, QueueFullError
from inference_core.kv_cache.block_pool import BlockPool
from inference_core.kv_cache.layout import KVLayout
from inference_core.lora.adapter import NO_SLOT, AdapterSlots
from inference_core.protocol import LAST_CLASS, Knobs, SequenceOutput
from inference_core.step_plan import DraftLaw, StepPlan

_turn = attrgetter("precedence.last_step", "precedence.number")


class Scheduler:
    """Continuous batching of one model (SPEC BS-01): sequences join and leave at every step.

    There are no phases. A step gives one token to each sequence that needs exactly one (in turn if the budget is too
    small for all, BS-07), then one chunk of at most `prefill_chunk` tokens (BS-06) to each sequence that needs more.
    Waiting sequences are admitted in `service_order` (BS-05) while their blocks fit. If blocks run out, the sequence
    with the worst `holding_rank` is preempted: it waits, to be recomputed or copied back from `pool.host` (KV-09).
    `peers`: the schedulers that share the arena, this one included; the same orders decide memory among all of them.

    A result may come late: `launched` lets planning continue while a step is in flight, `commit` brings its tokens.
    `clock` (seconds) times planning and the blocks of prompts (SPEC GW-01); the default stands still.
    """

    def __init__(
        self,
        name: str,
        pool: BlockPool,
        knobs: Knobs,
        adapters: AdapterSlots | None = None,
        clock: Callable[[], float] = lambda: 0.0,
        tables: type[BlockTables] = BlockTables,
    ) -> None:
        self.name = name
        self.pool = pool
        self.knobs = knobs
        self.adapters = adapters or AdapterSlots(None)
        self.peers: list[Scheduler] = [self]
        self.waiting = WaitingQueue(knobs.ageing_seconds)
        self._running_set = RunningSet(pool)
        self.tables = tables(pool, self._running_set)
        self.blocked: Sequence | None = None
        self.totals = SchedulerTotals()
        self.joins = JoinStatistics()
        self.deadlines = Deadlines()
        # Takes back arena memory that was lent to drafters; returns whether there was any.
        self.reclaim: Callable[[], bool] = lambda: False
        # Called with every sequence that stops running, before its blocks are freed.
        self.on_leave: Callable[[Sequence], None] = lambda sequence: None
        self._commit = StepCommit(self.tables, self._running_set, self.totals, self.joins, self.deadlines, self.remove)
        self._batch = Batch()
        self._budget = StepBudget(0)
        self._clock = clock

    def close(self) -> None:
        """End the references that lead back to this scheduler, so that it goes with its owner; no step may follow."""
        self.peers, self.reclaim, self.on_leave = [], lambda: False, lambda sequence: None
        del self._commit

    @property
    def running(self) -> dict[str, Sequence]:
        """The running sequences by id."""
        return self._running_set.running

    @property
    def prefilling(self) -> dict[str, Sequence]:
        """The running sequences that still compute their prompts."""
        return self._running_set.prefilling

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    @property
    def has_asked_work(self) -> bool:
        """Whether there is work for which idle work stops, by the classes after the last `lift` of the queue. Where
        batches are formed, idle work is part of them."""
        if self.knobs.batching != "continuous":
            return self.has_work
        classes = (self._running_set.best_class, self.waiting.best_class)
        return any(best is not None and best <= LAST_CLASS for best in classes)

    def stop_idle_work(self, now: float) -> None:
        """Let idle work that runs wait: it continues with what the prefix cache still holds of it."""
        if self.knobs.batching == "continuous" and self.running and self._running_set.lowest_class > LAST_CLASS:
            for sequence in [s for s in self.running.values() if s.precedence.held_class > LAST_CLASS]:
                self._preempt(sequence, now)

    def lay_out(self, layout: KVLayout, now: float) -> None:
        """Let every running sequence wait, to be computed again in blocks of `layout`; nothing stays cached."""
        self.pool.drop_cache()
        for sequence in list(self.running.values()):
            self._preempt(sequence, now)
        self.pool.lay_out(layout)

    def seconds_held(self, now: float) -> float:
        """Seconds that an idle model still holds back waiting sequences so that their batch can grow."""
        return 0.0 if self.running else self._batch.seconds_held(self.knobs, self.waiting, now)

    def add(self, choices: list[Sequence], now: float) -> None:
        """Queue all choices of a request. Raises `QueueFullError` if they do not fit `max_waiting` (SPEC BS-13)."""
        if len(self.waiting) + len(choices) > self.knobs.max_waiting:
            raise QueueFullError(
                f"{self.name}: {len(self.waiting)} sequences wait and {len(choices)} more would pass "
                f"the limit of {self.knobs.max_waiting}; try again later"
            )
        for sequence in choices:
            if self.knobs.prefix_caching:
                sequence.shareable_digests(self.pool.block_size)
            self._enqueue(sequence, now)
            sequence.prompt_computed = sequence.prompt_is_shareable(0, self.pool.block_size)
            if not sequence.output_token_ids:
                self.deadlines.add(sequence)

    def _enqueue(self, sequence: Sequence, now: float) -> None:
        cached = self.tables.cached_blocks(sequence.kv.digests) if self.knobs.prefix_caching else 0
        sequence.kv.num_cached_tokens = cached * self.pool.block_size
        self.waiting.push(sequence, now)

    def remove(self, sequence: Sequence, now: float) -> None:
        """Forget a live sequence and free its blocks."""
        if sequence.status is Status.WAITING:
            sequence.times.end_wait(now)
            self.waiting.remove(sequence)
            if sequence.admissions:
                self.pool.host.expect_no_more(sequence.id)
            if self.blocked is sequence:
                self.blocked = None
        else:
            self._stop_running(sequence)
        if sequence.precedence.waiting_since is not None and not sequence.output_token_ids:
            self.deadlines.remove(sequence)
        self._batch.discard(sequence.id)
        sequence.forget_pending()
        sequence.sample_spec.matcher = None
        sequence.status = Status.FINISHED

    def forget_adapters(self) -> None:
        """Drop the unloaded adapters that no live sequence uses."""
        live = (*self.running.values(), *self.waiting.values())
        self.adapters.forget(sequence.request.adapter for sequence in live)

    def schedule(self, step: int, now: float) -> StepPlan | None:
        """Plan the next step; None if no sequence can advance before another model steps."""
        # A step of decodes alone is not timed: none of them waits for its first token.
        began = self._clock() if self.waiting or self._running_set.prefilling else 0.0
        self._budget = budget = StepBudget(self.knobs.max_num_batched_tokens)
        self.blocked = None
        host, kept = self.pool.host, self.knobs.host_cache_blocks if self.knobs.prefix_caching else 0
        if kept != host.capacity:
            host.resize(kept)
        self.waiting.lift(now, self.knobs.ageing_seconds)
        self._batch.form(self.knobs, self.running, self.waiting, now)
        left_over = self._share_among_decodes(list(self._running_set.decodes.values()), self._most_decodes(), now)
        self._share_among_prefilling(now)
        if budget.left:
            self._share_among_decodes(left_over, budget.left, now)
        for sequence in budget.shares:
            sequence.precedence.last_step = step
        if not budget.shares:
            if kept:
                host.end(copied=False)
            return None
        # Copies that empty slabs, for a model whose queue waits for memory.
        is_short = any(peer.blocked is not None for peer in self.peers if peer is not self)
        moves = self.tables.plan_moves(self.knobs.block_moves_per_step) if is_short else []
        plan = StepPlan(step, self.name, list(budget.shares.values()), moves, *(host.copies() if kept else ()))
        if budget.kv_seconds:
            budget.charge_planning(self._clock() - began)
        return plan

    def _share_among_decodes(self, decodes: list[Sequence], most: int, now: float) -> list[Sequence]:
        """Give one token each to at most `most` of `decodes`, longest without one first; return the rest."""
        budget = self._budget
        if budget.preempted:
            decodes = [s for s in decodes if s.status is Status.RUNNING]
        if len(decodes) > most:
            decodes.sort(key=_turn)
        while decodes and most > 0:
            chosen, decodes = decodes[:most], decodes[most:]
            for sequence in self.tables.grow_decodes(chosen):
                if sequence.status is Status.RUNNING:
                    self._grow(sequence, 1, now)
            if budget.preempted:
                chosen = [s for s in chosen if s.status is Status.RUNNING]
                decodes = [s for s in decodes if s.status is Status.RUNNING]
            budget.hand_out_decodes(chosen)
            most -= len(chosen)
        return decodes

    def _most_decodes(self) -> int:
        """Return how many sequences may decode: all that fit the budget, fewer during prefill (SPEC BS-12).

        A prompt alone has each step's budget, with D decodes the budget less D; `max_join_penalty` bounds the ratio.
        """
        budget = self._budget.total
        if not self._running_set.prefilling and not (self.waiting and self._could_admit_one()):
            return budget
        return max(1, int(budget - budget / self.knobs.max_join_penalty))

    def _share_among_prefilling(self, now: float) -> None:
        """Give each prompt in service order its next chunk; only the first may get a part of one.

        A part of a further prompt would lengthen the step, and so delay the first, without ending the other sooner.
        """
        budget, first_has_share = self._budget, False
        for sequence in self._prefilling_in_service_order(now) if budget.left else ():
            if not budget.left:
                break
            room = budget.room_for(sequence)
            # A prefill-only sequence needs nothing more once its last step is in flight.
            if sequence in budget.preempted or not room or not sequence.kv.num_uncomputed_tokens:
                continue
            most = self.tables.most_chunk(self.knobs.prefill_chunk)
            chunk = min(sequence.kv.num_prefill_tokens, most)
            if first_has_share and chunk > budget.left:
                budget.queue_blocked = True
                continue
            began = self._clock()
            if sequence.status is Status.WAITING and (budget.memory_short or not self._admit(sequence, now)):
                # No overtaking of the queue's head: small requests could keep a large one waiting for ever.
                budget.queue_blocked = True
                continue
            tokens = min(sequence.kv.num_uncomputed_tokens, most, room)
            if self._grow(sequence, tokens, now):
                if not sequence.output_token_ids:
                    budget.kv_seconds[sequence] = self._clock() - began
                budget.hand_out(sequence, tokens)
                first_has_share = True

    def _prefilling_in_service_order(self, now: float) -> Iterator[Sequence]:
        """Yield the prefilling sequences and, until the queue is blocked, the waiting ones."""
        budget, ageing = self._budget, self.knobs.ageing_seconds
        running: list[QueueEntry] = [(*service_order(s, now, ageing), s) for s in self._running_set.prefilling.values()]
        running.sort(reverse=True)
        if self._queue_is_open(now):
            for entry in self.waiting.entries():
                if not self._may_join(entry[-1]):
                    continue
                while running and running[-1] < entry:
                    yield running.pop()[-1]
                if budget.queue_blocked or self._must_idle(entry[0]):
                    break
                yield entry[-1]
        while running:
            yield running.pop()[-1]

    def _queue_is_open(self, now: float) -> bool:
        """Whether any sequence may be admitted in this step."""
        if self._budget.memory_short or not self.waiting or not self._could_admit_one():
            return False
        return not self._batch.is_open or joins_now(
            self.knobs,
            decoding=len(self._running_set.decodes),
            waiting=len(self.waiting),
            oldest_wait=self.waiting.oldest_wait(now),
        )

    def _must_idle(self, level: int) -> bool:
        """Whether a waiting sequence of class `level` is idle work for which there is no time in this step."""
        return level > LAST_CLASS and self.knobs.batching == "continuous" and self.has_asked_work

    def _may_join(self, sequence: Sequence) -> bool:
        if not self._batch.is_open:
            return sequence.id in self._batch
        return not (self.knobs.prefix_caching and sequence.waits_for_leader())

    def _could_admit_one(self) -> bool:
        """Whether `max_num_seqs` leaves room for a waiting sequence, if need be by preempting a lower class."""
        if len(self._running_set) < self.knobs.max_num_seqs:
            return True
        best = self.waiting.best_priority
        return best is not None and best < self._running_set.lowest_class

    def _admit(self, sequence: Sequence, now: float) -> bool:
        """Start `sequence` if `max_num_seqs` and memory allow it, preempting strictly lower classes if need be."""
        adapter = sequence.request.adapter
        if self._peer_queue_precedes(sequence.precedence, now) or (adapter and not self.adapters.has_room(adapter)):
            return False
        digests = sequence.shareable_digests(self.pool.block_size) if self.knobs.prefix_caching else []
        hit = self.tables.look_up(digests)
        while True:
            if len(self._running_set) >= self.knobs.max_num_seqs:
                victim = self._victim(sequence.precedence.newcomer_claim, [self])
            elif not self._fits(sequence, hit.blocks):
                if self._reclaimed():
                    continue
                victim = self._victim(sequence.precedence.newcomer_claim, self.peers)
                if victim is None:
                    self.blocked = sequence
            else:
                break
            if victim is None:
                return False
            victim[0]._preempt(victim[1], now)
        self._start(sequence, hit, now)
        return True

    def _start(self, sequence: Sequence, hit: PrefixHit, now: float) -> None:
        self.waiting.remove(sequence)
        if sequence.admissions:
            self.pool.host.expect_no_more(sequence.id)
        sequence.status = Status.RUNNING
        sequence.precedence.held_class = sequence.precedence.aged_class(now, self.knobs.ageing_seconds)
        sequence.times.end_wait(now)
        kv, size = sequence.kv, self.pool.block_size
        self.tables.begin(kv, hit)
        cached = kv.num_registered_blocks * size
        sequence.prompt_computed = sequence.prompt_computed or sequence.prompt_is_shareable(cached, size)
        kv.num_computed_tokens = len(kv.block_table) * size
        kv.num_cached_tokens = 0
        if sequence.request.adapter:
            sequence.share.adapter = self.adapters.pin(sequence.request.adapter)
        self._running_set.add(sequence)
        sequence.admissions += 1
        if sequence.admissions == 1 and not kv.pinned:
            sequence.cached_tokens = kv.num_computed_tokens
            sequence.join = Join(
                now, len(self._running_set.decodes), sequence.num_prompt_tokens - kv.num_computed_tokens
            )
            self.totals.count_prompt(sequence, prefix_caching=self.knobs.prefix_caching)

    def _peer_queue_precedes(self, rights: Precedence, now: float) -> bool:
        """Whether a peer's queue head lacks memory and comes before these rights: freed memory is reserved for it."""
        ageing = self.knobs.ageing_seconds
        order = rights.arrival_order(now, ageing)
        heads = (peer.blocked for peer in self.peers if peer is not self)
        return any(head is not None and head.precedence.arrival_order(now, ageing) < order for head in heads)

    def _fits(self, sequence: Sequence, hits: list[int]) -> bool:
        """Whether all known tokens of `sequence` fit besides the running sequences' reservations (SPEC KV-10)."""
        pool = self.pool
        if sequence.kv.pinned:
            return True
        needed = pool.blocks_held(len(sequence.token_ids)) - len(hits) + pool.count_evictable(hits)
        reserved = sum(peer.tables.reserved_bytes() for peer in self.peers)
        return (pool.available - needed) * pool.block_bytes >= reserved

    def _grow(self, sequence: Sequence, tokens: int, now: float) -> bool:
        """Allocate blocks for `tokens` more tokens, preempting worse holders; False if `sequence` is preempted."""
        tables, kv = self.tables, sequence.kv
        lacking = tables.make_room(kv, tokens)
        if lacking <= 0:
            return True
        blocks = tables.pinned_blocks(kv, lacking) if kv.pinned else self._obtain(sequence, lacking, now)
        if blocks is None:
            return False
        tables.extend(kv, blocks)
        return True

    def _obtain(self, sequence: Sequence, wanted: int, now: float) -> list[int] | None:
        """Allocate blocks for a running sequence, preempting worse holders; None if it is preempted itself."""
        while (blocks := self.pool.allocate(wanted)) is None:
            if self._reclaimed():
                continue
            self._budget.memory_short = True
            victim = self._victim(holding_rank(sequence), self.peers)
            if victim is None:
                self._preempt(sequence, now)
                return None
            victim[0]._preempt(victim[1], now)
        return blocks

    def _reclaimed(self) -> bool:
        """Take back the memory lent to drafters; return whether there was any. Raises `IntegrityError` if they keep it:
        as they borrow nothing while a step is planned, its planning would not end."""
        if not self.reclaim():
            return False
        if self._budget.reclaimed:
            raise IntegrityError(f"{self.name}: drafters gave their memory back in this step, and still hold some")
        self._budget.reclaimed = True
        return True

    def _victim(self, claim: Rank, schedulers: "list[Scheduler]") -> "tuple[Scheduler, Sequence] | None":
        """Return the running sequence to preempt for `claim`: the lowest class first, then this model's own.

        Blocks of this pool are usable at once, those of a peer only when a whole slab becomes free.
        """
        holders = ((s, seq) for s in schedulers for seq in s.running.values() if holding_rank(seq) > claim)
        return max(holders, key=lambda h: (h[1].precedence.held_class, h[0] is self, holding_rank(h[1])), default=None)

    def _preempt(self, sequence: Sequence, now: float) -> None:
        """Move a running sequence back to the queue; its full blocks may stay cached or go to host memory."""
        self.tables.expect(sequence)
        self._stop_running(sequence)
        sequence.status = Status.WAITING
        sequence.times.queued_since = now
        sequence.precedence.begin_wait(now)
        self._enqueue(sequence, now)
        sequence.times.count_preemption()
        self.totals.preemptions += 1
        self._budget.take_back(sequence)

    def _stop_running(self, sequence: Sequence) -> None:
        """Remove a sequence from the running set and release its blocks."""
        self.on_leave(sequence)
        self._running_set.remove(sequence)
        self.tables.release(sequence.kv)
        if sequence.request.adapter:
            self.adapters.unpin(sequence.request.adapter)
            sequence.share.adapter = NO_SLOT

    @property
    def draft_room(self) -> int:
        """Draft tokens that the step just planned has room for (SPEC SD-10)."""
        return self._budget.left

    def add_drafts(self, sequence: Sequence, token_ids: list[int], laws: list[DraftLaw] | None) -> None:
        """Let the step just planned, in which `sequence` decodes, verify these tokens, at most `draft_room`.

        Fewer if there are no blocks for them: drafts preempt no sequence.
        """
        share = sequence.share
        token_ids = token_ids[: self.tables.grow_for_drafts(sequence.kv, len(token_ids))]
        share.token_ids = share.token_ids + token_ids
        share.num_drafts, share.draft_laws, sequence.num_accepted = len(token_ids), laws, 0
        self._budget.left -= len(token_ids)

    def launched(self, plan: StepPlan, entries: list[ScheduledEntry], now: float) -> None:
        """`plan` is in flight: continue as if it were done, with the tokens that it draws still pending."""
        self.tables.end_copies(plan, copied=True)
        self._commit.advance(entries, now)

    def commit(self, part: ExecutedPart) -> list[SequenceOutput]:
        """Commit the results of a launched step, in the order of launches; sequences that ended since are skipped."""
        return self._commit.commit(part, prefix_caching=self.knobs.prefix_caching)

    def commit_step(self, executed: ExecutedStep) -> list[SequenceOutput]:
        """Commit the parts of a step that was executed without overlap."""
        return self._commit.commit_step(executed, prefix_caching=self.knobs.prefix_caching)

    def requeue(self, entries: list[ScheduledEntry], now: float, *, moved_blocks: bool) -> list[Sequence]:
        """Requeue the sequences of a planned step that failed or was not launched; they are recomputed.

        `moved_blocks`: the step was to copy blocks, so no stored block can be trusted.
        """
        requeued = [entry.sequence for entry in entries if entry.sequence.status is not Status.FINISHED]
        if moved_blocks:
            requeued = list({s.id: s for s in [*requeued, *self.running.values()]}.values())
        self.pool.host.clear()
        for sequence in requeued:
            if sequence.status is Status.RUNNING:
                self._preempt(sequence, now)
            if sequence.num_pending:
                sequence.forget_pending()
                if not sequence.output_token_ids:
                    self.deadlines.add(sequence)
        if moved_blocks:
            self.pool.drop_cache()
        return requeued

    def check_integrity(self) -> None:
        """Check budget, running set, queue, deadlines and blocks between steps. Raises `IntegrityError`."""
        self._budget.check_integrity()
        self._running_set.check_integrity()
        self.tables.check_integrity()
        self.pool.host.check_integrity(set(self.waiting))
        self.adapters.check_integrity(s.request.adapter for s in self.running.values())
        self.waiting.check_integrity()
        self.deadlines.check_integrity([*self.running.values(), *self.waiting.values()])
