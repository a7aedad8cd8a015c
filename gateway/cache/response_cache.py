"""The response cache: an equal request gets the kept answer, or joins the one that is being made (SPEC CA-01)."""

import logging
from collections.abc import Awaitable, Callable

import msgspec

from classifier.decision import Decision
from gateway.answer import Source
from gateway.ask import Ask
from gateway.cache.cache_key import CatalogueDigest, cache_key, is_deterministic
from gateway.cache.flight import Flight, FlightReader
from gateway.cache.kept_answer import KeptAnswer, Replay, kept_answer
from gateway.cache.knobs import CacheKnobs
from gateway.cache.stores import AnswerStore
from gateway.generation import Generation
from gateway.knob_file import KnobFile
from gateway.routing import RoutingService

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
        self._catalogue = CatalogueDigest()
        self._flights: dict[FlightKey, Flight] = {}

    async def source(self, ask: Ask, decision: Decision, generate: Callable[[], Generation]) -> Source:
        """What answers `ask`; `generate` begins a generation for it."""
        if not self._concerns(ask, decision):
            return generate()
        key = self._key(ask, decision)
        if ask.cache == "refresh":
            return FlightReader(self._take_off(key, ask, generate), decision, stream=ask.stream)
        if self._joinable(key, ask) is None and (kept := await self._kept(key, ask)) is not None:
            return Replay(kept, decision, self._routing.tier(kept.tier), "hit")
        flight = self._joinable(key, ask)
        if flight is None:
            return FlightReader(self._take_off(key, ask, generate), decision, stream=ask.stream)

        def another() -> Flight:
            return self._joinable(key, ask) or self._take_off(key, ask, generate)

        return FlightReader(flight, decision, stream=ask.stream, another=another)

    def _concerns(self, ask: Ask, decision: Decision) -> bool:
        if ask.cache == "off" or not self.knobs.in_force.enabled:
            return False
        return ask.cache is not None or is_deterministic(ask, self._routing.spec(decision.tier))

    def _key(self, ask: Ask, decision: Decision) -> bytes:
        catalogue = self._catalogue.of(self._routing.catalog.tiers, self._routing.fingerprint)
        return cache_key(ask, decision, self._routing.spec(decision.tier), catalogue)

    def _joinable(self, key: bytes, ask: Ask) -> Flight | None:
        flight = self._flights.get((key, ask.stream, ask.priority))
        return None if flight is None or flight.abandoned else flight

    def _take_off(self, key: bytes, ask: Ask, generate: Callable[[], Generation]) -> Flight:
        place = key, ask.stream, ask.priority
        keeps = _may_be_kept(ask)

        def ended(flight: Flight) -> Awaitable[None] | None:
            if flight.whole and keeps:
                return self._keep(place, flight)
            self._land(place, flight)
            return None

        flight = self._flights[place] = Flight(generate(), ended)
        return flight

    def _land(self, place: FlightKey, flight: Flight) -> None:
        if self._flights.get(place) is flight:
            del self._flights[place]

    async def _keep(self, place: FlightKey, flight: Flight) -> None:
        """Put the answer away; who asks meanwhile still reads the flight."""
        try:
            value = _encode(kept_answer(flight.generation, flight.deltas))
            if len(value) <= self.knobs.in_force.max_bytes:
                await self.store.put(place[0], value)
        except Exception as error:
            log.error("an answer is not kept: %s", type(error).__name__, exc_info=error)
        finally:
            self._land(place, flight)

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
