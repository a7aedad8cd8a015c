"""A core: several models on one device group with one KV arena, one step at a time; synchronous, deterministic."""

import time
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from msgspec.structs import replace

from inference_core.engine.draft_model import DraftModel
from inference_core.engine.drafter import Drafter, PromptLookup
from inference_core.engine.kv_transfer import KVTransfer
from inference_core.engine.live_knobs import LiveKnobs
from inference_core.engine.pinned_prefixes import Pin, PinnedPrefix, PinnedPrefixes
from inference_core.engine.requests import LiveRequests, validate_memory, validate_request, validate_token_ids
from inference_core.engine.scheduler import Scheduler
from inference_core.engine.sequence import Sequence
from inference_core.engine.served_model import ServedModel, model_stats, tables_of
from inference_core.engine.speculator import Speculator
from inference_core.engine.step_executor import CommittedSteps
from inference_core.errors import CoreError, IntegrityError, InvalidRequestError, KVTransferError
from inference_core.execution.runner import Interruption, ModelRunner
from inference_core.grammar.workers import Compiled, GrammarAdmission, vocabulary_of_file
from inference_core.kv_cache.block_pool import BlockPool
from inference_core.kv_cache.layout import KVLayout
from inference_core.kv_cache.prefix_hash import root_digest, shareable_blocks
from inference_core.kv_cache.slab_arena import SlabArena
from inference_core.lora.adapter import AdapterSlots
from inference_core.model_spec import PINNED_SHARE
from inference_core.protocol import AdapterInfo, AddRequest, CoreStats, Knobs, KnobValue, ModelInfo, SequenceOutput
from inference_core.protocol.kv_blocks import BlockChain, BlockFrame
from inference_core.protocol.outputs import refusal
from inference_core.protocol.token_channel import TokenRoutes
from inference_core.step_plan import MatcherFactory

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
    `LiveKnobs` over just these models. `use_threads` gives the kernels another number of threads (0: one per CPU);
    `threads_in_use` tells that of the next step.
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
        threads_in_use: Callable[[], int] = int,
        vocabulary_of: "Callable[[ModelInfo], Vocabulary]" = vocabulary_of_file,
        drafts: Mapping[str, str] | None = None,
        pinned_share: float = PINNED_SHARE,
    ) -> None:
        self._knobs = knobs if isinstance(knobs, LiveKnobs) else LiveKnobs(dict.fromkeys(models, knobs or Knobs()))
        self._arena = SlabArena(arena_bytes, slab_bytes)
        self._arena_bytes = arena_bytes
        self._clock = clock
        self._drafts = dict(drafts or {})
        self._models = {name: self._served(name, models) for name in models}
        self._schedulers = [model.scheduler for model in self._models.values()]
        for scheduler in self._schedulers:
            scheduler.peers = self._schedulers.copy()
            scheduler.reclaim = self._reclaim
        self._pins = PinnedPrefixes(self._arena, pinned_share)
        self._live = LiveRequests(clock)
        self._grammars = GrammarAdmission(
            vocabulary_of, {name: runner.config.eos_token_ids for name, runner in models.items()}
        )
        self._interruption = Interruption()
        for runner in models.values():
            runner.interruption = self._interruption
        self._steps = CommittedSteps(self._models, self._live, clock)
        self._use_threads = use_threads
        self._threads_in_use = threads_in_use
        self._random = Random(seed)
        self._numbers = count()
        self._releases: list[Callable[[], object]] = []
        self._routes: TokenRoutes | None = None
        for name, layout in self._new_layouts(self._knobs.active).items():
            self._lay_out(self._models[name], layout)

    @property
    def model_infos(self) -> list[ModelInfo]:
        """What its models are, with the adapters that are loaded now."""
        return [
            replace(model.runner.info, adapters=model.scheduler.adapters.digests, resumes=True)
            for model in self._models.values()
        ]

    @property
    def knobs(self) -> dict[str, Knobs]:
        return self._knobs.active

    @property
    def has_work(self) -> bool:
        return bool(self._live.by_id) or bool(self._grammars) or self._pins.is_waiting

    def add(self, request: AddRequest) -> None:
        """Queue a request. Raises `InvalidRequestError` (it can never be served) or `QueueFullError` (try later).

        A request with a grammar is queued, or refused, by the first step after the grammar was compiled.
        """
        model = self._model(request.model)
        runner, scheduler = model.runner, model.scheduler
        if request.request_id in self._live.by_id or request.request_id in self._grammars:
            raise InvalidRequestError(f"request_id {request.request_id!r} is in use by a live request", "request_id")
        validate_request(request, runner.info, scheduler.pool, scheduler.knobs)
        if request.adapter:
            scheduler.adapters.require(request.adapter)
        if request.prefill:
            size = scheduler.pool.block_size
            most = shareable_blocks(len(request.prompt_token_ids), size) * size
            request = replace(request, prompt_token_ids=request.prompt_token_ids[:most])
        if request.sampling.grammar is None:
            self._admit(model, request, None)
        else:
            self._grammars.add(request, runner.info, request.sampling.grammar)

    def _admit(self, model: ServedModel, request: AddRequest, make_matcher: MatcherFactory | None) -> None:
        scheduler, runner = model.scheduler, model.runner
        now = self._clock()
        adapter_digest = scheduler.adapters.require(request.adapter).digest if request.adapter else b""
        model.refuse_hopeless(request, now)
        seed = request.sampling.seed
        request_seed = self._random.getrandbits(63) if seed is None else seed
        fast = model.computes_prompts_fast
        prompt = request.prompt_token_ids[: request.drawn_from]
        public: list[bytes] = []
        if self._pins.public:
            public = self._pins.public_head(scheduler, request.salt, adapter_digest, prompt, fast=fast)
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
                matcher = sequence.sample_spec.matcher = make_matcher()
                for token_id in request.drawn_token_ids:
                    matcher.accept(token_id)
            choices.append(sequence)
        self._live.add(scheduler, choices, now)
        model.watch_queue()

    def _admit_compiled(self) -> list[SequenceOutput]:
        """Queue the requests whose grammar is compiled; return the refusals of those that cannot be queued."""
        if self._grammars.is_unused:
            return []
        patience = 0.0 if self._live.by_id else _GRAMMAR_PATIENCE_SECONDS
        return [output for compiled in self._grammars.take(patience) for output in self._admit_one(compiled)]

    def _admit_one(self, compiled: Compiled) -> list[SequenceOutput]:
        request = compiled.request
        model = self._models[request.model]
        try:
            # Prefixes may have been pinned since the request was validated.
            validate_memory(request, model.runner.info, model.scheduler.pool)
            self._admit(model, request, compiled.matchers.result())
        except IntegrityError:
            raise
        except CoreError as error:
            return [refusal(request.request_id, error)]
        return [output for index in compiled.aborted for output in self.abort(request.request_id, index)]

    def _model(self, name: str) -> ServedModel:
        """Raises `InvalidRequestError` if there is no such model."""
        model = self._models.get(name)
        if model is None:
            raise InvalidRequestError(f"model {name!r} is unknown; loaded: {', '.join(self._models)}", "model")
        return model

    def abort(self, request_id: str, index: int | None = None) -> list[SequenceOutput]:
        """Forget a request, or its choice `index` alone, and free its blocks. Returns ended choices' final outputs."""
        if request_id in self._grammars:
            self._grammars.abort(request_id, index)
            return []
        return self._live.abort(request_id, index)

    def set_routes(self, routes: TokenRoutes) -> None:
        """Let tokens of decode steps leave by `routes` while the next one of the same call is computed: the outputs of
        `step` are then those that did not."""
        self._routes = routes

    def interrupt(self) -> None:
        """Let a step under way return after its current token; from any thread."""
        self._interruption.set()

    def step(self) -> list[SequenceOutput]:
        """Run one step of one model, or several decode steps (`Knobs.decode_steps`), return its outputs or [].

        An exception of the runner ends the sequences that cause it with `finish_reason` "error" and nothing else. With
        an `OverlappingRunner` a step is planned and launched before the previous one is collected, so that its tokens
        come with the next call.
        Raises `RankLostError` when the models' mesh has lost a rank: the core is dead then.
        """
        began = self._clock()
        for pin in self._pins.due(began) if self._pins.is_waiting else ():
            if self._pins.allocate(pin, began):
                self._start_pin(pin, began)
        outputs = self._step(began)
        # What interrupted the step is read before the next one.
        self._interruption.clear()
        return self._pins.settle(outputs, began) if self._pins.computing else outputs

    def _step(self, began: float) -> list[SequenceOutput]:
        outputs = self._admit_compiled() + self._live.end_late(self._schedulers, began)
        computable = self._without_idle_work(self._computable(), began)
        due = {s.name: s.deadlines.earliest for s in computable}
        for name in self._steps.turns.order(due):
            model = self._models[name]
            scheduler = model.scheduler
            overlaps = not model.speculator.is_on and self._steps.may_overlap(model)
            if not overlaps:
                outputs += self._steps.collect()
            plan = scheduler.schedule(self._steps.count, began)
            if plan is None:
                continue
            self._steps.count += 1
            if not overlaps:
                model.speculator.draft(plan)
                if len(due) == 1 and not self._grammars:
                    plan = model.decode_ahead(plan, self._routes)
            outputs += self._steps.launch(scheduler, plan) if overlaps else self._steps.execute(model, plan, began)
            model.watch_queue()
            return outputs
        if self._steps.num_in_flight:
            return outputs + self._steps.collect()
        if any(s.has_work and not s.seconds_held(began) for s in computable):
            raise IntegrityError(f"{', '.join(due)} have work, but no sequence of theirs can be scheduled")
        return outputs

    def _computable(self) -> list[Scheduler]:
        """Return the schedulers with work whose model is loaded. Raises why one with work will never be."""
        computable = []
        for model in self._models.values():
            if model.scheduler.has_work:
                runner = model.runner
                if runner.is_loaded:
                    computable.append(model.scheduler)
                elif runner.load_error is not None:
                    raise runner.load_error
        return computable

    def _without_idle_work(self, computable: list[Scheduler], now: float) -> list[Scheduler]:
        """Return the schedulers that may compute: while one of them has work that was asked for, idle work stops, and a
        scheduler without other work waits."""
        # Waiting raises classes, and a high enough one is no idle work any more.
        for scheduler in computable:
            scheduler.waiting.lift(now, scheduler.knobs.ageing_seconds)
        asked = [scheduler for scheduler in computable if scheduler.has_asked_work]
        if not asked:
            return computable
        for scheduler in computable:
            scheduler.stop_idle_work(now)
        return asked

    @property
    def pause_seconds(self) -> float:
        """Seconds until the next step has work, while all waiting sequences are held back; else 0."""
        now = self._clock()
        asked = any(s.has_asked_work for s in self._schedulers)
        held = [
            model.scheduler.seconds_held(now) if model.runner.is_loaded else _LOAD_PATIENCE_SECONDS
            for model in self._models.values()
            if model.scheduler.has_work and (model.scheduler.has_asked_work or not asked)
        ]
        if not held and not self._grammars:
            return self._pins.seconds_until_due(now) if self._pins.is_waiting else 0.0
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
        for scheduler in self._schedulers:
            scheduler.close()
        while self._releases:
            self._releases.pop()()

    def set_knobs(self, changes: Mapping[str, KnobValue], model: str | None = None, keep: bool = False) -> None:
        """Change the named knobs of `model` (None: of every model) from the next step on; see `SetKnobs`.

        Raises `InvalidRequestError` and changes nothing if one of them is refused.
        """
        for name in self._models if model is None else [model]:
            self._require_drafter(changes.get("speculation"), name)
        layouts = self._new_layouts(self._knobs.active | self._knobs.after(changes, model))
        if layouts:
            self._pins.require_room(layouts, self._schedulers)
        was_fast = {served.name: served.computes_prompts_fast for served in self._models.values()}
        self._knobs.change(changes, model, keep)
        if "threads" in changes and self._use_threads is not None:
            self._use_threads(next(iter(self._knobs.active.values())).threads)
        for name, served in self._models.items():
            served.set_knobs(self._knobs.of(name))
            scheduler = served.scheduler
            is_cold = name in layouts or not scheduler.knobs.prefix_caching
            if is_cold or served.computes_prompts_fast != was_fast[name]:
                # Prompts no longer find what was computed for them: it is computed again once they do.
                for pin in self._pins.of(name):
                    self._release_pin(pin)
            if not scheduler.knobs.prefix_caching:
                scheduler.pool.drop_cache()
            if name in layouts:
                self._lay_out(served, layouts[name])

    def _new_layouts(self, knobs: Mapping[str, Knobs]) -> dict[str, KVLayout]:
        """Return the layouts of the models whose cache `knobs` give another dtype."""
        layouts = ((name, model.layout_with(knobs[name].kv_dtype)) for name, model in self._models.items())
        return {name: layout for name, layout in layouts if layout is not None}

    def _lay_out(self, model: ServedModel, layout: KVLayout) -> None:
        """Give `model`, which has no pinned blocks, blocks of `layout`."""
        model.scheduler.lay_out(layout, self._clock())
        for served in self._models.values():
            served.speculator.lay_out(model.name, layout)
        model.runner.use_kv_dtype(layout.dtype)

    def load_adapter(self, model: str, name: str, path: str, *, listed: bool = False) -> None:
        """Serve the PEFT folder `path` as adapter `name` of `model`; `listed`: the core's specification names it.

        Raises `InvalidRequestError` for an unknown model or a name in use, `ModelFileError` for a bad folder.
        """
        self._model(model).scheduler.adapters.load(name, Path(path), listed=listed)

    def unload_adapter(self, model: str, name: str) -> None:
        """Refuse new requests with the adapter, and drop it when the last one has ended.

        Raises `InvalidRequestError` if there is no such adapter.
        """
        scheduler = self._model(model).scheduler
        scheduler.adapters.unload(name)
        scheduler.forget_adapters()

    def adapters(self, model: str) -> list[AdapterInfo]:
        """The adapters of `model`. Raises `InvalidRequestError` if it is unknown."""
        return self._model(model).scheduler.adapters.infos()

    # -- pinned prefixes -----------------------------------------------------------------------

    def pin(self, prefix: PinnedPrefix) -> None:
        """Compute `prefix` ahead, after everything that users wait for, and keep it cached until `unpin` (SPEC KV-06).

        Raises `InvalidRequestError` for an unknown model or a token that it does not have, and `PrefixError` for a
        prefix that is too long or too short, or takes more memory than may be pinned.
        """
        model = self._model(prefix.model)
        info = model.runner.info
        validate_token_ids("token_ids", prefix.token_ids, info.vocab_size)
        self._pins.add(prefix, model.scheduler, info.max_context)

    def unpin(self, model: str, name: str) -> None:
        """Drop a pinned prefix; its memory is free once no running request uses it. Raises `PrefixError` if unknown."""
        self._release_pin(self._pins.remove(model, name))

    def _start_pin(self, pin: Pin, now: float) -> None:
        """Queue the request that computes `pin` into the blocks allocated for it."""
        model = self._models[pin.prefix.model]
        fast = model.computes_prompts_fast
        request = self._pins.request(pin, fast=fast)
        sequence = Sequence.of_request(
            request,
            0,
            number=next(self._numbers),
            request_seed=0,
            eos_token_ids=(),
            max_context=model.runner.info.max_context,
            leader=None,
            now=now,
            fast=fast,
        )
        sequence.kv.pinned = pin.blocks
        self._live.add(model.scheduler, [sequence], now)

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
            model = self._model(chain.model)
            digest = model.scheduler.adapters.require(chain.adapter).digest if chain.adapter else b""
            validate_token_ids("token_ids", chain.token_ids, model.runner.info.vocab_size)
        except InvalidRequestError as error:
            raise KVTransferError(str(error), "refused") from error
        fast = model.computes_prompts_fast
        public = self._pins.public_head(model.scheduler, chain.salt, digest, chain.token_ids, fast=fast)
        return model.kv_transfer, root_digest(chain.salt, digest, fast=fast), public

    def stats(self, query_id: str = "") -> CoreStats:
        """Return counts and estimates. `blocks_total`: the blocks that a model would have in an arena of its own."""
        return CoreStats(
            query_id=query_id,
            steps=self._steps.count,
            arena_bytes=self._arena_bytes,
            slab_bytes=self._arena.slab_bytes,
            slabs_free=self._arena.num_free,
            models=[model_stats(model, self._knobs, self._pins.stats(name)) for name, model in self._models.items()],
            threads=self._threads_in_use(),
        )

    def check_integrity(self) -> None:
        """Check every invariant of the engine between steps; raises `IntegrityError` naming the violation.

        Every block is free, evictable (cached) or referenced, exactly once; reference counts equal the block tables
        that hold them; no slab has mixed owners; no step passed its token budget; only live requests hold anything.
        """
        self._arena.check_integrity()
        for model in self._models.values():
            model.speculator.check_integrity()
        for scheduler in self._schedulers:
            scheduler.check_integrity()
            self._pins.check_integrity(scheduler)
        self._live.check_integrity(self._schedulers)

    # -- models --------------------------------------------------------------------------------

    def _served(self, name: str, runners: Mapping[str, ModelRunner]) -> ServedModel:
        runner = runners[name]
        pool, adapters = BlockPool(name, runner.layout, self._arena), AdapterSlots(runner.adapters)
        scheduler = Scheduler(name, pool, self._knobs.of(name), adapters, self._clock, tables_of(pool))
        drafters = self._drafters(name, runners)
        return ServedModel(
            runner, scheduler, Speculator(scheduler, drafters, self._clock, most_drafts=runner.most_drafts)
        )

    def _drafters(self, name: str, runners: Mapping[str, ModelRunner]) -> dict[str, Drafter]:
        """Return the drafters of a model by the value of the knob `speculation` that selects them."""
        if not runners[name].most_drafts:
            return {}
        drafters: dict[str, Drafter] = {"prompt_lookup": PromptLookup()}
        if name in self._drafts:
            runner = runners[self._drafts[name]]
            pool = BlockPool(f"{runner.info.name} for {name}", runner.layout, self._arena)
            drafters["draft_model"] = DraftModel(runner, pool, self._clock)
        return drafters

    def _require_drafter(self, speculation: KnobValue, name: str) -> None:
        if speculation == "draft_model" and name in self._models and name not in self._drafts:
            raise InvalidRequestError(
                f"speculation = draft_model: {name} was loaded without a draft model; name one as its draft in the "
                "catalogue, or choose prompt_lookup or off",
                "speculation",
            )
        if speculation == "prompt_lookup" and name in self._models and not self._models[name].runner.most_drafts:
            raise InvalidRequestError(
                f"speculation = prompt_lookup: {name} runs where drafts cannot be verified; choose off", "speculation"
            )

    def _reclaim(self) -> bool:
        """Take back the arena memory that drafters borrowed; returns whether there was any."""
        gave = [model.speculator.give_way() for model in self._models.values()]
        return any(gave)
