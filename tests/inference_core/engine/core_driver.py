"""Drives a core of hash models, checks its invariants after every step and its outputs against the truth."""

import contextlib
from collections.abc import Callable, Mapping, Sequence

import msgspec
from letters import know_grammars, matcher_of

from inference_core.engine.core import Core
from inference_core.engine.pinned_prefixes import PinnedPrefix
from inference_core.engine.sequence import choice_seed
from inference_core.errors import BadLogitsError, QueueFullError
from inference_core.execution.runner import OverlappingRunner
from inference_core.kv_cache.layout import KVDtype
from inference_core.protocol import AddRequest, Knobs, SamplingParams, SequenceOutput, TokenLogprob
from inference_core.protocol.kv_blocks import BlockChain, BlockFrame
from inference_core.step_plan import PENDING, SampleSpec, ScheduledSequence, StepPlan, StepResult
from tests.inference_core.hash_model import GREEDY, HashModelRunner
from tests.support.clock import Clock

BLOCK = 4
SLAB_BYTES = 1024  # 16 blocks of 4 tokens at width 1, 5 at width 3


class FaultyRunner(HashModelRunner):
    """A hash model that can be made to fail, after it has overwritten what it was allowed to write, or `early`, before.

    `fault`: raised once. `poisoned`: sequences with which every step fails. `most_tokens`: larger steps lack memory.
    """

    most_decode_steps = 1 << 30
    fault: Exception | None = None
    early = False
    most_tokens = 1 << 30
    plans: list[StepPlan]
    poisoned: frozenset[str] = frozenset()
    failed_alone: frozenset[str] = frozenset()
    copied = 0
    offloaded = restored = 0

    def run(self, plan: StepPlan) -> StepResult:
        self.plans = [*getattr(self, "plans", [])[-3:], plan]
        try:
            return self._run(plan)
        except Exception as error:
            if len(plan.sequences) == 1 and not isinstance(error, MemoryError):
                self.failed_alone |= {plan.sequences[0].sequence_id}
            raise

    def _run(self, plan: StepPlan) -> StepResult:
        lasting = self._lasting_fault(plan)
        if self.early and (lasting or (self.fault and not isinstance(self.fault, BadLogitsError))):
            fault, self.fault = self.fault, None
            raise lasting or fault
        result = super().run(plan)
        self.copied += len(plan.copies)
        self.offloaded += len(plan.offloads)
        self.restored += len(plan.restores)
        if lasting is not None:
            raise lasting
        fault, self.fault = self.fault, None
        if isinstance(fault, BadLogitsError):
            # Undrawable rows belong to this step only if there are such rows.
            rows = [row for row in fault.rows if row < sum(s.sample is not None for s in plan.sequences)]
            if rows:
                raise BadLogitsError(rows, self.info.vocab_size)
        elif fault is not None:
            raise fault
        return result

    def _lasting_fault(self, plan: StepPlan) -> Exception | None:
        if self.poisoned & {s.sequence_id for s in plan.sequences}:
            return RuntimeError("poisoned")
        return MemoryError() if plan.num_tokens > self.most_tokens else None


class GuessingRunner(FaultyRunner):
    """A hash model that imitates another one except for some histories."""

    wrong_of_ten = 3

    def imitate(self, target: HashModelRunner) -> None:
        self._root = target._root

    def _draw(self, history: bytes, seed: int | None, masked: tuple[int, ...]) -> int:
        token = super()._draw(history, seed, masked)
        if history[-1] % 10 >= self.wrong_of_ten:
            return token
        return next(other % 40 for other in range(token + 1, token + 40) if other % 40 not in masked)


class Device:
    """Carries out launched steps of all its models in the order of launches: when they are landed, or at once if
    `prompt`. Everything between launch and collection may overwrite what a step reads."""

    def __init__(self) -> None:
        self.prompt = False
        self.jobs: list[_Job] = []

    def add(self, job: "_Job") -> None:
        self.jobs.append(job)
        if self.prompt:
            self.finish(job)

    def finish(self, job: "_Job") -> StepResult:
        while job in self.jobs:
            first = self.jobs.pop(0)
            try:
                first.result = first.runner.carry_out(first.plan)
            except Exception as error:
                # Whatever was launched after a step that failed fails too.
                for each in (first, *self.jobs):
                    each.error = error
                self.jobs.clear()
        if job.error is not None:
            raise job.error
        return job.result


