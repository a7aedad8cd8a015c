"""The stateful property of a core: random arrivals, aborts, faults and knob changes never break it."""

import logging
from contextlib import suppress
from typing import ClassVar

import hypothesis.strategies as st
import msgspec
from core_driver import BLOCK, CoreDriver
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from letters import GRAMMARS

from inference_core.errors import BadLogitsError, InvalidRequestError, QueueFullError
from inference_core.protocol import Grammar, Knobs, SamplingParams

MAX_CONTEXT = 60
# More than there are slots.
ADAPTERS = ("x", "y", "z")
# Prompts are put together from few pieces, so that they share prefixes, and equal blocks follow different ones.
PIECES = [[1] * BLOCK, [2] * BLOCK, list(range(BLOCK)), [3], [4, 5]]
prompts = st.lists(st.sampled_from(PIECES), min_size=1, max_size=8).map(lambda pieces: [t for p in pieces for t in p])
samplings = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 2),
    max_tokens=st.integers(1, 25),
    min_tokens=st.integers(0, 1),
    ignore_eos=st.booleans(),
    presence_penalty=st.sampled_from([0.0, 0.0, 0.0, 0.5]),
    stop_token_ids=st.sampled_from([(), (7, 11)]),
    prompt_logprobs=st.sampled_from([None, None, None, 0]),
)
knob_settings = st.builds(
    Knobs,
    max_num_batched_tokens=st.integers(1, 24),
    max_num_seqs=st.integers(1, 6),
    prefill_chunk=st.integers(1, 12),
    prefix_caching=st.sampled_from([True, True, True, False]),
    block_moves_per_step=st.sampled_from([0, 1, 64]),
    host_cache_blocks=st.sampled_from([0, 2, 5, 30, 200]),
    batching=st.sampled_from(["continuous", "continuous", "dynamic", "static"]),
    max_queue_delay_ms=st.sampled_from([0.0, 30.0]),
    preferred_batch_sizes=st.sampled_from([[], [2, 4]]),
    max_join_penalty=st.sampled_from([1.0, 2.0, 50.0]),
    max_waiting=st.integers(4, 30),
    ageing_seconds=st.sampled_from([0.02, 0.5, 5.0]),
    auto_tune=st.booleans(),
    itl_objective_ms=st.sampled_from([1.0, 10.0, 1000.0]),
    decode_steps=st.sampled_from([1, 2, 3, 16]),
    max_draft_tokens=st.integers(0, 7),
    draft_control=st.sampled_from(["fixed", "adaptive"]),
    lookup_ngram=st.integers(1, 2),
    prefill_arithmetic=st.sampled_from(["fast", "fast", "exact"]),
    kv_dtype=st.sampled_from(["catalogue", "catalogue", "float32", "bfloat16"]),
)
# Faults are part of the game here; their tracebacks are noise.
for part in ("step_executor", "speculation.draft_model"):
    logging.getLogger(f"inference_core.{part}").setLevel(logging.CRITICAL)


