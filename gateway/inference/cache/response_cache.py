"""The response cache: an equal request gets the kept answer, or joins the one that is being made (SPEC CA-01); where an
operator wants it, another wording of the same prompt gets the kept answer too."""

import logging
from collections.abc import Awaitable, Callable

import msgspec

from classifier.decision import Decision
from gateway.base.knobs.file import KnobFile
from gateway.base.requests.inference_request import InferenceRequest
from gateway.inference.answering.answer import AnswerSource
from gateway.inference.answering.generation import Generation
from gateway.inference.cache.cache_key import CatalogueDigest, cache_key
from gateway.inference.cache.kept_answer import KeptAnswer, Replay, kept_answer
from gateway.inference.cache.knobs import CacheKnobs
from gateway.inference.cache.shared_generation import SharedGeneration, SharedGenerationReader
from gateway.inference.cache.similar_prompts import Embedding, SimilarPrompts, Wording, wording_of
from gateway.inference.cache.stores import AnswerStore
from gateway.inference.routing.router import RoutingService
from inference_core.io.json_errors import JSON_ERRORS
from quality.records.record import CacheUse

log = logging.getLogger(__name__)

# Who waits together: requests of one key, read in the same way and no less urgent than each other.
SharedKey = tuple[bytes, bool, int]


class ResponseCache:
    """Where the answers of a process come from: a generation of their own, one under way, or `store`.

    The route is chosen before, and is part of the key: a hit has a decision of its own, and no classifier, catalogue
    or experiment meets answers that another one has led to.
    """

    def __init__(self, knobs: KnobFile[CacheKnobs], store: AnswerStore, routing: RoutingService) -> None:
        self.knobs, self.store, self._routing = knobs, store, routing
        self.similar = SimilarPrompts(knobs)
        self._catalogue = CatalogueDigest()
        self._shared: dict[SharedKey, SharedGeneration] = {}

    async def source(
        self,
        request: InferenceRequest,
        decision: Decision,
        generate: Callable[[], Generation],
        embedding: Embedding | None = None,
    ) -> AnswerSource:
        """Return what answers `request`; `generate` starts a generation for it. `embedding`: of its prompt, by the
        classifier that decided; without it only an equal request's answer is found."""
        if not self._concerns(request, decision):
            return generate()
        key, wording = self._key(request, decision), self._wording(request, decision, embedding)
        if request.cache == "refresh":
            return SharedGenerationReader(
                self._start_shared(key, request, generate, wording), decision, stream=request.stream
            )
        # Looked up now: a reload may replace them while the store is asked, and the key is of this catalogue.
        tiers = {number: self._routing.served.tier(number) for number in self._routing.served.tiers}
        if self._joinable(key, request) is None and (entry := await self._found(key, wording, request)) is not None:
            kept, use = entry
            return Replay(kept, decision, tiers[kept.tier], use)
        shared = self._joinable(key, request)
        if shared is None:
            return SharedGenerationReader(
                self._start_shared(key, request, generate, wording), decision, stream=request.stream
            )

        def another() -> SharedGeneration:
            return self._joinable(key, request) or self._start_shared(key, request, generate, wording)

        return SharedGenerationReader(shared, decision, stream=request.stream, another=another)

    def _concerns(self, request: InferenceRequest, decision: Decision) -> bool:
        if request.cache == "off" or not self.knobs.active.enabled or decision.target is not None:
            return False
        spec = self._routing.served.spec(decision.tier)
        # An answer that its caller's own credential has paid is for that caller alone.
        if spec.asks_credential:
            return False
        return request.cache in ("use", "refresh") or request.is_deterministic(spec)

    def _wording(self, request: InferenceRequest, decision: Decision, embedding: Embedding | None) -> Wording | None:
        if not self.knobs.active.semantic or embedding is None or not _may_be_kept(request):
            return None
        return wording_of(request, embedding, lambda worded: self._key(worded, decision))

    def _key(self, request: InferenceRequest, decision: Decision) -> bytes:
        weights = [tier.weights for tier in self._routing.served.tiers.values()]
        catalogue = self._catalogue.of(self._routing.served.catalog.tiers, self._routing.served.fingerprint, weights)
        return cache_key(request, decision, self._routing.served.spec(decision.tier), catalogue)

    def _joinable(self, key: bytes, request: InferenceRequest) -> SharedGeneration | None:
        shared = self._shared.get((key, request.stream, request.generation.priority))
        return None if shared is None or shared.abandoned else shared

    def _start_shared(
        self, key: bytes, request: InferenceRequest, generate: Callable[[], Generation], wording: Wording | None
    ) -> SharedGeneration:
        place = key, request.stream, request.generation.priority
        keeps = _may_be_kept(request)

        def ended(shared: SharedGeneration) -> Awaitable[None] | None:
            # What a target said is not the answer of its tier.
            if shared.whole and keeps and not shared.generation.tier.is_target:
                return self._keep(place, shared, wording)
            self._forget(place, shared)
            return None

        shared = self._shared[place] = SharedGeneration(generate(), ended)
        return shared

    def _forget(self, place: SharedKey, shared: SharedGeneration) -> None:
        if self._shared.get(place) is shared:
            del self._shared[place]

    async def _keep(self, place: SharedKey, shared: SharedGeneration, wording: Wording | None) -> None:
        """Put the answer away; who asks meanwhile still reads the shared generation."""
        try:
            value = _encode(kept_answer(shared.generation, shared.deltas))
            if len(value) <= self.knobs.active.max_bytes:
                await self.store.put(place[0], value)
                if wording is not None:
                    await self.similar.put(wording, place[0])
        except Exception as error:
            log.error("an answer is not kept: %s", type(error).__name__, exc_info=error)
        finally:
            self._forget(place, shared)

    async def _found(
        self, key: bytes, wording: Wording | None, request: InferenceRequest
    ) -> tuple[KeptAnswer, CacheUse] | None:
        if (kept := await self._kept(key, request)) is not None:
            return kept, "hit"
        if wording is None or request.cache == "exact":
            return None
        answer = await self.similar.find(wording)
        kept = None if answer is None else await self._kept(answer, request)
        return None if kept is None else (kept, "similar")

    async def _kept(self, key: bytes, request: InferenceRequest) -> KeptAnswer | None:
        if not _may_be_kept(request):
            return None
        value = await self.store.get(key)
        try:
            return None if value is None else _decode(value)
        except JSON_ERRORS as error:
            log.warning("a kept answer cannot be read: %s", error)
            return None


def _may_be_kept(request: InferenceRequest) -> bool:
    """Whether the request consents to storing its texts and no adapter answered: only the core knows whether the
    adapter of a name still has the same weights."""
    return request.consent.reuse and not request.generation.adapter


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(KeptAnswer).decode