class _Job:
    def __init__(self, runner: "LateRunner", plan: StepPlan) -> None:
        self.runner = runner
        self.plan = plan
        self.result: StepResult | None = None
        self.error: Exception | None = None


class LateRunner(FaultyRunner, OverlappingRunner):
    """The same on a `device`, which the driver gives it. `overlapped`: launches that knew not all of their tokens."""

    most_decode_steps = 1
    device: Device
    fault_at_launch: Exception | None = None
    launches = 0
    overlapped = 0

    def draws_ahead(self, spec: SampleSpec) -> bool:
        return spec.params.presence_penalty == 0 and spec.matcher is None

    def launch(self, plan: StepPlan) -> Callable[[], StepResult]:
        fault, self.fault_at_launch = self.fault_at_launch, None
        if fault is not None:
            raise fault
        self.launches += 1
        self.overlapped += any(PENDING in share.token_ids for share in plan.sequences)
        for share in plan.sequences:
            assert share.sample is None or PENDING not in share.token_ids or self.draws_ahead(share.sample)
        job = _Job(self, StepPlan(plan.step, plan.model, [_copy(s) for s in plan.sequences], list(plan.copies)))
        job.plan.offloads.extend(plan.offloads)
        job.plan.restores.extend(plan.restores)
        self.device.add(job)
        return lambda: self.device.finish(job)

    def run(self, plan: StepPlan) -> StepResult:
        assert not self.device.jobs, "a step is run while others are under way"
        return super().run(plan)

    def use_kv_dtype(self, dtype: KVDtype) -> None:
        # As if the steps launched before it had been carried out in order; one that fails says so to who collects it.
        while self.device.jobs:
            with contextlib.suppress(Exception):
                self.device.finish(self.device.jobs[0])
        super().use_kv_dtype(dtype)

    def carry_out(self, plan: StepPlan) -> StepResult:
        drawn = self._drawn = getattr(self, "_drawn", {})
        for share in plan.sequences:
            share.token_ids = [drawn[share.sequence_id] if t == PENDING else t for t in share.token_ids]
        result = super().run(plan)
        for share, tokens in zip(plan.sequences, result.sampled, strict=True):
            if tokens:
                drawn[share.sequence_id] = tokens[0].token_id
        return result


def _copy(share: ScheduledSequence) -> ScheduledSequence:
    sample = None if share.sample is None else msgspec.structs.replace(share.sample)
    return msgspec.structs.replace(
        share,
        token_ids=list(share.token_ids),
        block_table=list(share.block_table),
        sample=sample,
        window_tables=[list(table) for table in share.window_tables],
    )


def greedy(max_tokens: int, **fields: object) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **fields)


