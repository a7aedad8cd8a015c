"""The response cache: an equal request gets the kept answer, or joins the one that is being made (SPEC CA-01).

The key of an answer is a digest of everything that it depends on, and of whose it is.
"""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from operator import is_not

import msgspec

from classifier.decision import Decision
from gateway.base.inference_request import InferenceRequest
from gateway.base.knobs import KnobFile
from gateway.base.settings import Settings
from gateway.base.stores.redis_store import RedisStore
from gateway.base.stores.retries import background
from gateway.inference.answer import AnswerSource
from gateway.inference.answer_stores import (
    AnswerFile,
    AnswerStore,
    CacheKnobs,
    MemoryStore,
    SharedStore,
    answers_path,
    delete_answers_beyond,
)
from gateway.inference.generation import Generation
from gateway.inference.router import RoutingService
from gateway.inference.shared_generation import (
    KeptAnswer,
    Replay,
    SharedGeneration,
    SharedGenerationReader,
    kept_answer,
)
from gateway.runtime.peers import WorkerIdentity
from inference_core.io.files import JSON_ERRORS
from tiers.catalog.tier_spec import TierSpec

# Another number for another form of what is kept: answers of both never meet in one Redis.
VERSION = 4
_SAYING = ("parallel_tool_calls", "tool_choice")


def cache_key(request: InferenceRequest, decision: Decision, spec: TierSpec, catalogue: bytes) -> bytes:
    """32 bytes, equal for requests of one tenant that get the same answer under `catalogue`.

    The chosen tier is part of it, and so are the limits on which tiers may take over or see the request. What only
    words the answer (streaming, usage, tags) is not.
    """
    usual = spec.sampling.given()
    unset = {name: usual[name] for name in request.unset if name in usual}
    consent, asked = request.consent, request.generation
    parts = (
        VERSION,
        catalogue,
        request.caller.tenant,
        request.api,
        request.requested_model,
        asked.adapter,
        decision.tier,
        decision.inputs.prediction.classifier_version,
        msgspec.structs.replace(asked.sampling, **unset),
        None if asked.messages is None else [message.without_media for message in asked.messages],
        request.prompts,
        asked.max_tokens,
        asked.stop,
        asked.n,
        request.best_of,
        asked.echo,
        asked.include_stop,
        asked.reasoning_effort,
        asked.reasoning_budget,
        asked.template_variables,
        asked.extra,
        asked.tooling,
        # Sent to a server elsewhere with their usual value only where the caller said so.
        sorted(name for name in asked.given if name in _SAYING),
        asked.response_format,
        asked.opaque,
        asked.passed.get("verbosity"),
        request.wanted_quality,
        max(request.options.min_tier or 1, request.caller.min_tier or 1),
        request.max_cost_usd,
        None if consent.tiers is None else sorted(consent.tiers),
        consent.local,
        *(() if decision.inputs.rules is None else decision.inputs.rules.names),
    )
    return hashlib.blake2b(_encode(parts), digest_size=32).digest()


class CatalogueDigest:
    """The digest of all tiers of a catalogue and of their models' weights (SPEC CA-03), computed again when one of them
    has been replaced."""

    def __init__(self) -> None:
        self._specs: list[TierSpec] = []
        self._weights: list[str] = []
        self._digest = b""

    def of(self, specs: Sequence[TierSpec], fingerprint: str, weights: list[str]) -> bytes:
        """`fingerprint`: of the models behind the tiers (`Catalog.fingerprint`), which knows files by their names only.
        `weights`: content hashes of the tiers' models (`Tier.weights`)."""
        if len(specs) != len(self._specs) or weights != self._weights or any(map(is_not, specs, self._specs)):
            self._specs, self._weights = list(specs), weights
            self._digest = hashlib.blake2b(_encode((fingerprint, self._specs, weights)), digest_size=16).digest()
        return self._digest


# As it stands: a schema whose properties come in another order makes another answer.
_encode = msgspec.msgpack.Encoder().encode


log = logging.getLogger(__name__)

# Who waits together: requests of one key, read in the same way, no less urgent than each other, and with the same
# limits of a budget.
SharedKey = tuple[bytes, bool, bool | None, int, frozenset[tuple[str, int]] | None]


