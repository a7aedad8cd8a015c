"""The response cache: an equal request gets the kept answer, or joins the one that is being made (SPEC CA-01); where an
operator wants it, another wording of the same prompt gets the kept answer too."""

import logging
from collections.abc import Awaitable, Callable

import msgspec

from classifier.decision import Decision
from gateway.answering.answer import Source
from gateway.answering.generation import Generation
from gateway.cache.cache_key import CatalogueDigest, cache_key, is_deterministic
from gateway.cache.flight import Flight, FlightReader
from gateway.cache.kept_answer import KeptAnswer, Replay, kept_answer
from gateway.cache.knobs import CacheKnobs
from gateway.cache.similar_prompts import Embedding, SimilarPrompts, Wording, wording_of
from gateway.cache.stores import AnswerStore
from gateway.knobs.file import KnobFile
from gateway.requests.inference_request import Ask
from gateway.routing.router import RoutingService
from quality.records.record import CacheUse

log = logging.getLogger(__name__)

# Who waits together: requests of one key, read in the same way and no less urgent than each other.
FlightKey = tuple[bytes, bool, int]


class ResponseCache:
    """Where the answers of a process come from: a generation of their own, one under way, or `store`.

    The route is chosen before, and is part of the key: a hit has a decision of its own, and no classifier, catalogue
    or experiment meets answers that another one has led to.
    """

    def __init__(self, knobs: KnobFile[CacheKnobs], store: AnswerStore, routing: RoutingService) -> None:
        self.knobs, self.store, self._routing = knobs, store, routing
        self.similar = SimilarPrompts(knobs)
        self._catalogue = CatalogueDigest()
        self._flights: dict[FlightKey, Flight] = {}

    async def source(
        self, ask: Ask, decision: Decision, generate: Callable[[], Generation], embedding: Embedding | None = None
    ) -> Source:
        """What answers `ask`; `generate` begins a generation for it. `embedding`: of its prompt, by the classifier that
        has decided; without one, none but an equal request's answer does."""
        if not self._concerns(ask, decision):
            return generate()
        key, wording = self._key(ask, decision), self._wording(ask, decision, embedding)
        if ask.cache == "refresh":
            return FlightReader(self._take_off(key, ask, generate, wording), decision, stream=ask.stream)
        if self._joinable(key, ask) is None and (found := await self._found(key, wording, ask)) is not None:
            kept, use = found
            return Replay(kept, decision, self._routing.tier(kept.tier), use)
        flight = self._joinable(key, ask)
        if flight is None:
            return FlightReader(self._take_off(key, ask, generate, wording), decision, stream=ask.stream)

        def another() -> Flight:
            return self._joinable(key, ask) or self._take_off(key, ask, generate, wording)

        return FlightReader(flight, decision, stream=ask.stream, another=another)

    def _concerns(self, ask: Ask, decision: Decision) -> bool:
        if ask.cache == "off" or not self.knobs.in_force.enabled:
            return False
        return ask.cache in ("use", "refresh") or is_deterministic(ask, self._routing.spec(decision.tier))

    def _wording(self, ask: Ask, decision: Decision, embedding: Embedding | None) -> Wording | None:
        if not self.knobs.in_force.semantic or embedding is None or not _may_be_kept(ask):
            return None
        return wording_of(ask, embedding, lambda worded: self._key(worded, decision))

    def _key(self, ask: Ask, decision: Decision) -> bytes:
        catalogue = self._catalogue.of(self._routing.catalog.tiers, self._routing.fingerprint)
        return cache_key(ask, decision, self._routing.spec(decision.tier), catalogue)

    def _joinable(self, key: bytes, ask: Ask) -> Flight | None:
        flight = self._flights.get((key, ask.stream, ask.priority))
        return None if flight is None or flight.abandoned else flight

    def _take_off(self, key: bytes, ask: Ask, generate: Callable[[], Generation], wording: Wording | None) -> Flight:
        place = key, ask.stream, ask.priority
        keeps = _may_be_kept(ask)

        def ended(flight: Flight) -> Awaitable[None] | None:
            if flight.whole and keeps:
                return self._keep(place, flight, wording)
            self._land(place, flight)
            return None

        flight = self._flights[place] = Flight(generate(), ended)
        return flight

    def _land(self, place: FlightKey, flight: Flight) -> None:
        if self._flights.get(place) is flight:
            del self._flights[place]

    async def _keep(self, place: FlightKey, flight: Flight, wording: Wording | None) -> None:
        """Put the answer away; who asks meanwhile still reads the flight."""
        try:
            value = _encode(kept_answer(flight.generation, flight.deltas))
            if len(value) <= self.knobs.in_force.max_bytes:
                await self.store.put(place[0], value)
                if wording is not None:
                    await self.similar.put(wording, place[0])
        except Exception as error:
            log.error("an answer is not kept: %s", type(error).__name__, exc_info=error)
        finally:
            self._land(place, flight)

    async def _found(self, key: bytes, wording: Wording | None, ask: Ask) -> tuple[KeptAnswer, CacheUse] | None:
        if (kept := await self._kept(key, ask)) is not None:
            return kept, "hit"
        if wording is None or ask.cache == "exact":
            return None
        answer = await self.similar.find(wording)
        kept = None if answer is None else await self._kept(answer, ask)
        return None if kept is None else (kept, "similar")

    async def _kept(self, key: bytes, ask: Ask) -> KeptAnswer | None:
        if not _may_be_kept(ask):
            return None
        value = await self.store.get(key)
        try:
            return None if value is None else _decode(value)
        except msgspec.MsgspecError as error:
            log.warning("a kept answer cannot be read: %s", error)
            return None


def _may_be_kept(ask: Ask) -> bool:
    """Texts that nobody consented to storing are not; nor what an adapter said, since only the core knows whether the
    adapter of that name still has the same weights."""
    return ask.store_texts and not ask.adapter


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(KeptAnswer).decode
