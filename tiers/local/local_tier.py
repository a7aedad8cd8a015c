"""A tier in this process: a model of a core under a decoding policy.

The latest statistics of a core are polled in the background and shared by its tiers.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import msgspec

from inference_core.errors import CoreError, CoreGoneError
from inference_core.io.background_tasks import repeated
from inference_core.protocol import CoreStats, ModelStats
from inference_core.tokenization.tokenizer import Tokenizer
from inference_core.transport.client import CoreClient
from tiers.catalog.catalog import CPU_CORE
from tiers.catalog.tier_spec import ChainOfThoughtSpec, SelfConsistencySpec, TierSpec
from tiers.errors import CatalogError, TierUnavailableError
from tiers.local.chain_of_thought import ChainOfThought
from tiers.local.decoder import Decoder
from tiers.local.policy import Plain, Policy
from tiers.local.self_consistency import SelfConsistency
from tiers.local.text_threads import TextThreads
from tiers.tier import Delta, GenerationRequest, Tier, TierLoad, UsageMeter


class CoreWatch:
    """Polls the statistics of `core` every `interval` seconds while at least one tier has opened it."""

    def __init__(self, core: CoreClient, interval: float = 0.5) -> None:
        self._answers = False
        self._core, self._interval = core, interval
        self._latest: CoreStats | None = None
        self._task: asyncio.Task[None] | None = None
        self._users = 0

    async def open(self) -> None:
        """Start polling; return when the first statistics are there. Raises CoreGoneError."""
        if self._latest is None:
            await self._refresh()
        self._users += 1
        if self._task is None:
            self._task = repeated(self._watch, "figures of a core")

    async def close(self) -> None:
        """Undo one `open`; the last one stops polling."""
        self._users -= 1
        if self._users == 0:
            await self.stop()

    async def stop(self) -> None:
        """Stop polling, however many have opened it. Idempotent."""
        if self._task is not None:
            task, self._task, self._latest = self._task, None, None
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    @property
    def healthy(self) -> bool:
        """Whether the core answered the last poll, is connected, and is not stuck according to its watchdog."""
        return self._answers and self._core.gone is None and self._core.stuck is None

    def note_gone(self) -> None:
        self._answers = False

    def model(self, name: str) -> ModelStats | None:
        """Return the latest statistics of one model, or None."""
        models = self._latest.models if self._latest is not None else []
        return next((m for m in models if m.name == name), None)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            with contextlib.suppress(CoreError):
                await self._refresh()

    async def _refresh(self) -> None:
        try:
            self._latest = await self._core.stats()
            self._answers = True
        except CoreError:
            self._answers = False
            raise


class LocalTier(Tier):
    """`spec.model` of `core`, whose client the owner starts before this tier and closes after it.

    With an `adapter` it answers by the model under that adapter, except requests that name another one (SPEC TI-10).
    `load_tokenizer` returns the model's tokeniser; it is called once, off the event loop. `watch` is shared by the
    tiers of one core, which the catalogue calls `core_name`. `max_context` and `num_layers` are 0 until `start` has
    asked the core. `threads`: encode long prompts.
    """

    def __init__(
        self,
        spec: TierSpec,
        core: CoreClient,
        load_tokenizer: Callable[[], Tokenizer],
        watch: CoreWatch,
        *,
        core_name: str = CPU_CORE,
        threads: TextThreads | None = None,
    ) -> None:
        if spec.model is None:
            raise CatalogError(f"tier '{spec.name}' has no model")
        self.name, self.number, self.model = spec.name, spec.number, spec.model
        self.adapter = spec.adapter or ""
        self.max_context = 0
        self.core_name = core_name
        self._spec, self._core, self._load_tokenizer, self._watch = spec, core, load_tokenizer, watch
        self._threads = threads or TextThreads()
        self._tokenizer: Tokenizer | None = None
        self._policy: Policy | None = None
        self._running = 0

    async def prepare(self) -> None:
        if self._tokenizer is None:
            self._tokenizer = await asyncio.to_thread(self._load_tokenizer)

    async def start(self) -> None:
        if self._policy is not None:
            return
        info = self._core.models.get(self.model)
        if info is None:
            served = ", ".join(self._core.models) or "none"
            raise TierUnavailableError(
                f"tier '{self.name}': the core does not serve '{self.model}'; it serves: {served}"
            )
        if self.adapter and self.adapter not in info.adapters:
            loaded = ", ".join(info.adapters) or "none"
            raise TierUnavailableError(
                f"tier '{self.name}': the core has no adapter '{self.adapter}' of {self.model}; it has: {loaded}"
            )
        await self.prepare()
        assert self._tokenizer is not None
        try:
            await self._watch.open()
        except CoreError as error:
            raise TierUnavailableError(f"tier '{self.name}': {error}") from error
        self.max_context = info.max_context
        self.num_layers = info.num_layers
        self.takes_chats = self._tokenizer.chat_template is not None
        self._policy = _policy(self._spec, self._core, self._tokenizer, info.max_context, self._threads)
        # What a model thinks in a format of its own may not begin in the middle of a turn.
        self.continues_chats = isinstance(self._policy, Plain) and not self._policy.decoder.calling.thinks

    async def close(self) -> None:
        """See `Tier.close`; the core's client stays open for its owner to close."""
        if self._policy is not None:
            self._policy = None
            await self._watch.close()

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        policy = self._started()
        calling = policy.decoder.calling
        # A meter of this answer alone: policies read it, and the same request may be answered again.
        meter = UsageMeter()
        request.meter.add(meter.usage)
        request = calling.prepared(request)
        request = msgspec.structs.replace(request, meter=meter, adapter=request.adapter or self.adapter)
        self._running += 1
        try:
            await policy.read(request)
            deltas = policy.stream(request)
            if calling.reads(request):
                deltas = calling.read(request, deltas)
            async with aclosing(deltas):
                async for delta in deltas:
                    yield delta
        except TierUnavailableError as error:
            if isinstance(error.__cause__, CoreGoneError):
                self._watch.note_gone()
            error.retry_after_seconds = self.load().predicted_wait_seconds
            raise
        finally:
            self._running -= 1

    def count_prompt_tokens(self, request: GenerationRequest) -> int:
        """Return the tokens that the model reads before its first token, the policy's instructions included."""
        return self._started().count_prompt_tokens(request, sys.maxsize)

    def prompt_tokens_up_to(self, request: GenerationRequest, most: int) -> int:
        """See `Tier.prompt_tokens_up_to`: text that cannot fit by its bytes is not encoded."""
        return self._started().count_prompt_tokens(request, most)

    @property
    def tokenizer(self) -> Tokenizer | None:
        return None if self._policy is None else self._policy.decoder.tokenizer

    @property
    def weights(self) -> str:
        """See `Tier.weights`, with the content hash of the adapter if it binds one; another one after a core has
        restarted with other files."""
        info = self._core.models.get(self.model)
        if info is None:
            return ""
        return f"{info.weights}:{info.adapters.get(self.adapter, '')}" if self.adapter else info.weights

    @property
    def num_running(self) -> int:
        """How many requests this tier is answering, those of other tiers on its model aside."""
        return self._running

    @property
    def watch(self) -> CoreWatch:
        """The statistics of its core, polled for all tiers that were built with this one."""
        return self._watch

    def load(self) -> TierLoad:
        """Return the latest statistics of the model's queue, which all tiers of the model share."""
        stats = self._watch.model(self.model)
        if self._policy is None or stats is None:
            return TierLoad(healthy=False, running=self._running)
        return TierLoad(
            healthy=self._watch.healthy,
            running=stats.running,
            waiting=stats.waiting,
            predicted_wait_seconds=stats.predicted_wait_seconds,
        )

    def _started(self) -> Policy:
        if self._policy is None:
            raise TierUnavailableError(f"tier '{self.name}' is not started")
        return self._policy


def _policy(spec: TierSpec, core: CoreClient, tokenizer: Tokenizer, max_context: int, threads: TextThreads) -> Policy:
    decoder = Decoder(
        core,
        str(spec.model),
        tokenizer,
        max_context=max_context,
        max_tokens=spec.max_tokens,
        default_max_tokens=spec.default_max_tokens,
        tier=spec.name,
        tool_dialect=spec.tool_dialect,
        threads=threads,
    )
    if decoder.calling.thinks and isinstance(spec.policy, SelfConsistencySpec | ChainOfThoughtSpec):
        raise CatalogError(f"tier '{spec.name}': {spec.model} thinks by itself (harmony); leave out the policy")
    if isinstance(spec.policy, SelfConsistencySpec):
        return SelfConsistency(decoder, spec.policy)
    if isinstance(spec.policy, ChainOfThoughtSpec):
        return ChainOfThought(decoder, spec.policy)
    return Plain(decoder)
