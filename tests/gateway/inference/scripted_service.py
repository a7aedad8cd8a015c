"""The service of a gateway over scripted tiers, without HTTP."""

from pathlib import Path
from typing import Any

from gateway.base.knobs import KnobFile
from gateway.inference.agreement import Agreements
from gateway.inference.answer import Answer
from gateway.inference.answer_stores import CacheKnobs, MemoryStore
from gateway.inference.escalation import ActiveProbes
from gateway.inference.response_cache import ResponseCache
from gateway.inference.router import RoutingService
from gateway.inference.routing_knobs import RoutingKnobFile
from gateway.inference.service import Service
from quality.records.record import Record
from tests.gateway.chats import chat
from tests.gateway.inference.known_probes import known_probes
from tests.support.app import scripted_tiers
from tests.support.scripted_classifier import ScriptedClassifier
from tiers.catalog.catalog import CatalogInUse
from tiers.catalog.load import load_catalog

CATALOG = load_catalog("laptop")


class ScriptedService:
    """The laptop catalogue's service, with these routing knobs, which keeps every record."""

    def __init__(self, *, cached: bool = False, probed: bool = False, **knobs: object) -> None:
        self.tiers, self.classifier, self.knobs = scripted_tiers(), ScriptedClassifier(), RoutingKnobFile()
        self.knobs.change(knobs)
        by_number = {tier.number: tier for tier in self.tiers}
        self.routing = RoutingService(CATALOG, by_number, self.classifier, None, self.knobs)
        self.agreements = Agreements(self.knobs, self.routing)
        pays = self.agreements.second_sample_pays
        self.probes = ActiveProbes(Path("none"), CatalogInUse(CATALOG), self.knobs, second_sample_pays=pays)
        self.probes.use(known_probes(CATALOG))
        cache_knobs = KnobFile(CacheKnobs, "cache")
        self.cache = ResponseCache(cache_knobs, MemoryStore(cache_knobs), self.routing)
        self.records: list[Record] = []
        self.service = Service(
            self.routing,
            [lambda answer, record: self.records.append(record)],
            self.probes if probed else None,
            cache=self.cache if cached else None,
        )

    async def answer(self, *, stream: bool = True, **fields: Any) -> Answer:
        """The answer to a chat: whole, or a stream that is not read yet."""
        request = chat(stream=stream, **fields)
        return await (self.service.start(request) if stream else self.service.complete(request))

    async def streamed(self, **fields: Any) -> str:
        return "".join([delta.text async for delta in await self.answer(**fields)])

    def attempts(self) -> list[tuple[int, str, str | None]]:
        """Tier, status and stage of each attempt of the last request."""
        return [(attempt.tier, attempt.status, attempt.stage) for attempt in self.records[-1].attempts]