class CoreMachine(RuleBasedStateMachine):
    """Subclasses choose `models` and the fewest slabs that hold one context, so that memory runs out often."""

    models: ClassVar[dict[str, int]]
    fewest_slabs: ClassVar[int]
    overlap: ClassVar[bool] = False
    drafts: ClassVar[dict[str, str]] = {}
    windows: ClassVar[dict[str, tuple[int, int]]] = {}
    ways: ClassVar = ("off", "prompt_lookup")

    @initialize(spare_slabs=st.integers(0, 2), knobs=knob_settings)
    def start(self, spare_slabs: int, knobs: Knobs) -> None:
        slabs = self.fewest_slabs + spare_slabs
        self.driver = CoreDriver(
            self.models,
            slabs=slabs,
            knobs=knobs,
            eos_probability=0.03,
            max_context=MAX_CONTEXT,
            seconds_per_token=0.001,
            overlap=self.overlap,
            drafts=self.drafts,
            adapter_slots=2,
            prompt_arithmetic=True,
            windows=self.windows,
        )
        self._speculate(self.ways[-1])
        for model in self.models:
            for adapter in ADAPTERS:
                self.driver.core.load_adapter(model, adapter, f"{adapter}-1")
        self.versions = 1

    @rule(
        model=st.integers(0, 9),
        prompt=prompts,
        sampling=samplings,
        n=st.sampled_from([1, 1, 2, 4]),
        priority=st.integers(0, 2),
        idle=st.sampled_from([False, False, True]),
        due=st.none() | st.floats(0, 1),
        strict_deadline=st.booleans(),
        salt=st.sampled_from(["", "tenant"]),
        speculate=st.sampled_from([True, True, True, False]),
        adapter=st.sampled_from(["", "", *ADAPTERS]),
        grammar=st.sampled_from([None, None, None, *GRAMMARS]),
    )
    def add(
        self,
        model: int,
        prompt: list[int],
        due: float | None,
        sampling: SamplingParams,
        grammar: Grammar | None = None,
        **fields: object,
    ) -> None:
        if grammar is not None:
            # What ends an answer is the grammar's to say.
            sampling = msgspec.structs.replace(
                sampling, grammar=grammar, min_tokens=0, ignore_eos=False, stop_token_ids=()
            )
        name = sorted(self.models)[model % len(self.models)]
        deadline = None if due is None else self.driver.clock() + due
        if fields.get("adapter") not in self.adapters(name):
            fields["adapter"] = ""
        try:
            self.driver.add(prompt, name, sampling, deadline=deadline, **fields)
        except QueueFullError:
            assert self.driver.scheduler(name).waiting or (due is not None and fields["strict_deadline"])

    @precondition(lambda self: self.driver.requests)
    @rule(
        which=st.integers(0, 100),
        turn=st.lists(st.just(6), max_size=2),
        salt=st.sampled_from(["", "tenant"]),
        adapter=st.sampled_from(["", "", *ADAPTERS]),
        drawn=st.booleans(),
    )
    def continue_conversation(self, which: int, turn: list[int], salt: str, adapter: str, drawn: bool) -> None:
        """Add a known prompt again, with its answer so far, perhaps of another tenant or adapter, perhaps as drawn."""
        known = sorted(self.driver.tokens)
        request_id, index = known[which % len(known)]
        request = self.driver.requests[request_id]
        prompt = request.prompt_token_ids + self.driver.tokens[request_id, index] + turn
        if len(prompt) < MAX_CONTEXT:
            self.add(
                sorted(self.models).index(request.model),
                prompt,
                None,
                salt=salt,
                adapter=adapter,
                sampling=request.sampling,
                drawn_from=len(request.prompt_token_ids) if drawn else None,
            )

    def adapters(self, model: str) -> list[str]:
        """Those that new requests may have."""
        return [info.name for info in self.driver.core.adapters(model) if not info.leaving]

    @rule(model=st.integers(0, 9), adapter=st.sampled_from(ADAPTERS))
    def replace_adapter(self, model: int, adapter: str) -> None:
        """An adapter goes, at once or with its last request; a free name comes back with other content."""
        name = sorted(self.models)[model % len(self.models)]
        if adapter in self.adapters(name):
            self.driver.core.unload_adapter(name, adapter)
        if adapter not in [info.name for info in self.driver.core.adapters(name)]:
            self.versions += 1
            self.driver.core.load_adapter(name, adapter, f"{adapter}-{self.versions}")

    @rule(count=st.integers(10, 30))
    def step_often(self, count: int) -> None:
        self.driver.step(count)

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        self.driver.step(count)

    def live(self) -> list[str]:
        """Those of the driver's requests that have not ended."""
        return sorted(self.driver.core._live.by_id.keys() & self.driver.requests.keys())

    @precondition(lambda self: self.live())
    @rule(which=st.integers(0, 100))
    def abort(self, which: int) -> None:
        live = self.live()
        self.driver.abort(live[which % len(live)])

    @precondition(lambda self: self.live())
    @rule(which=st.integers(0, 100), index=st.integers(0, 3))
    def abort_choice(self, which: int, index: int) -> None:
        live = self.live()
        self.driver.abort(live[which % len(live)], index)

    @rule(knobs=knob_settings, way=st.integers(0, 59))
    def set_knobs(self, knobs: Knobs, way: int) -> None:
        changes = msgspec.structs.asdict(knobs)
        del changes["speculation"]
        # Larger blocks may leave no room for what is pinned.
        with suppress(InvalidRequestError):
            self.driver.core.set_knobs(changes)
        self._speculate(self.ways[way % len(self.ways)])

    def _speculate(self, way: str) -> None:
        for model in self.models if way != "draft_model" else self.drafts:
            self.driver.core.set_knobs({"speculation": way}, model)

    @rule(
        model=st.integers(0, 9),
        fault=st.sampled_from([RuntimeError("device lost"), BadLogitsError([0], 50), BadLogitsError([0, 2], 50)]),
        early=st.booleans(),
    )
    def break_next_step(self, model: int, fault: Exception, early: bool) -> None:
        runner = self.driver.runners[sorted(self.models)[model % len(self.models)]]
        runner.fault, runner.early = fault, early

    @precondition(lambda self: self.live())
    @rule(which=st.integers(0, 100), early=st.booleans())
    def poison(self, which: int, early: bool) -> None:
        """A live request with which every step fails from now on: it ends with an error, alone."""
        live = self.live()
        victim = self.driver.requests[live[which % len(live)]]
        runner = self.driver.runners[victim.model]
        runner.poisoned |= {f"{victim.request_id}/{i}" for i in range(victim.n)}
        runner.early = early

    @rule(model=st.integers(0, 9), tokens=st.sampled_from([1, 3, 1 << 30]))
    def limit_memory(self, model: int, tokens: int) -> None:
        """Let larger steps fail with MemoryError; answers must not change."""
        self.driver.runners[sorted(self.models)[model % len(self.models)]].most_tokens = tokens

    @rule(seconds=st.floats(0, 3))
    def time_passes(self, seconds: float) -> None:
        self.driver.clock.advance(seconds)

    @invariant()
    def integrity_holds(self) -> None:
        if hasattr(self, "driver"):
            self.driver.core.check_integrity()

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            self.driver.drain()
            assert not any(info.running or info.leaving for m in self.models for info in self.driver.core.adapters(m))
            for key in self.driver.tokens:
                assert key in self.driver.finished, f"{key} was lost"
            self.driver.assert_all_free()


