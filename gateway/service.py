"""Answer requests, independent of HTTP: admission, route, generation or cache, and the record for the sinks."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Protocol

import msgspec

from classifier.decision import Decision, Exclusion
from gateway.answering.answer import Answer, Source
from gateway.answering.escalation import Escalation
from gateway.answering.generation import Generation
from gateway.answering.probes_in_force import ProbesInForce
from gateway.cache.response_cache import ResponseCache
from gateway.errors import ApiError
from gateway.requests.inference_request import InferenceRequest
from gateway.routing.router import RoutingService
from gateway.tenancy.admission import Admission
from gateway.tenancy.cost_bound import most_usd
from gateway.tenancy.overload import OverloadQueue
from gateway.tenancy.tenancy import Tenancy
from quality.records.record import Record
from quality.records.redaction import Redact, redacted, without_texts
from quality.records.redaction_process import LONG_CHARS, RedactionProcess, num_chars
from tiers.catalog.tier_spec import TierSpec
from tiers.tier import Tier, Usage

log = logging.getLogger(__name__)

MOST_IN_FLIGHT, MOST_WAITING = 1000, 4000


class RecordSink(Protocol):
    """Takes finished requests without blocking: the ledger, the monitor, the metrics, the traces."""

    def __call__(self, answer: Answer, record: Record) -> None: ...


class Service:
    """Answers asks. Holds no request state but the count of those in flight, which a shutdown waits for.

    `redact` is applied to the texts of a record before any of `sinks` gets it; long ones are left to
    `redaction_process`, where there is one. Without `tenancy` nobody is bounded,
    and without `cache` every answer is made anew.
    """

    def __init__(
        self,
        routing: RoutingService,
        sinks: list[RecordSink],
        probes: ProbesInForce | None = None,
        redact: Redact | None = None,
        tenancy: Tenancy | None = None,
        overload: OverloadQueue | None = None,
        cache: ResponseCache | None = None,
        redaction_process: RedactionProcess | None = None,
    ) -> None:
        self.routing = routing
        self.probes = probes
        self.replica = None if tenancy is None else tenancy.replica
        self._admission_control = None if tenancy is None else tenancy.admission_control
        self.overload = overload or OverloadQueue(MOST_IN_FLIGHT, MOST_WAITING)
        self._cache = cache
        self._entered: dict[str, float] = {}
        self._sinks = sinks
        self._redact, self._redaction_process = redact, redaction_process
        self._redacting: set[asyncio.Task[None]] = set()
        self._open: set[Answer] = set()
        self._admissions: dict[str, Admission] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False

    async def start(self, request: InferenceRequest) -> Answer:
        """Route `request` and wait for the first delta of its answer; the caller iterates over it and closes it.

        Raises `ApiError` if no tier may serve it, and what the tier raised if it failed before its first delta.
        """
        answer = await self._begin(request)
        await answer.open()
        return answer

    async def complete(self, request: InferenceRequest) -> Answer:
        """Route `request` and answer it to the end."""
        answer = await self._begin(request)
        await answer.whole()
        return answer

    async def _begin(self, request: InferenceRequest) -> Answer:
        """The caller's limits first, then a place among the answers that are given at once, then the route, which says
        what the budget has to bear."""
        admission, entered = await self._enter(request)
        try:
            await self.routing.prepare(request)
            answer = await self._routed(request, admission)
        except BaseException:
            self.overload.leave(entered, answered=False)
            admission.close(None)
            raise
        self._entered[request.request_id] = entered
        return answer

    async def _enter(self, request: InferenceRequest) -> tuple[Admission, float]:
        """Admission by the caller's limits, and the time of entry to `overload`. Raises `ApiError` 429 or 503."""
        if self._draining:
            raise self.overload.shutting_down(request.priority)
        admission = Admission() if self._admission_control is None else await self._admission_control.enter(request)
        try:
            return admission, await self.overload.enter(request.priority)
        except BaseException:
            admission.close(None)
            raise

    @asynccontextmanager
    async def reading(self, request: InferenceRequest) -> AsyncIterator[Admission]:
        """Admit a request whose text is read and that gets no answer of a tier: it counts against the caller's limits
        as any other, with the estimated tokens of its text unless the block settles for others."""
        admission, entered = await self._enter(msgspec.structs.replace(request, max_tokens=0))
        try:
            yield admission
        finally:
            self.overload.leave(entered, answered=False)
            admission.settle(0.0, 0 if admission.entry is None else admission.entry.asked_tokens)

    async def _routed(self, request: InferenceRequest, admission: Admission) -> Answer:
        _, adapter = self.routing.split_adapter(request.requested_model)
        if adapter:
            request = msgspec.structs.replace(request, adapter=adapter)
        decision, embedding = self.routing.routed(request)
        tier = self.routing.tier(decision.tier)
        if request.caller.allowance.budgets:
            await admission.pay(request.caller, most_usd(request, tier, self.spec(decision.tier)))
        source: Source
        if self._cache is None:
            source = Generation(request, decision, tier, self)
        else:
            source = await self._cache.source(
                request, decision, lambda: Generation(request, decision, tier, self), embedding
            )
        answer = Answer(request, source, self)
        answer.rate_headers = admission.headers
        self._admissions[request.request_id] = admission
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
        """Refuse new asks and wait up to `seconds` for the open ones; returns how many are still open. Records that are
        still being redacted then are kept without their texts."""
        self._draining = True
        self.overload.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.idle()
                await asyncio.gather(*self._redacting)
        for task in self._redacting:
            task.cancel()
        await asyncio.gather(*self._redacting, return_exceptions=True)
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

    def is_estimated(self, tier: int) -> bool:
        """Whether a tier's price is an estimate."""
        return bool(self.spec(tier).price.estimated)

    def next_up(self, decision: Decision, tier: int) -> Tier | None:
        """The next allowed tier above `tier`."""
        return self.routing.next_up(decision, tier)

    def tier(self, number: int) -> Tier:
        """The tier of this number, as it is now."""
        return self.routing.tier(number)

    async def ordinary(self, request: InferenceRequest, decision: Decision) -> Decision | None:
        """The ordinary route of a request whose fast path has failed; None if no other tier may answer."""
        failed = Exclusion(tier=decision.tier, reason="it failed on the fast path")
        await self.routing.prepare(request, failed)
        try:
            return self.routing.route(request, failed)
        except ApiError:
            return None

    def affords(self, request: InferenceRequest, tier: Tier) -> bool:
        """Whether the caller's budgets bear another attempt, by `tier`; what it may cost is then held."""
        admission = self._admissions.get(request.request_id)
        if admission is None or admission.hold is None:
            return True
        return admission.affords(most_usd(request, tier, self.spec(tier.number)))

    def escalation(self, request: InferenceRequest, decision: Decision, tier: int) -> Escalation | None:
        """What judges an answer of `tier` while it is given."""
        return None if self.probes is None else self.probes.escalation(request, decision, tier, self.routing)

    def finished(self, answer: Answer, record: Record) -> None:
        """Account for an answer that has ended."""
        if record.status == "ok":
            self.routing.remember(answer.request, record.decision.would_be or record.tier)
        self._open.discard(answer)
        if (entered := self._entered.pop(record.request_id, None)) is not None:
            self.overload.leave(entered, answered=record.status == "ok")
        if (admission := self._admissions.pop(record.request_id, None)) is not None:
            admission.close(record)
        if not self._open:
            self._idle.set()
        if self._redact is None:
            self._tell_sinks(answer, record)
        elif self._redaction_process is None or num_chars(record) <= LONG_CHARS:
            self._tell_sinks(answer, redacted(record, self._redact))
        else:
            task = asyncio.create_task(self._redact_elsewhere(answer, record, self._redaction_process))
            self._redacting.add(task)
            task.add_done_callback(self._redacting.discard)

    async def _redact_elsewhere(self, answer: Answer, record: Record, process: RedactionProcess) -> None:
        kept = without_texts(record)
        try:
            kept = await process.redacted(record)
        finally:
            self._tell_sinks(answer, kept)

    def _tell_sinks(self, answer: Answer, record: Record) -> None:
        for sink in self._sinks:
            try:
                sink(answer, record)
            except Exception:
                log.exception("request %s was answered, but a sink of its record failed", record.request_id)
