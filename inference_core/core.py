"""A core: several models on one device group with one KV arena, one step at a time; synchronous, deterministic."""

import time
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from msgspec.structs import replace

from inference_core.engine.auto_tuner import AutoTuner
from inference_core.engine.kv_transfer import KVTransfer
from inference_core.engine.live_knobs import LiveKnobs
from inference_core.engine.live_requests import LiveRequests
from inference_core.engine.model_stats import model_stats
from inference_core.engine.pinned_prefixes import Pin, PinnedPrefix, PinnedPrefixes
from inference_core.engine.request_validation import validate_memory, validate_request, validate_token_ids
from inference_core.engine.step_executor import StepExecutor
from inference_core.engine.step_statistics import StepMeasurement, StepStatistics
from inference_core.errors import (
    CoreError,
    IntegrityError,
    InvalidRequestError,
    KVTransferError,
    QueueFullError,
)
from inference_core.execution.runner import ModelRunner
from inference_core.grammar.admission import Compiled, GrammarAdmission, vocabulary_of_file
from inference_core.kv_cache.block_pool import BlockPool
from inference_core.kv_cache.prefix_hash import root_digest, shareable_blocks
from inference_core.kv_cache.slab_arena import SlabArena
from inference_core.lora.slots import AdapterSlots
from inference_core.model_spec import PINNED_SHARE
from inference_core.protocol import (
    AdapterInfo,
    AddRequest,
    CoreStats,
    Knobs,
    KnobValue,
    ModelInfo,
    SequenceOutput,
)
from inference_core.protocol.error_outputs import refusal
from inference_core.protocol.kv_blocks import BlockChain, BlockFrame
from inference_core.scheduling.commit import ScheduledEntry, entries_of
from inference_core.scheduling.model_round_robin import ModelRoundRobin
from inference_core.scheduling.queue_alert import QueueAlert
from inference_core.scheduling.scheduler import Scheduler
from inference_core.scheduling.sequence import Sequence
from inference_core.scheduling.wait_estimate import StepMeter
from inference_core.speculation.draft_model import DraftModel
from inference_core.speculation.drafter import Drafter
from inference_core.speculation.prompt_lookup import PromptLookup
from inference_core.speculation.speculator import Speculator
from inference_core.step_plan import MatcherFactory, StepPlan

if TYPE_CHECKING:
    from inference_core.grammar.vocabulary import Vocabulary

# How long an idle core waits for a grammar before it checks for commands again.
_GRAMMAR_PATIENCE_SECONDS = 0.05
# How long it waits, with requests for it, until a model may have been loaded.
_LOAD_PATIENCE_SECONDS = 0.02