class OneModelMachine(CoreMachine):
    """One scheduler that has the arena for itself: preemption and prefix sharing without neighbours."""

    models: ClassVar = {"m": 1}
    fewest_slabs = 1


class DecodingAheadMachine(CoreMachine):
    """Several decode steps in one call, which commands interrupt."""

    models: ClassVar = {"m": 1}
    fewest_slabs = 1
    ways = ("off",)

    @rule(steps=st.integers(2, 16))
    def decode_undisturbed(self, steps: int) -> None:
        self.driver.core.set_knobs({"decode_steps": steps, "itl_objective_ms": 60_000.0})
        self.driver.step(20)

    @rule()
    def interrupt(self) -> None:
        self.driver.core.interrupt()
        self.driver.step()


class ThreeModelMachine(CoreMachine):
    """Models with blocks of different sizes, so that slabs change hands and shapes."""

    models: ClassVar = {"a": 1, "b": 3, "c": 2}
    fewest_slabs = 3


class OverlappingMachine(CoreMachine):
    """Steps are planned while others are under way, on a device that takes its time or none."""

    models: ClassVar = {"a": 1, "b": 2}
    fewest_slabs = 2
    overlap = True
    ways = ("prompt_lookup", "off", "off", "off", "off", "off")

    @rule(prompt=st.booleans())
    def change_pace(self, prompt: bool) -> None:
        self.driver.device.prompt = prompt

    @rule(model=st.integers(0, 9))
    def break_next_launch(self, model: int) -> None:
        runner = self.driver.runners[sorted(self.models)[model % len(self.models)]]
        runner.fault_at_launch = RuntimeError("no room for the launch")


class SpeculatingMachine(CoreMachine):
    """One model drafts for another, which answers requests of its own too, in an arena that is too small for both."""

    models: ClassVar = {"draft": 1, "target": 1, "other": 2}
    fewest_slabs = 3
    drafts: ClassVar = {"target": "draft"}
    ways = ("off", "prompt_lookup", "draft_model", "draft_model", "draft_model")