class CoreDriver:
    """A core over `models` (name to width of a token's KV) on a virtual clock, with a record of its outputs."""

    def __init__(
        self,
        models: Mapping[str, int] | None = None,
        *,
        slabs: int = 8,
        knobs: Knobs | None = None,
        eos_probability: float = 0.0,
        max_context: int = 200,
        seconds_per_step: float | Mapping[str, float] = 0.01,
        seconds_per_token: float | Mapping[str, float] = 0.0,
        seconds_per_swap: float = 0.0,
        check: bool = True,
        seed: int = 0,
        overlap: bool = False,
        drafts: Mapping[str, str] | None = None,
        adapter_slots: int = 0,
        prompt_arithmetic: bool = False,
        pinned_share: float = 0.5,
        windows: Mapping[str, tuple[int, int]] | None = None,
    ) -> None:
        models = models or {"m": 1}
        self.clock = Clock(0.0)
        memory = bytearray(slabs * SLAB_BYTES)
        drafts = drafts or {}

        def cost(name: str, of: float | Mapping[str, float]) -> float:
            return of[name] if isinstance(of, Mapping) else of

        def kind(name: str) -> type[FaultyRunner]:
            return GuessingRunner if name in drafts.values() else LateRunner if overlap else FaultyRunner

        self.runners = {
            name: kind(name)(
                name,
                memory,
                SLAB_BYTES,
                block_size=BLOCK,
                width=width,
                vocab_size=50,
                max_context=max_context,
                eos_probability=eos_probability,
                clock=self.clock,
                seconds_per_step=cost(name, seconds_per_step),
                seconds_per_token=cost(name, seconds_per_token),
                seconds_per_swap=seconds_per_swap,
                adapter_slots=adapter_slots,
                prompt_arithmetic=prompt_arithmetic,
                window=window,
                window_groups=window_groups,
            )
            for name, width in models.items()
            for window, window_groups in ((windows or {}).get(name, (0, 0)),)
        }
        for target, draft in drafts.items():
            self.runners[draft].imitate(self.runners[target])
        self.device = Device()
        for runner in self.runners.values():
            if isinstance(runner, LateRunner):
                runner.device = self.device
        self.core = Core(
            self.runners,
            arena_bytes=len(memory),
            slab_bytes=SLAB_BYTES,
            knobs=knobs,
            clock=self.clock,
            seed=seed,
            drafts=drafts,
            pinned_share=pinned_share,
        )
        know_grammars(self.core)
        self.requests: dict[str, AddRequest] = {}
        self.adapters: dict[str, bytes] = {}
        self.fast_until: dict[str, int] = {}
        self.tokens: dict[tuple[str, int], list[int]] = {}
        self.scores: dict[tuple[str, int], list[TokenLogprob]] = {}
        self.finished: dict[tuple[str, int], SequenceOutput] = {}
        self.handed: list[tuple[tuple[str, str | None, bytes], list[int]]] = []
        self.first_token_step: dict[tuple[str, int], int] = {}
        self.steps = 0
        self._check = check

    # -- driving -------------------------------------------------------------------------------

    def add(self, prompt: Sequence[int], model: str = "m", sampling: SamplingParams = GREEDY, **fields: object) -> str:
        request_id = str(fields.pop("request_id", f"r{len(self.requests)}"))
        request = AddRequest(
            request_id=request_id, model=model, prompt_token_ids=list(prompt), sampling=sampling, **fields
        )
        self.core.add(request)
        drawn_from = len(request.prompt_token_ids) if request.drawn_from is None else request.drawn_from
        self.fast_until[request_id] = drawn_from * self.core._models[model].computes_prompts_fast
        if sampling.grammar is not None:
            # Compiled already, but queued by the next step only: it would come after what is added until then.
            for refused in self.core._admit_compiled():
                raise QueueFullError(str(refused.error))
        self.adapters[request_id] = self.adapter_digest(request)
        self.requests[request_id] = request
        for index in range(request.n):
            self.tokens[request_id, index] = []
            self.scores[request_id, index] = []
        return request_id

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.record(self.core.step())
            self.steps += 1
            if self._check:
                self.core.check_integrity()

    def drain(self, limit: int = 2_000) -> None:
        """Step until nothing is left; fails if `limit` steps do not suffice."""
        for _ in range(limit):
            if not self.core.has_work:
                return
            # As long as the loop that serves would sleep.
            self.clock.advance(self.core.pause_seconds)
            self.step()
        raise AssertionError(f"still at work after {limit} steps: {self.core.stats()}")

    def abort(self, request_id: str, index: int | None = None) -> None:
        self.record(self.core.abort(request_id, index))
        if self._check:
            self.core.check_integrity()

    def record(self, outputs: list[SequenceOutput]) -> None:
        for output in outputs:
            key = (output.request_id, output.index)
            assert key not in self.finished, f"{key} spoke after it finished"
            if output.token_ids:
                self.first_token_step.setdefault(key, self.steps)
            if output.prompt_logprobs:
                assert not output.token_ids, f"{key}: scores come by themselves"
                assert not self.tokens[key], f"{key}: scores come before the first token"
                self.scores[key] += output.prompt_logprobs
            self.tokens[key] += output.token_ids
            if output.finish_reason is not None:
                self.finished[key] = output
                if output.finish_reason == "error":
                    assert self.may_fail(output), f"{key} failed though it did nothing wrong: {output.error}"
                self._verify(self.requests[output.request_id], output)

    def pin(self, prefix: PinnedPrefix) -> None:
        """Pin a prefix, which requests of its tenant may find from now on; those of all if it is public."""
        self.core.pin(prefix)
        self.handed.append(((prefix.model, prefix.tenant, b""), prefix.token_ids))
        if self._check:
            self.core.check_integrity()

    def take(self, chain: BlockChain, frame: BlockFrame) -> int:
        """Import a frame, whose blocks requests may find from now on."""
        held = self.core.import_blocks(chain, frame)
        self.handed.append(((chain.model, chain.salt, b""), chain.token_ids))
        if self._check:
            self.core.check_integrity()
        return held

    # -- truth ---------------------------------------------------------------------------------

    def expected(self, request: AddRequest, index: int) -> list[int]:
        """The tokens of a choice as computed without any cache; of an unseeded request, only when greedy."""
        if request.prefill:
            return []
        runner = self.runners[request.model]
        room = max(1, runner.info.max_context - len(request.prompt_token_ids))
        seed = choice_seed(request.sampling.seed or 0, index)
        limit = min(request.sampling.max_tokens, room)
        return runner.expected_tokens(
            request.prompt_token_ids,
            limit,
            request.sampling,
            seed,
            self.adapters[request.request_id],
            matcher_of(request.sampling.grammar),
            self.fast_until[request.request_id],
        )

    def _verify(self, request: AddRequest, output: SequenceOutput) -> None:
        tokens = self.tokens[output.request_id, output.index]
        truth = self.expected(request, output.index)
        if output.finish_reason in ("abort", "error"):
            truth = truth[: len(tokens)]
        assert tokens == truth, f"{output.request_id}/{output.index} said {tokens}, not {truth}"
        self._verify_scores(request, output)
        assert output.completion_tokens == len(tokens)
        prompt_tokens = len(request.prompt_token_ids)
        assert output.prompt_tokens == ((prompt_tokens - 1) // BLOCK * BLOCK if request.prefill else prompt_tokens)
        if self._check:
            assert output.cached_tokens <= self._longest_shared_prefix(request, output.index)

    def _verify_scores(self, request: AddRequest, output: SequenceOutput) -> None:
        prompt = request.prompt_token_ids
        scores = self.scores[output.request_id, output.index]
        if request.sampling.prompt_logprobs is None or output.index:
            assert not scores
            return
        truth = self.runners[request.model].expected_scores(
            prompt, self.adapters[request.request_id], self.fast_until[request.request_id]
        )
        if output.finish_reason in ("abort", "error"):
            truth = truth[: len(scores)]
        assert [score.logprob for score in scores] == truth
        assert [score.token_id for score in scores] == prompt[1 : len(truth) + 1]

    def _longest_shared_prefix(self, request: AddRequest, index: int) -> int:
        """The most tokens a cache may have provided: a prefix that some other choice of this scope has had."""
        prompt = request.prompt_token_ids
        longest = 0
        for (request_id, other_index), tokens in self.tokens.items():
            other = self.requests[request_id]
            if (request_id, other_index) != (request.request_id, index) and self._scope(other) == self._scope(request):
                longest = max(longest, _common_prefix(prompt, other.prompt_token_ids + tokens))
        model, _, adapter = self._scope(request)
        for scope, token_ids in self.handed:
            # Scopes without a tenant are those of public prefixes.
            if scope in (self._scope(request), (model, None, adapter)):
                longest = max(longest, _common_prefix(prompt, token_ids))
        return min(longest, len(prompt) - 1) // BLOCK * BLOCK

    def _scope(self, request: AddRequest) -> tuple[str, str, bytes]:
        return request.model, request.salt, self.adapters[request.request_id]

    def adapter_digest(self, request: AddRequest) -> bytes:
        """Of the adapter that a request that was just added has; b"" for none."""
        slots = self.scheduler(request.model).adapters
        return slots.require(request.adapter).digest if request.adapter else b""

    def may_fail(self, output: SequenceOutput) -> bool:
        """Whether a step failed with this choice alone, it could not be drawn, or its strict deadline passed."""
        request = self.requests[output.request_id]
        if output.error_kind == "overloaded" and request.strict_deadline and request.deadline is not None:
            return request.deadline < self.clock() and not output.completion_tokens
        failed_alone = self.runners[request.model].failed_alone
        return f"{output.request_id}/{output.index}" in failed_alone or "row(s)" in str(output.error)

    # -- views ---------------------------------------------------------------------------------

    def scheduler(self, model: str = "m"):
        return self.core._models[model].scheduler

    def pool(self, model: str = "m"):
        return self.scheduler(model).pool

    @property
    def arena(self):
        return self.core._arena

    def last_plan(self, model: str = "m") -> StepPlan:
        return self.runners[model].plans[-1]

    def assert_all_free(self) -> None:
        """Nothing is referenced, and without the cache every slab is back in the arena."""
        self.core.check_integrity()
        assert all(self.pool(model).num_referenced == 0 for model in self.runners)
        self.core.set_knobs({"prefix_caching": False})
        assert self.arena.num_free == self.arena.num_slabs
        assert all(self.pool(model).num_evictable == 0 for model in self.runners)


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    length = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        length += 1
    return length