class Core:
    """Add requests, call `step` while `has_work`, deliver its outputs. No threads, no asyncio: transports wrap it.

    `models`: a runner per model name; their KV caches share an arena of `arena_bytes` in slabs of
    `slab_bytes`. `clock`: seconds, monotonic. `seed`: of the generator that seeds unseeded requests (None: from the
    operating system); with it, equal commands and clock readings give equal runs. `knobs`: the same for every model, or
    `LiveKnobs` over just these models. `use_threads` gives the kernels another number of threads (0: one per CPU).
    `vocabulary_of` gives the tokens that grammars of a model are compiled for, by default those of its file.
    `drafts`: which of the models drafts for which, by name; they have the same vocabulary.
    `pinned_share`: the most of the arena's slabs that pinned prefixes may take. Requests for a model that is not loaded
    yet wait until it is.
    Raises `MemoryPlanError` if a model's block is larger than a slab.
    """

    def __init__(
        self,
        models: Mapping[str, ModelRunner],
        *,
        arena_bytes: int,
        slab_bytes: int,
        knobs: Knobs | LiveKnobs | None = None,
        clock: Callable[[], float] = time.monotonic,
        seed: int | None = None,
        use_threads: Callable[[int], object] | None = None,
        vocabulary_of: "Callable[[ModelInfo], Vocabulary]" = vocabulary_of_file,
        drafts: Mapping[str, str] | None = None,
        pinned_share: float = PINNED_SHARE,
    ) -> None:
        self._runners = dict(models)
        self._knobs = knobs if isinstance(knobs, LiveKnobs) else LiveKnobs(dict.fromkeys(models, knobs or Knobs()))
        self._arena = SlabArena(arena_bytes, slab_bytes)
        self._arena_bytes = arena_bytes
        self._schedulers = {
            name: Scheduler(
                name,
                BlockPool(name, runner.layout, self._arena),
                self._knobs.of(name),
                AdapterSlots(runner.adapters),
                clock,
            )
            for name, runner in self._runners.items()
        }
        self._clock = clock
        self._drafts = dict(drafts or {})
        self._speculators = {
            name: Speculator(scheduler, self._drafters(name), clock, most_drafts=self._runners[name].most_drafts)
            for name, scheduler in self._schedulers.items()
        }
        for scheduler in self._schedulers.values():
            scheduler.peers = list(self._schedulers.values())
            scheduler.reclaim = self._reclaim
        self._kv_transfers = {
            name: KVTransfer(scheduler.pool, self._runners[name]) for name, scheduler in self._schedulers.items()
        }
        self._pins = PinnedPrefixes(self._arena, pinned_share)
        self._meters = {name: StepMeter() for name in self._runners}
        self._tuners = {name: AutoTuner(self._knobs.of(name)) for name in self._runners}
        self._statistics = {name: StepStatistics() for name in self._runners}
        self._alerts = {name: QueueAlert(name) for name in self._runners}
        self._turns = ModelRoundRobin(list(self._runners))
        self._live = LiveRequests(clock)
        self._grammars = GrammarAdmission(
            vocabulary_of, {name: runner.config.eos_token_ids for name, runner in self._runners.items()}
        )
        self._executor = StepExecutor(self._runners, clock)
        self._use_threads = use_threads
        self._random = Random(seed)
        self._numbers = count()
        self._steps = 0
        self._releases: list[Callable[[], object]] = []

    @property
    def model_infos(self) -> list[ModelInfo]:
        """What its models are, with the adapters that are loaded now."""
        return [
            replace(runner.info, adapters=self._schedulers[name].adapters.digests)
            for name, runner in self._runners.items()
        ]

    @property
    def knobs(self) -> dict[str, Knobs]:
        """The current knobs, by model."""
        return self._knobs.active

    @property
    def has_work(self) -> bool:
        return bool(self._live.by_id) or bool(self._grammars) or self._pins.is_waiting

    def add(self, request: AddRequest) -> None:
        """Queue a request. Raises `InvalidRequestError` (it can never be served) or `QueueFullError` (try later).

        A request with a grammar is queued, or refused, by the first step after the grammar was compiled.
        """
        scheduler = self._scheduler(request.model)
        if request.request_id in self._live.by_id or request.request_id in self._grammars:
            raise InvalidRequestError(f"request_id {request.request_id!r} is in use by a live request", "request_id")
        runner = self._runners[request.model]
        validate_request(request, runner.info, scheduler.pool, scheduler.knobs)
        if request.adapter:
            scheduler.adapters.require(request.adapter)
        if request.prefill:
            size = scheduler.pool.block_size
            most = shareable_blocks(len(request.prompt_token_ids), size) * size
            request = replace(request, prompt_token_ids=request.prompt_token_ids[:most])
        if request.sampling.grammar is None:
            self._admit(request, None)
        else:
            self._grammars.add(request, runner.info, request.sampling.grammar)

    def _admit(self, request: AddRequest, make_matcher: MatcherFactory | None) -> None:
        scheduler, runner = self._schedulers[request.model], self._runners[request.model]
        now = self._clock()
        adapter_digest = scheduler.adapters.require(request.adapter).digest if request.adapter else b""
        self._refuse_hopeless(request, scheduler, now)
        given = request.sampling.seed
        request_seed = self._random.getrandbits(63) if given is None else given
        fast = self._computes_prompts_fast(request.model)
        public = self._pins.public_head(scheduler, request.salt, adapter_digest, request.prompt_token_ids, fast=fast)
        choices: list[Sequence] = []
        for index in range(request.n):
            sequence = Sequence.of_request(
                request,
                index,
                number=next(self._numbers),
                request_seed=request_seed,
                eos_token_ids=runner.config.eos_token_ids,
                max_context=runner.info.max_context,
                leader=choices[0] if choices else None,
                now=now,
                adapter_digest=adapter_digest,
                fast=fast,
                public=public,
            )
            if make_matcher is not None:
                sequence.sample_spec.matcher = make_matcher()
            choices.append(sequence)
        self._live.add(scheduler, choices, now)
        self._watch_queue(request.model)

    def _computes_prompts_fast(self, model: str) -> bool:
        """Whether new requests' prompts are computed in prompt arithmetic; a request keeps what it began with."""
        return self._runners[model].has_prompt_arithmetic and self._knobs.of(model).prefill_arithmetic == "fast"

    def _admit_compiled(self) -> list[SequenceOutput]:
        """Queue the requests whose grammar is compiled; return the refusals of those that cannot be queued."""
        patience = 0.0 if self._live.by_id else _GRAMMAR_PATIENCE_SECONDS
        return [output for compiled in self._grammars.take(patience) for output in self._admit_one(compiled)]

    def _admit_one(self, compiled: Compiled) -> list[SequenceOutput]:
        request = compiled.request
        scheduler = self._schedulers[request.model]
        try:
            # Prefixes may have been pinned since the request was validated.
            validate_memory(request, self._runners[request.model].info, scheduler.pool)
            self._admit(request, compiled.matchers.result())
        except IntegrityError:
            raise
        except CoreError as error:
            return [refusal(request.request_id, error)]
        return [output for index in compiled.aborted for output in self.abort(request.request_id, index)]

    def _scheduler(self, model: str) -> Scheduler:
        """Raises `InvalidRequestError` if there is no such model."""
        scheduler = self._schedulers.get(model)
        if scheduler is None:
            raise InvalidRequestError(f"model {model!r} is unknown; loaded: {', '.join(self._runners)}", "model")
        return scheduler

    def _refuse_hopeless(self, request: AddRequest, scheduler: Scheduler, now: float) -> None:
        """Raises `QueueFullError` if a strict deadline is before the predicted first token (SPEC BS-04)."""
        if request.deadline is None or not request.strict_deadline:
            return
        sharing = sum(s.has_work or s is scheduler for s in self._schedulers.values())
        seconds = self._meters[request.model].predicted_first_token(scheduler, len(request.prompt_token_ids), sharing)
        if now + seconds > request.deadline:
            scheduler.totals.deadline_refusals += 1
            raise QueueFullError(
                f"{request.model}: the first token is due in {(request.deadline - now) * 1e3:.0f} ms, but would take "
                f"{seconds * 1e3:.0f} ms as things are; allow more time or try elsewhere"
            )

    def abort(self, request_id: str, index: int | None = None) -> list[SequenceOutput]:
        """Forget a request, or its choice `index` alone, and free its blocks.

        Returns the final outputs of the choices that this ended.
        """
        if request_id in self._grammars:
            self._grammars.abort(request_id, index)
            return []
        return self._live.abort(request_id, index)

    def step(self) -> list[SequenceOutput]:
        """Run one step of one model and return its outputs; [] without work.

        An exception of the runner ends the sequences that cause it with `finish_reason` "error" and nothing else. With
        an `OverlappingRunner` a step is planned and launched before the previous one is collected, so that its tokens
        come with the next call.
        Raises `RankLostError` when the models' mesh has lost a rank: the core is dead then.
        """
        began = self._clock()
        for pin in self._pins.due(began):
            if self._pins.allocate(pin, began):
                self._start_pin(pin, began)
        outputs = self._step(began)
        return self._pins.settle(outputs, began)

    def _step(self, began: float) -> list[SequenceOutput]:
        outputs = self._admit_compiled() + self._live.end_late(self._schedulers.values(), began)
        computable = self._computable()
        due = {s.name: s.deadlines.earliest for s in computable}
        for name in self._turns.order(due):
            speculator = self._speculators[name]
            scheduler = self._schedulers[name]
            overlaps = not speculator.is_on and self._executor.may_overlap(name, scheduler.running.values())
            if not overlaps:
                outputs += self._collect()
            plan = scheduler.schedule(self._steps, began)
            if plan is None:
                continue
            self._steps += 1
            outputs += self._launch(plan) if overlaps else self._execute(plan, began)
            self._watch_queue(name)
            return outputs
        if self._executor.num_in_flight:
            return outputs + self._collect()
        if any(s.has_work and not s.seconds_held(began) for s in computable):
            raise IntegrityError(f"{', '.join(due)} have work, but no sequence of theirs can be scheduled")
        return outputs

    def _computable(self) -> list[Scheduler]:
        """Return the schedulers with work whose model is loaded. Raises why one with work will never be."""
        computable = []
        for name, scheduler in self._schedulers.items():
            if scheduler.has_work:
                runner = self._runners[name]
                if runner.is_loaded:
                    computable.append(scheduler)
                elif runner.load_error is not None:
                    raise runner.load_error
        return computable

    @property
    def pause_seconds(self) -> float:
        """Seconds until the next step has work, while all waiting sequences are held back; else 0."""
        now = self._clock()
        held = [
            s.seconds_held(now) if self._runners[s.name].is_loaded else _LOAD_PATIENCE_SECONDS
            for s in self._schedulers.values()
            if s.has_work
        ]
        if not held and not self._grammars:
            return self._pins.seconds_until_due(now)
        return min(held, default=0.0)

    def call_at_close(self, release: Callable[[], object]) -> None:
        """Register `release` to be called by `close`, in reverse order."""
        self._releases.append(release)

    def close(self) -> None:
        """Release what the core holds besides memory, such as processes; no step may follow.

        Weights and arena are freed with the last reference to the core, without a garbage collection, which would not
        find them after `gc.freeze`: so the cycles that lead to them end here.
        """
        self._grammars.close()
        for scheduler in self._schedulers.values():
            scheduler.close()
        while self._releases:
            self._releases.pop()()

    def set_knobs(self, changes: Mapping[str, KnobValue], model: str | None = None, keep: bool = False) -> None:
        """Change the named knobs of `model` (None: of every model) from the next step on; see `SetKnobs`.

        Raises `InvalidRequestError` and changes nothing if one of them is refused.
        """
        for name in self._schedulers if model is None else [model]:
            self._require_drafter(changes.get("speculation"), name)
        was_fast = {name: self._computes_prompts_fast(name) for name in self._schedulers}
        self._knobs.change(changes, model, keep)
        if "threads" in changes and self._use_threads is not None:
            self._use_threads(next(iter(self._knobs.active.values())).threads)
        for name, scheduler in self._schedulers.items():
            scheduler.knobs = self._tuners[name].set_limits(self._knobs.of(name))
            if not scheduler.knobs.prefix_caching or self._computes_prompts_fast(name) != was_fast[name]:
                # Prompts no longer find what was computed for them: it is computed again once they do.
                for pin in self._pins.of(name):
                    self._release_pin(pin)
            if not scheduler.knobs.prefix_caching:
                scheduler.pool.drop_cache()

    def load_adapter(self, model: str, name: str, path: str, *, listed: bool = False) -> None:
        """Serve the PEFT folder `path` as adapter `name` of `model`; `listed`: the core's specification names it.

        Raises `InvalidRequestError` for an unknown model or a name in use, `ModelFileError` for a bad folder.
        """
        self._scheduler(model).adapters.load(name, Path(path), listed=listed)

    def unload_adapter(self, model: str, name: str) -> None:
        """Refuse new requests with the adapter, and drop it when the last one has ended.

        Raises `InvalidRequestError` if there is no such adapter.
        """
        scheduler = self._scheduler(model)
        scheduler.adapters.unload(name)
        scheduler.forget_adapters()

    def adapters(self, model: str) -> list[AdapterInfo]:
        """The adapters of `model`. Raises `InvalidRequestError` if it is unknown."""
        return self._scheduler(model).adapters.infos()

    # -- pinned prefixes -----------------------------------------------------------------------

    def pin(self, prefix: PinnedPrefix) -> None:
        """Compute `prefix` ahead, after everything that users wait for, and keep it cached until `unpin` (SPEC KV-06).

        Raises `InvalidRequestError` for an unknown model or a token that it does not have, and `PrefixError` for a
        prefix that is too long or too short, or takes more memory than may be pinned.
        """
        scheduler, info = self._scheduler(prefix.model), self._runners[prefix.model].info
        validate_token_ids("token_ids", prefix.token_ids, info.vocab_size)
        self._pins.add(prefix, scheduler, info.max_context)

    def unpin(self, model: str, name: str) -> None:
        """Drop a pinned prefix; its memory is free once no running request uses it. Raises `PrefixError` if there is
        none of this name."""
        self._release_pin(self._pins.remove(model, name))

    def _start_pin(self, pin: Pin, now: float) -> None:
        """Queue the request that computes `pin` into the blocks allocated for it."""
        model, scheduler = pin.prefix.model, pin.scheduler
        fast = self._computes_prompts_fast(model)
        request = self._pins.request(pin, fast=fast)
        sequence = Sequence.of_request(
            request,
            0,
            number=next(self._numbers),
            request_seed=0,
            eos_token_ids=(),
            max_context=self._runners[model].info.max_context,
            leader=None,
            now=now,
            fast=fast,
        )
        sequence.pinned = pin.blocks
        self._live.add(scheduler, [sequence], now)

    def _release_pin(self, pin: Pin) -> None:
        self.abort(pin.request_id)
        self._pins.release(pin)

    # -- transfer of blocks --------------------------------------------------------------------

    def export_blocks(self, chain: BlockChain, first: int, most_bytes: int) -> BlockFrame:
        """See `ExportBlocks`. Raises `KVTransferError`."""
        transfer, root, public = self._kv_transfer(chain)
        return transfer.export(root, public, chain.token_ids, first, most_bytes)

    def import_blocks(self, chain: BlockChain, frame: BlockFrame | None) -> int:
        """See `ImportBlocks`; how many of the chain's blocks are cached then. Raises `KVTransferError`."""
        transfer, root, public = self._kv_transfer(chain)
        if frame is None:
            return transfer.held(root, public, chain.token_ids)
        if not self._knobs.of(chain.model).prefix_caching:
            raise KVTransferError(f"{chain.model} caches no prefixes; set prefix_caching", "refused")
        return transfer.take(root, public, chain.token_ids, frame)

    def _kv_transfer(self, chain: BlockChain) -> tuple[KVTransfer, bytes, list[bytes]]:
        """Return the transfer of the chain's model, the digest of the chain's root, and its public head."""
        try:
            scheduler = self._scheduler(chain.model)
            digest = scheduler.adapters.require(chain.adapter).digest if chain.adapter else b""
            validate_token_ids("token_ids", chain.token_ids, self._runners[chain.model].info.vocab_size)
        except InvalidRequestError as error:
            raise KVTransferError(str(error), "refused") from error
        fast = self._computes_prompts_fast(chain.model)
        public = self._pins.public_head(scheduler, chain.salt, digest, chain.token_ids, fast=fast)
        return self._kv_transfers[chain.model], root_digest(chain.salt, digest, fast=fast), public

    def stats(self, query_id: str = "") -> CoreStats:
        """Return counts and estimates. `blocks_total`: the blocks that a model would have in an arena of its own."""
        sharing = sum(scheduler.has_work for scheduler in self._schedulers.values())
        return CoreStats(
            query_id=query_id,
            steps=self._steps,
            arena_bytes=self._arena_bytes,
            slab_bytes=self._arena.slab_bytes,
            slabs_free=self._arena.num_free,
            models=[
                model_stats(
                    scheduler,
                    self._meters[name],
                    self._tuners[name],
                    self._statistics[name],
                    knobs=self._knobs.of(name),
                    start=self._knobs.start_of(name),
                    queue_alert=self._alerts[name].raised,
                    speculation=self._speculators[name].stats(),
                    handover=self._kv_transfers[name].stats(),
                    weight_bytes=self._runners[name].info.weight_bytes,
                    is_loaded=self._runners[name].is_loaded,
                    pipeline=self._runners[name].pipeline,
                    prefixes=self._pins.stats(name),
                    models_sharing=sharing,
                )
                for name, scheduler in self._schedulers.items()
            ],
        )

    def check_integrity(self) -> None:
        """Check every invariant of the engine between steps; raises `IntegrityError` naming the violation.

        Every block is free, evictable (cached) or referenced, exactly once; reference counts equal the block tables
        that hold them; no slab has mixed owners; no step passed its token budget; only live requests hold anything.
        """
        self._arena.check_integrity()
        for speculator in self._speculators.values():
            speculator.check_integrity()
        for scheduler in self._schedulers.values():
            scheduler.check_integrity()
            self._pins.check_integrity(scheduler)
        self._live.check_integrity(self._schedulers.values())

    # -- speculation ---------------------------------------------------------------------------

    def _drafters(self, name: str) -> dict[str, Drafter]:
        """Return the drafters of a model by the value of the knob `speculation` that selects them."""
        if not self._runners[name].most_drafts:
            return {}
        drafters: dict[str, Drafter] = {"prompt_lookup": PromptLookup()}
        if name in self._drafts:
            runner = self._runners[self._drafts[name]]
            pool = BlockPool(f"{runner.info.name} for {name}", runner.layout, self._arena)
            drafters["draft_model"] = DraftModel(runner, pool, self._clock)
        return drafters

    def _require_drafter(self, speculation: KnobValue, name: str) -> None:
        if speculation == "draft_model" and name in self._schedulers and name not in self._drafts:
            raise InvalidRequestError(
                f"speculation = draft_model: {name} was loaded without a draft model; name one as its draft in the "
                "catalogue, or choose prompt_lookup or off",
                "speculation",
            )
        if speculation == "prompt_lookup" and name in self._runners and not self._runners[name].most_drafts:
            raise InvalidRequestError(
                f"speculation = prompt_lookup: {name} runs where drafts cannot be verified; choose off", "speculation"
            )

    def _reclaim(self) -> bool:
        """Take back the arena memory that drafters borrowed; returns whether there was any."""
        gave = [speculator.give_way() for speculator in self._speculators.values()]
        return any(gave)

    # -- one step ------------------------------------------------------------------------------

    def _execute(self, plan: StepPlan, began: float) -> list[SequenceOutput]:
        """Draft, run and commit a step before the next one is planned."""
        scheduler, speculator = self._schedulers[plan.model], self._speculators[plan.model]
        speculator.draft(plan)
        executed = self._executor.execute(plan, scheduler.running)
        outputs = scheduler.commit_step(executed)
        seconds = self._clock() - began
        speculator.learn(seconds)
        measured = StepMeasurement(
            sequences=len(plan.sequences),
            tokens=plan.num_tokens - plan.num_drafts,
            depth=plan.prompt_depth(),
            seconds=seconds,
            swap_seconds=executed.swap_seconds,
        )
        return self._end_step(scheduler, measured, outputs, executed.failed)

    def _launch(self, plan: StepPlan) -> list[SequenceOutput]:
        """Launch a step and commit the one that was in flight before."""
        scheduler = self._schedulers[plan.model]
        entries = entries_of(plan, scheduler.running)
        step = self._executor.launch(plan, entries)
        if step is None:
            scheduler.end_copies(plan, copied=False)
            outputs = self._collect()
            self._requeue(scheduler, entries, moved_blocks=False)
            return outputs
        scheduler.launched(plan, entries, step.launched)
        return self._collect() if self._executor.num_in_flight > 1 else []

    def _collect(self) -> list[SequenceOutput]:
        """Wait for the oldest step in flight, if there is one, and commit it."""
        collected = self._executor.collect()
        if collected is None:
            return []
        step, computed = collected.step, collected.computed
        if computed is None:
            # Steps that were launched after one that failed computed with wrong tokens.
            for lost in (step, *self._executor.cancel()):
                self._requeue(self._schedulers[lost.model], lost.entries, moved_blocks=lost.moved_blocks)
            return []
        scheduler, swapped = self._schedulers[step.model], computed.result.swapped
        outputs = scheduler.commit(computed)
        measured = StepMeasurement(
            sequences=len(step.entries),
            tokens=step.tokens,
            depth=step.depth,
            seconds=collected.seconds,
            swap_seconds=0.0 if swapped is None else swapped.seconds,
        )
        return self._end_step(scheduler, measured, outputs, {})

    def _requeue(self, scheduler: Scheduler, entries: list[ScheduledEntry], *, moved_blocks: bool) -> None:
        self._executor.suspect(scheduler.requeue(entries, self._clock(), moved_blocks=moved_blocks))

    def _end_step(
        self, scheduler: Scheduler, step: StepMeasurement, outputs: list[SequenceOutput], failed: Mapping[str, str]
    ) -> list[SequenceOutput]:
        """Account for a committed step, end the sequences that failed, and tune the limits of the next step."""
        model, seconds = scheduler.name, step.seconds
        tuner = self._tuners[model]
        self._record_ends(outputs)
        if failed:
            outputs += self._live.end_failed(scheduler, failed)
        if scheduler.knobs.repetition_guard:
            outputs += self._live.end_repetitive(scheduler, outputs)
        self._turns.charge(model, seconds)
        self._meters[model].record_step(seconds)
        self._statistics[model].record(step.sequences, seconds)
        scheduler.knobs = tuner.after_step(
            step.sequences,
            step.tokens,
            len(outputs),
            seconds - step.swap_seconds,
            self._clock(),
            backlog=scheduler.prefilling_tokens,
            waiting=len(scheduler.waiting),
            sharing=sum(s.has_work for s in self._schedulers.values()) or 1,
            depth=step.depth,
        )
        scheduler.pool.host.set_compute_cost(tuner.model.cost.further if tuner.model.is_warm else None)
        return outputs

    def _watch_queue(self, model: str) -> None:
        scheduler = self._schedulers[model]
        knobs = scheduler.knobs
        self._alerts[model].look(len(scheduler.waiting), knobs.alert_waiting, knobs.max_waiting)

    def _record_ends(self, outputs: list[SequenceOutput]) -> None:
        """Account for the choices that these outputs end."""
        for output in outputs:
            if output.finish_reason is not None:
                request = self._live.by_id[output.request_id]
                choice, model = request.choices[output.index], request.scheduler.name
                if choice.draws:
                    self._meters[model].record_finish(output.completion_tokens, choice.max_output_tokens)
                    computed = output.prompt_tokens - output.cached_tokens
                    self._tuners[model].after_answer(choice.waited_seconds, computed, output.completion_tokens)
                self._live.forget_choice(request, output.request_id)
