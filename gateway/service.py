"""The main job, independent of HTTP: route an Ask, answer it by a tier, hand its Record to ledger and monitor."""

import asyncio
import logging
from contextlib import suppress
from typing import Protocol

import msgspec

from classifier.decision import Decision
from gateway.answer import Answer
from gateway.ask import Ask
from gateway.errors import ApiError
from gateway.escalation import Escalation
from gateway.probes_in_force import ProbesInForce
from gateway.routing import RoutingService
from quality.record import Record
from quality.redaction import Redact, redacted
from tiers.tier import Tier, Usage
from tiers.tier_spec import TierSpec

log = logging.getLogger(__name__)


class RecordSink(Protocol):
    """Takes finished requests without blocking: the ledger, the monitor, the metrics, the traces."""

    def __call__(self, answer: Answer, record: Record) -> None: ...


class Service:
    """Answers asks. Holds no request state but the count of those in flight, which a shutdown waits for.

    `redact` is applied to the texts of a record before any of `sinks` gets it.
    """

    def __init__(
        self,
        routing: RoutingService,
        sinks: list[RecordSink],
        probes: ProbesInForce | None = None,
        redact: Redact | None = None,
    ) -> None:
        self.routing = routing
        self.probes = probes
        self._sinks = sinks
        self._redact = redact
        self._open: set[Answer] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False

    async def start(self, ask: Ask) -> Answer:
        """Route `ask` and wait for the first delta of its answer; the caller iterates over it and closes it.

        Raises `ApiError` if no tier may serve it, and what the tier raised if it failed before its first delta.
        """
        await self.routing.prepare(ask)
        answer = self._begin(ask)
        await answer.open()
        return answer

    async def complete(self, ask: Ask) -> Answer:
        """Route `ask` and answer it to the end."""
        await self.routing.prepare(ask)
        answer = self._begin(ask)
        await answer.whole()
        return answer

    def _begin(self, ask: Ask) -> Answer:
        if self._draining:
            raise ApiError(503, "The server is shutting down. Send the request elsewhere.", code="shutting_down")
        _, adapter = self.routing.split_adapter(ask.requested_model)
        if adapter:
            ask = msgspec.structs.replace(ask, adapter=adapter)
        decision = self.routing.route(ask)
        answer = Answer(ask, decision, self.routing.tier(decision.tier), self)
        self._open.add(answer)
        self._idle.clear()
        return answer

    @property
    def in_flight(self) -> int:
        """Answers begun and not finished."""
        return len(self._open)

    async def idle(self) -> None:
        """Wait until nothing is in flight."""
        await self._idle.wait()

    async def drain(self, seconds: float) -> int:
        """Refuse new asks and wait up to `seconds` for the open ones; returns how many are still open."""
        self._draining = True
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.idle()
        return self.in_flight

    def spec(self, number: int) -> TierSpec:
        """The catalogue's entry of a tier."""
        return self.routing.spec(number)

    def price(self, tier: int, usage: Usage) -> float:
        """US dollars of `usage` on a tier."""
        return self.routing.price(tier, usage)

    def baseline(self, usage: Usage) -> float:
        """US dollars of `usage` on the strongest tier."""
        return self.routing.price(self.routing.strongest, usage)

    def next_up(self, decision: Decision, tier: int) -> Tier | None:
        """The next allowed tier above `tier`."""
        return self.routing.next_up(decision, tier)

    def escalation(self, ask: Ask, decision: Decision, tier: int) -> Escalation | None:
        """What judges an answer of `tier` while it is given."""
        return None if self.probes is None else self.probes.escalation(ask, decision, tier, self.routing)

    def finished(self, answer: Answer, record: Record) -> None:
        """Account for an answer that has ended."""
        if record.status == "ok":
            self.routing.remember(answer.ask, record.tier)
        self._open.discard(answer)
        if not self._open:
            self._idle.set()
        if self._redact is not None:
            record = redacted(record, self._redact)
        for sink in self._sinks:
            try:
                sink(answer, record)
            except Exception:
                log.exception("request %s was answered, but a sink of its record failed", record.request_id)