class ResponseCache:
    """Where the answers of a process come from: a generation of their own, one under way, or `store`.

    The route is chosen before, and is part of the key: a hit has a decision of its own, and no classifier, catalogue
    or experiment meets answers that another one has led to.
    """

    def __init__(self, knobs: KnobFile[CacheKnobs], store: AnswerStore, routing: RoutingService) -> None:
        self.knobs, self.store, self._routing = knobs, store, routing
        self._catalogue = CatalogueDigest()
        self._shared: dict[SharedKey, SharedGeneration] = {}

    async def source(
        self,
        request: InferenceRequest,
        decision: Decision,
        generate: Callable[[], Generation],
    ) -> AnswerSource:
        """Return what answers `request`; `generate` starts a generation for it."""
        if not self._concerns(request, decision):
            return generate()
        key = self._key(request, decision)
        if request.options.cache == "refresh":
            return SharedGenerationReader(self._start_shared(key, request, generate), decision, stream=request.stream)
        # Looked up now: a reload may replace them while the store is asked, and the key is of this catalogue.
        tiers = {number: self._routing.served.tier(number) for number in self._routing.served.tiers}
        if self._joinable(key, request) is None and (kept := await self._kept(key, request)) is not None:
            return Replay(kept, decision, tiers[kept.tier], "hit")
        shared = self._joinable(key, request)
        if shared is None:
            return SharedGenerationReader(self._start_shared(key, request, generate), decision, stream=request.stream)

        def another() -> SharedGeneration:
            return self._joinable(key, request) or self._start_shared(key, request, generate)

        return SharedGenerationReader(shared, decision, stream=request.stream, another=another)

    def _concerns(self, request: InferenceRequest, decision: Decision) -> bool:
        if request.options.cache == "off" or not self.knobs.active.enabled or decision.target is not None:
            return False
        spec = self._routing.served.spec(decision.tier)
        # An answer that its caller's own credential has paid is for that caller alone.
        if spec.asks_credential:
            return False
        return request.options.cache in ("use", "refresh") or request.is_deterministic(spec)

    def _key(self, request: InferenceRequest, decision: Decision) -> bytes:
        weights = [tier.weights for tier in self._routing.served.tiers.values()]
        catalogue = self._catalogue.of(self._routing.served.catalog.tiers, self._routing.served.fingerprint, weights)
        return cache_key(request, decision, self._routing.served.spec(decision.tier), catalogue)

    def _joinable(self, key: bytes, request: InferenceRequest) -> SharedGeneration | None:
        shared = self._shared.get(_shared_key(key, request))
        return None if shared is None or shared.abandoned else shared

    def _start_shared(
        self, key: bytes, request: InferenceRequest, generate: Callable[[], Generation]
    ) -> SharedGeneration:
        shared_key = _shared_key(key, request)
        keeps = _may_be_kept(request)

        def ended(shared: SharedGeneration) -> Awaitable[None] | None:
            # What a target said is not the answer of its tier, and what two tiers said is that of neither.
            made = shared.generation
            # Nor is what a budget has cut the whole answer.
            is_cut = made.limit is not None and any(delta.finish_reason == "length" for delta in shared.deltas)
            if shared.whole and keeps and not (made.tier.is_target or made.is_continued or is_cut):
                return self._keep(shared_key, shared)
            self._forget(shared_key, shared)
            return None

        shared = self._shared[shared_key] = SharedGeneration(generate(), ended)
        return shared

    def _forget(self, shared_key: SharedKey, shared: SharedGeneration) -> None:
        if self._shared.get(shared_key) is shared:
            del self._shared[shared_key]

    async def _keep(self, shared_key: SharedKey, shared: SharedGeneration) -> None:
        """Put the answer away; who asks meanwhile still reads the shared generation."""
        try:
            value = _encode(kept_answer(shared.generation, shared.deltas))
            if len(value) <= self.knobs.active.max_bytes:
                await self.store.put(shared_key[0], value)
        except Exception as error:
            log.error("an answer is not kept: %s", type(error).__name__, exc_info=error)
        finally:
            self._forget(shared_key, shared)

    async def _kept(self, key: bytes, request: InferenceRequest) -> KeptAnswer | None:
        if not _may_be_kept(request):
            return None
        value = await self.store.get(key)
        try:
            return None if value is None else _decode(value)
        except JSON_ERRORS as error:
            log.warning("a kept answer cannot be read: %s", error)
            return None


def _shared_key(key: bytes, request: InferenceRequest) -> SharedKey:
    limits = None if request.limits is None else frozenset(request.limits.tokens.items())
    return key, request.stream, request.options.continues, request.generation.priority, limits


def _may_be_kept(request: InferenceRequest) -> bool:
    """Whether the request consents to storing its texts and no adapter answered: only the core knows whether the
    adapter of a name still has the same weights."""
    return request.consent.reuse and not request.generation.adapter


_decode = msgspec.msgpack.Decoder(KeptAnswer).decode


@asynccontextmanager
async def running_cache(
    settings: Settings,
    worker: WorkerIdentity | None,
    redis: RedisStore | None,
    routing: RoutingService,
    on_failure: Callable[[], None],
) -> AsyncIterator[ResponseCache]:
    """The cache of the process `worker`, whose knobs follow their file; each failure of Redis calls `on_failure`."""
    knobs = KnobFile(CacheKnobs, "cache", settings.cache_knobs_path)
    # A redacted answer would not be the answer, and Redis may write what it holds to a disk.
    store: AnswerStore = (
        MemoryStore(knobs) if redis is None or settings.redaction else SharedStore(knobs, redis, on_failure)
    )
    follow = partial(knobs.follow, settings.artefact_poll_seconds)
    async with background(follow, "knobs of the cache"), _kept_over_restarts(settings, worker, store):
        yield ResponseCache(knobs, store, routing)


@asynccontextmanager
async def _kept_over_restarts(
    settings: Settings, worker: WorkerIdentity | None, store: AnswerStore
) -> AsyncIterator[None]:
    """Let the cache in memory outlive the process, where texts may be written down."""
    number, count = (0, 1) if worker is None else (worker.number, worker.count)
    file = AnswerFile(answers_path(settings.data_path, number))
    if number == 0:
        await asyncio.to_thread(delete_answers_beyond, settings.data_path, count)
    answers = await asyncio.to_thread(file.take)
    may_write = settings.cache_over_restarts and not settings.redaction and settings.text_days != 0
    if not isinstance(store, MemoryStore) or not may_write:
        yield
        return
    store.adopt(answers)
    try:
        yield
    finally:
        await asyncio.to_thread(file.write, store.answers())
