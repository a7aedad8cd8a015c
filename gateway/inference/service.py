"""Answer requests, independent of HTTP: admission, route, generation or cache, and the record for the sinks.

`Serving` is what the endpoints of inference use, from a body to an answer; `gateway.app` makes it once. A conversation
too long for every tier loses its oldest turns, not the request: `truncation: auto`, or a knob.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.decision import Decision
from gateway.base.errors import ApiError, located, request_id_of
from gateway.base.inference_request import CALLER, KEYLESS, Caller, InferenceRequest
from gateway.base.settings import Settings
from gateway.edge.asgi import Connection
from gateway.inference.agent_session import Answered
from gateway.inference.agreement import Agreements
from gateway.inference.answer import Answer, AnswerSource
from gateway.inference.answer_limits import held
from gateway.inference.embedding.embedder import Embedder
from gateway.inference.escalation import ActiveProbes
from gateway.inference.generation import Generation
from gateway.inference.response_cache import ResponseCache
from gateway.inference.router import RoutingService
from gateway.inference.turn_memory import TurnMemory
from gateway.runtime.cores.adapters import CoreAdapters
from gateway.tenancy.admission import Admission, OverloadQueue, max_cost_usd
from gateway.tenancy.tenancy import Tenancy
from inference_core.io.background_tasks import once
from quality.records.record import Record, Recorded
from quality.records.redaction import without_texts
from quality.verification.feedback import FeedbackDesk
from tiers.conversation import Turn
from tiers.errors import TierRequestError
from tiers.tier import Tier

if TYPE_CHECKING:
    from gateway.inference.screening.screen import Screen
    from quality.records.redaction_process import RedactionProcess
    from tiers.remote.embedding_client import EmbeddingClient
    from tiers.remote.passed_server import PassedServer


async def truncated(routing: RoutingService, request: InferenceRequest) -> InferenceRequest:
    """Return the request with as many of its newest turns as some tier can read; its system messages at the beginning
    stay. If even the last turn is too long, the request is returned as it is, and is refused as any other."""
    messages = request.generation.messages or []
    if not await routing.is_too_long(request):
        return request
    kept = next((n for n, message in enumerate(messages) if message.role != "system"), len(messages))
    starts = [n for n in range(kept + 1, len(messages)) if messages[n].role != "tool"]
    # The longest rest that fits: the first start that does, as shorter rests fit too.
    low, high, best = 0, len(starts), None
    while low < high:
        middle = (low + high) // 2
        shorter = _from(request, messages[:kept], messages[starts[middle] :])
        if await routing.is_too_long(shorter):
            low = middle + 1
        else:
            high, best = middle, shorter
    return best or request


def _from(request: InferenceRequest, before: list[Turn], rest: list[Turn]) -> InferenceRequest:
    messages = [*before, *rest]
    dropped = len(request.generation.messages or []) - len(messages)
    shorter = request.with_generation(messages=messages, prompts_read={})
    return msgspec.structs.replace(shorter, dropped_turns=dropped)


log = logging.getLogger(__name__)

MAX_IN_FLIGHT, MAX_WAITING = 1000, 4000


class RecordSink(Protocol):
    """Takes finished requests without blocking: the ledger, the monitor, the metrics, the traces."""

    def __call__(self, answer: Answer, record: Record) -> None: ...


def of_record(take: Callable[[Record], None]) -> RecordSink:
    """The sink of one who reads the record alone."""
    return lambda answer, record: take(record)


class Service:
    """Answers requests. The only state that it keeps of them is which answers are open; a shutdown waits for these.

    `redaction` is applied to the texts of a record before any of `sinks` gets it. Without `tenancy` no limits apply,
    without `cache` every answer is generated, and without `agreements` no tiers are compared. `screen`: what the
    catalogue asks for before and after, None for nothing; a reload replaces it. `begin` is called before a tier is
    asked, with what is to be recorded if this process dies before the answer ends. `continues_streams`: whatever the
    knob says, as workers of a chat queue may die.
    """

    def __init__(
        self,
        routing: RoutingService,
        sinks: list[RecordSink],
        probes: ActiveProbes | None = None,
        tenancy: Tenancy | None = None,
        overload: OverloadQueue | None = None,
        cache: ResponseCache | None = None,
        redaction: "RedactionProcess | None" = None,
        agreements: Agreements | None = None,
        begin: Callable[[Record], None] | None = None,
    ) -> None:
        self.routing = routing
        self.replica = None if tenancy is None else tenancy.replica
        self.overload = overload or OverloadQueue(MAX_IN_FLIGHT, MAX_WAITING)
        self._admission_control = None if tenancy is None else tenancy.admission_control
        self.probes = probes
        self.screen: Screen | None = None
        self.continues_streams = False
        self._cache, self._sinks, self._begin = cache, sinks, begin
        self.turn_memory = TurnMemory()
        self._redaction, self.agreements = redaction, agreements
        self._redacting: set[asyncio.Task[None]] = set()
        self._open: set[Answer] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False

    async def start(self, request: InferenceRequest) -> Answer:
        """Route `request` and wait for the first delta of its answer; the caller iterates over it and closes it.

        Raises `ApiError` if no tier may serve it, and what the tier raised if it failed before its first delta.
        """
        answer = await self._admitted(request)
        await answer.open()
        return answer

    async def complete(self, request: InferenceRequest) -> Answer:
        """Route `request` and answer it to the end."""
        answer = await self._admitted(request)
        await answer.whole()
        return answer

    @asynccontextmanager
    async def reading(
        self, request: InferenceRequest, tokens: int | None = None, admission: Admission | None = None
    ) -> AsyncIterator[Admission]:
        """Admit a request that gets no answer of a tier: it counts against the caller's limits as any other, with
        `tokens`, else with those that its text is estimated to have, unless the block settles for others. `admission`:
        of `limited`, if the body has arrived after that."""
        admission, entered = await self._enter(request.with_generation(max_tokens=0), tokens, admission)
        try:
            yield admission
        finally:
            self.overload.leave(entered, answered=False)
            admission.settle(0.0, 0 if admission.entry is None else admission.entry.requested_tokens)

    async def marked(self, request: InferenceRequest) -> InferenceRequest:
        """Return a request that is routed and not answered, as the screen marks it."""
        return request if self.screen is None else await self.screen.marked(request, self.routing)

    async def decided(self, request: InferenceRequest) -> Decision:
        """Return the decision that a request would get, unanswered. Raises as `RoutingService.routed`."""
        request = await self.marked(request)
        await self.routing.prepare(request)
        decision = self.routing.route(request)
        return decision if self.agreements is None else self.agreements.told(request, decision)

    async def counted(self, request: InferenceRequest) -> tuple[int, Mapping[str, str]]:
        """Return the tokens of the prompt for the tier that would answer, the strongest where no context is long
        enough, and the headers of the caller's limits. It counts as a request, and no tokens. Raises `ApiError`."""
        try:
            return await self._counted(request)
        except (ApiError, TierRequestError) as error:
            raise located(error, request.names) from None

    async def _counted(self, request: InferenceRequest) -> tuple[int, Mapping[str, str]]:
        async with self.reading(request) as admission:
            request = await self.marked(request)
            tier = await self._counting_tier(request)
            served = self.routing.served.seen_by(request.requested_model)
            read = request.generations(served.spec(tier))[0]
            count = served.tier(tier).count_prompt_tokens
            tokens = await self.routing.threads.run(request.caller.tenant, lambda: count(read))
            admission.settle(0.0, 0)
        return tokens, admission.headers

    async def _counting_tier(self, request: InferenceRequest) -> int:
        await self.routing.prepare(request)
        try:
            return self.routing.route(request).tier
        except ApiError as error:
            if error.body.code != "context_length_exceeded":
                raise
            return self.routing.served.pinned_tier(request.requested_model) or self.routing.served.strongest

    async def close_screen(self) -> None:
        if self.screen is not None:
            await self.screen.close()

    @property
    def in_flight(self) -> int:
        """Answers that have started and not finished."""
        return len(self._open)

    async def idle(self) -> None:
        """Wait until nothing is in flight."""
        await self._idle.wait()

    async def drain(self, seconds: float) -> int:
        """Refuse new requests, wait up to `seconds` for open answers, and return how many are still open. Records that
        are still being redacted then are kept without their texts."""
        self._draining = True
        self.overload.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.idle()
                await asyncio.gather(*self._redacting)
        for answer in list(self._open):
            if answer.is_left:
                answer.settle()
        for task in self._redacting:
            task.cancel()
        await asyncio.gather(*self._redacting, return_exceptions=True)
        return self.in_flight

    async def _admitted(self, request: InferenceRequest) -> Answer:
        """Admit and route `request`: the caller's limits first, then a place among the answers in flight, then the
        route, which determines what the budget must cover."""
        admission, entered = await self._enter(request)
        screen = self.screen
        try:
            if screen is not None:
                request = await screen.admit(request, self.routing)
            _, adapter = self.routing.served.split_adapter(request.requested_model)
            if adapter:
                request = request.with_generation(adapter=adapter)
            if self.routing.knobs.active.truncate_chats and request.generation.messages:
                request = await truncated(self.routing, request)
            request = await self._with_agent_context(request)
            await self.routing.prepare(request)
            source = await self._source(request, admission)
            if screen is not None:
                source = screen.guarded(request, source)
        except BaseException:
            self.overload.leave(entered, answered=False)
            admission.close(None)
            raise
        finished = partial(self._finished, admission, entered)
        left = partial(self._note_left, admission, entered)
        ending = self._keep_state if request.generation.messages and self.routing.served.has_servers else None
        answer = Answer(request, source, self.routing, finished, self.replica, admission.headers, ending, left)
        self._open.add(answer)
        self._idle.clear()
        if source.cached in (None, "miss"):
            self._note_begun(answer, admission)
        return answer

    def _note_begun(self, answer: Answer, admission: Admission) -> None:
        if self._begin is not None:
            try:
                self._begin(answer.interrupted(admission.held_usd))
            except Exception:
                log.exception("request %s is answered, unrecorded if this process dies", answer.request.request_id)

    async def _with_agent_context(self, request: InferenceRequest) -> InferenceRequest:
        """The request with what its conversation's earlier steps mean for servers elsewhere: who made them, their
        reasoning where the caller could not carry it, and that its beginning will be read again."""
        asked, reuse = request.generation, self.routing.knobs.active.cache_reuse
        messages, served = asked.messages, self.routing.served
        if messages is None or not served.has_servers:
            return request
        changes: dict[str, Any] = {}
        goes_on = "assistant" in [message.role for message in messages]
        if goes_on and reuse and served.marks_caches:
            changes["cache_reuse"] = reuse
        if asked.tooling is not None and served.seals_reasoning:
            changes["wants_opaque"] = asked.wants_opaque or request.consent.reuse
        if goes_on:
            changes["messages"] = await self.turn_memory.recall(request)
        return request.with_generation(**changes) if changes else request

    async def _keep_state(self, answer: Answer) -> None:
        """Keep what the server of an answer needs back, before a next step can come."""
        if rows := self.turn_memory.remember(answer):
            await self.turn_memory.save(rows)

    async def limited(self, request: InferenceRequest, tokens: int | None = None) -> Admission:
        """Admit `request` by its caller's limits alone, without a place of an answer. Raises `ApiError` 429 or 503."""
        self._refuse_in_shutdown(request)
        messages = request.generation.messages or ()
        if long := [part for message in messages for part in message.media if part.is_long_audio]:
            await self.routing.threads.run(request.caller.tenant, lambda: [part.tokens for part in long])
        control = self._admission_control
        return Admission() if control is None else await control.enter(request, tokens)

    async def _enter(
        self, request: InferenceRequest, tokens: int | None = None, admission: Admission | None = None
    ) -> tuple[Admission, float]:
        """Admission by the caller's limits, and the time of entry to `overload`. Raises `ApiError` 429 or 503."""
        if admission is None:
            admission = await self.limited(request, tokens)
        else:
            self._refuse_in_shutdown(request)
            await admission.claim(request.caller, tokens or 0)
        try:
            return admission, await self.overload.enter(request.generation.priority)
        except BaseException:
            admission.close(None)
            raise

    def _refuse_in_shutdown(self, request: InferenceRequest) -> None:
        if self._draining:
            raise self.overload.shutting_down(request.generation.priority)

    async def _source(self, request: InferenceRequest, admission: Admission) -> AnswerSource:
        """Choose a tier, reserve what it may cost, and return a generation by it or what the cache has instead."""
        routed = self.routing.routed(request)
        decision = routed.decision
        tier = self.routing.served.chosen(decision)
        agreement = None if self.agreements is None else self.agreements.plan(request, decision)
        if agreement is not None and agreement.is_by_answer and self._is_judged(request, decision):
            # What only the answer shows is compared where nothing judges the answer.
            agreement.leave("the answer is judged by its own evidence")
        if request.caller.allowance.budgets:
            lengths, served = self.routing.answer_lengths, self.routing.served
            limits = lengths.limits(request, served, self.routing.knobs.active)
            request = msgspec.structs.replace(request, limits=limits)
            if (
                agreement is not None
                and agreement.is_taken
                and not await admission.reserves(
                    request.caller,
                    sum(self._most_usd(request, self.routing.served.tier(number)) for number in agreement.asked),
                )
            ):
                agreement.leave("the budget does not cover all that may be asked")
            if agreement is None or not agreement.is_taken:
                seconds = self.routing.knobs.active.budget_wait_seconds
                request, decision = await held(request, decision, self.routing.served, admission, seconds)
            # A reload may have replaced it meanwhile; the key of the response cache is that of the catalogue now.
            tier = self.routing.served.chosen(decision)
        if agreement is not None:
            decision = agreement.told(decision)
        compared = agreement if agreement is not None and agreement.is_taken else None

        make = Generation
        if request.stream:
            request, make = self._stream_of(request)

        def generate() -> Generation:
            return make(request, decision, tier, self.routing, admission, self.probes, compared)

        return generate() if self._cache is None else await self._cache.source(request, decision, generate)

    def _stream_of(self, request: InferenceRequest) -> tuple[InferenceRequest, type[Generation]]:
        """The request, and what generates its stream: one that may go on after a failure where caller or knob says so,
        and the request lets it."""
        wanted = request.options.continues
        if wanted is None:
            wanted = self.continues_streams or self.routing.knobs.active.streams_continue == "auto"
        if not wanted:
            return request, Generation
        from gateway.inference.continuation import ContinuedGeneration, may_continue  # few streams may

        may = may_continue(request)
        options = msgspec.structs.replace(request.options, continues=may)
        return msgspec.structs.replace(request, options=options), ContinuedGeneration if may else Generation

    def _is_judged(self, request: InferenceRequest, decision: Decision) -> bool:
        probes = self.probes
        return probes is not None and probes.escalation(request, decision, decision.tier, self.routing) is not None

    def _most_usd(self, request: InferenceRequest, tier: Tier) -> float:
        return max_cost_usd(request, tier, self.routing.served.spec_of(tier))

    def _note_left(self, admission: Admission, entered: float, answer: Answer) -> None:
        """Give back the places of an answer that a server elsewhere is still counting; its budget stays held."""
        self.overload.leave(entered, answered=False)
        used = answer.source.bill().usage
        admission.leave(used.prompt_tokens + used.completion_tokens)

    def _finished(self, admission: Admission, entered: float, answer: Answer, record: Record) -> None:
        """Account for an answer that has ended."""
        self.routing.answer_lengths.observe(answer.request, record, self.routing.served)
        if record.status == "ok":
            self.routing.remember(answer.request, record.decision.would_be or record.tier, _answered(answer, record))
        self._open.discard(answer)
        if not answer.is_left:
            self.overload.leave(entered, answered=record.status == "ok")
        admission.close(record)
        if not self._open:
            self._idle.set()
        if self._redaction is None:
            self._publish(answer, record)
        else:
            task = once(self._redact(answer, record, self._redaction), "redaction of a record")
            self._redacting.add(task)
            task.add_done_callback(self._redacting.discard)

    async def _redact(self, answer: Answer, record: Record, process: "RedactionProcess") -> None:
        kept = without_texts(record)
        try:
            kept = await process.redacted(record)
        finally:
            self._publish(answer, kept)

    def _publish(self, answer: Answer, record: Record) -> None:
        for sink in self._sinks:
            try:
                sink(answer, record)
            except Exception:
                log.exception("request %s was answered, but a sink of its record failed", record.request_id)


def _answered(answer: Answer, record: Record) -> Answered | None:
    """How a step of an agent's session was answered; None for other requests."""
    step = record.decision.inputs.session
    if step is None:
        return None
    usage = answer.usage if record.is_made else None
    return Answered(step, record.tier, usage, record.finish_reason == "length", time.time())


SERVING = "serving"
"""The key of the app's state."""


class RecordStore(Protocol):
    """Where requests are recorded and found."""

    def append(self, record: Recorded) -> None:
        """Record `record`; never waits."""

    async def find(self, request_id: str) -> Recorded | None:
        """The record of a request, from the moment it is durable."""


class CountRefused(Protocol):
    """Counts a failure that is answered with an error; one that a record tells of is not counted again."""

    def __call__(self, error: Exception, caller: Caller, path: str, request_id: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Serving:
    """What an answer is made with."""

    settings: Settings
    routing: RoutingService
    service: Service
    embedders: "Mapping[str, Embedder | EmbeddingClient]"
    core_adapters: CoreAdapters
    records: RecordStore
    feedback: FeedbackDesk
    database: AsyncEngine
    created: int
    """When the process started, in Unix seconds."""
    count_ignored: Callable[[str], None]
    """Called with the endpoint of a body with ignored fields."""
    count_refused: CountRefused
    """Called with each failure that is answered with an error."""
    passed: "dict[str, PassedServer]" = field(default_factory=dict)
    """Clients of servers whose endpoints are passed through, by the entry's name."""
    replaced: "list[PassedServer]" = field(default_factory=list)
    """Clients that a reload has replaced."""

    async def close_passed(self) -> None:
        """Close the connections to servers whose endpoints are passed through."""
        for server in (*self.passed.values(), *self.replaced):
            await server.close()

    @property
    def fingerprint(self) -> str:
        """OpenAI's `system_fingerprint`: it changes when other models or policies answer."""
        return f"fp_{self.routing.served.fingerprint}"


def serving_of(connection: Connection) -> Serving:
    """Return what the app that serves `connection` answers with."""
    serving: Serving = connection.app.state[SERVING]
    return serving


def count_refused(connection: Connection, error: Exception) -> None:
    """Count a request, or a message on a WebSocket, that is answered with `error`."""
    serving: Serving | None = connection.app.state.get(SERVING)
    if serving is not None:
        caller, path = connection.scope["state"].get(CALLER, KEYLESS), connection.scope.get("path_template", "")
        serving.count_refused(error, caller, path, request_id_of(connection))
