"""An Answer: what one caller reads, and exactly one Record at its end."""

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal, Protocol

from classifier.decision import Decision
from gateway.base.errors import CLIENT_CLOSED_REQUEST, as_api_error, mark_recorded
from gateway.base.requests.inference_request import InferenceRequest
from gateway.base.requests.slo_class import slo_class
from gateway.inference.answering.bill import Bill
from gateway.inference.answering.stamps import Stamps
from gateway.inference.routing.router import RoutingService
from gateway.inference.sessions.session import on_strongest
from quality.records.record import Attempt, CacheUse, Record, Timings, comparison_of
from tiers.collected_choice import CollectedChoice
from tiers.tier import ChatMessage, Delta, ThoughtEnd, Tier, Usage

Status = Literal["ok", "error", "aborted"]
NO_HEADERS: Mapping[str, str] = {}


class AnswerSource(Protocol):
    """Where the deltas of an answer come from: a generation, a shared generation, or the cache.

    `attempted`: start of the current attempt, monotonic seconds; if it changes, earlier deltas are void. `cached`: how
    the cache was involved, None if it was not.
    """

    @property
    def tier(self) -> Tier:
        """The tier that answers now."""

    @property
    def decision(self) -> Decision:
        """Why that tier was chosen."""

    @property
    def attempted(self) -> float: ...

    @property
    def attempts(self) -> list[Attempt]:
        """The attempts that have ended."""

    @property
    def p_ok(self) -> float:
        """P(the answer is no worse than the strongest tier's), by the last stage that looked at it."""

    @property
    def cached(self) -> CacheUse | None: ...

    @property
    def dropped(self) -> tuple[str, ...]:
        """The caller's fields that the server behind the tier has not got, because it does not take them."""

    @property
    def changed(self) -> tuple[str, ...]:
        """The caller's fields that the server behind the tier got in another form, because of its rules."""

    async def __anext__(self) -> Delta: ...

    async def aclose(self) -> None:
        """Stop reading. Idempotent."""

    def bill(self) -> Bill:
        """What this reader is charged; after the end or `aclose`."""


class Answer:
    """Iterate over it for the deltas, and always `aclose` it. After the end `record` is set."""

    def __init__(
        self,
        request: InferenceRequest,
        source: AnswerSource,
        routing: RoutingService,
        finished: "Callable[[Answer, Record], None]",
        replica: str | None = None,
        rate_headers: Mapping[str, str] = NO_HEADERS,
        ending: "Callable[[Answer], Awaitable[None]] | None" = None,
    ) -> None:
        """`finished` is called exactly once per opened answer. `replica`: the name of this process, for the record.
        `rate_headers`: what is left of the caller's limits, for the response. `ending`: awaited after the last delta of
        a whole answer, before its caller sees that it has ended."""
        self.request = request
        self.source = source
        self.stamps = Stamps(arrival=request.generation.arrival, routed=time.monotonic(), attempted=source.attempted)
        self.choices = [CollectedChoice() for _ in range(request.choices)]
        self.usage: Usage | None = None
        self.thought_end: ThoughtEnd | None = None
        self.maker = ""
        self.record: Record | None = None
        self.rate_headers = rate_headers
        self._routing, self._finished, self._replica, self._ending = routing, finished, replica, ending
        self._opening: Delta | None = None

    async def open(self) -> None:
        """Wait for the first delta. Raises what the last tier tried raised; the record is then written."""
        try:
            self._opening = await anext(self, None)
        except BaseException:
            await self.aclose()
            raise

    async def whole(self) -> None:
        """Run to the end."""
        try:
            async for _ in self:
                pass
        finally:
            await self.aclose()

    def __aiter__(self) -> "Answer":
        return self

    async def __anext__(self) -> Delta:
        if self._opening is not None:
            delta, self._opening = self._opening, None
            return delta
        if self.record is not None:
            raise StopAsyncIteration
        began = time.monotonic()
        try:
            delta = await anext(self.source)
        except StopAsyncIteration:
            try:
                if self._ending is not None:
                    await self._ending(self)
            finally:
                self._finish("ok", 200, None)
            raise
        except Exception as error:
            await self.source.aclose()
            self._give_up("error", error)
            raise
        finally:
            now = time.monotonic()
            self.stamps.tier_seconds += now - began
        self._take(delta, now)
        return delta

    async def aclose(self) -> None:
        """Stop: the tier's work is freed within one step, unless other readers share it. Idempotent; an unfinished
        answer is recorded as aborted."""
        try:
            await self.source.aclose()
        finally:
            # Recorded and charged even if the closing itself is cancelled.
            self._give_up("aborted", None)

    @property
    def decision(self) -> Decision:
        """Why this tier was chosen."""
        return self.source.decision

    @property
    def tier(self) -> Tier:
        """The tier that answers."""
        return self.source.tier

    @property
    def attempts(self) -> list[Attempt]:
        """The attempts made for this caller; before the end, those that have ended."""
        return self.source.attempts if self.record is None else self.record.attempts

    @property
    def p_ok(self) -> float:
        """P(the answer is no worse than the strongest tier's), by the last stage that looked at it."""
        return self.source.p_ok

    @property
    def escalated_from(self) -> Attempt | None:
        """The attempt that escalated, if one did."""
        for attempt in self.attempts:
            if attempt.status == "escalated":
                return attempt
        return None

    @property
    def fell_over_from(self) -> list[str]:
        """The names of the tiers and targets that failed before this answer."""
        failed = [attempt for attempt in self.attempts if attempt.status == "error" and attempt.compared_as is None]
        return [attempt.target or f"tier-{attempt.tier}" for attempt in failed]

    @property
    def agreed(self) -> bool | None:
        """Whether the answer is one that tiers agreed on; None if none were compared."""
        comparison = comparison_of(self.attempts)
        return None if comparison is None else comparison.outcome == "agreed"

    @property
    def cost_usd(self) -> float:
        """US dollars of all attempts so far."""
        return sum([attempt.cost_usd for attempt in self.attempts])

    @property
    def cost_is_estimated(self) -> bool:
        """Whether the price of a tier that was tried is an estimate."""
        served = self._routing.served
        return served.has_estimates and any(served.entry(one.tier, one.target).price.estimated for one in self.attempts)

    @property
    def ttft_limit(self) -> float:
        """Seconds until the first token that service levels and alerts hold the answer to."""
        wanted = slo_class(self.request.slo, self.request.generation.priority)
        objective = self._routing.served.spec(self.tier.number).objective
        return wanted.ttft_limit(objective.ttft_ms / 1e3, asked=self.request.slo is not None)

    @property
    def timings(self) -> Timings:
        """Milliseconds of its stages; before the end, as if it ended now."""
        return self._timings(time.monotonic()) if self.record is None else self.record.timings

    def overhead_ms(self) -> float:
        """Milliseconds since arrival that were not spent waiting for a tier."""
        return (time.monotonic() - self.stamps.arrival - self.stamps.tier_seconds) * 1e3

    def _take(self, delta: Delta, now: float) -> None:
        if self.source.attempted != self.stamps.attempted:
            # Another tier has taken over.
            self.choices = [CollectedChoice() for _ in range(self.request.choices)]
            self.stamps = self.stamps.again(self.source.attempted)
        if delta.pieces:
            self.stamps.take_pieces(now, delta.pieces, delta.index, delta.made_at)
        elif not (delta.at_once or (delta.native is not None and delta.finish_reason is None)):
            # What a server's own form has between two pieces is no token.
            self.stamps.take(now, len(delta.token_ids), delta.index, delta.made_at)
        if (end := delta.end) is not None:
            self.usage, self.thought_end, self.stamps.times = end.usage, end.thought_end, end.times
            self.maker = end.maker
            if end.streamed_tokens is not None:
                self.stamps.scale_to(end.streamed_tokens)
            return
        self.choices[delta.index].take(delta)

    def _give_up(self, status: Literal["error", "aborted"], error: Exception | None) -> None:
        if self.record is None:
            http_status = CLIENT_CLOSED_REQUEST if error is None else as_api_error(error).status
            if error is not None:
                mark_recorded(error)
            started = self.request.stream and self.stamps.first_delta is not None
            self._finish(status, 200 if started else http_status, error)

    def _finish(self, status: Status, http_status: int, error: Exception | None) -> None:
        self.stamps.finished = time.monotonic()
        self.record = self._recorded(status, http_status, error, self.source.bill())
        self._finished(self, self.record)

    def _recorded(self, status: Status, http_status: int, error: Exception | None, bill: Bill) -> Record:
        request, first, usage, tier = self.request, self.choices[0], bill.usage, self.tier
        consent = request.consent
        return Record(
            request_id=request.request_id,
            created_at=request.created_at,
            api=request.api,
            requested_model=request.requested_model,
            key_id=request.key_id,
            stream=request.stream,
            status=status,
            http_status=http_status,
            error=None if error is None else _shown(error),
            decision=self.decision,
            tier=tier.number,
            model=tier.model,
            attempts=bill.attempts,
            messages=request.recorded_messages(),
            answer=_recorded_answer(first) if consent.reuse else None,
            reasoning=(first.reasoning or None) if consent.reuse else None,
            finish_reason=first.finish_reason,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            reasoning_tokens=usage.reasoning_tokens,
            cost_usd=bill.cost_usd,
            baseline_cost_usd=self._baseline_usd(usage) if bill.paid else 0.0,
            timings=self._timings(self.stamps.finished),
            response_format=request.generation.response_format if consent.reuse else None,
            consent=consent.recorded,
            cache=self.source.cached,
            tags=request.metadata,
            replica=self._replica,
        )

    def _baseline_usd(self, usage: Usage) -> float:
        """US dollars of `usage` on the strongest tier; of a step of an agent's session with that tier's caches."""
        served, step = self._routing.served, self.decision.inputs.session
        return served.price(served.strongest, usage if step is None else on_strongest(step, usage))

    def _timings(self, finished: float) -> Timings:
        stamps = self.stamps
        elapsed = finished - stamps.arrival
        route_ms, overhead_ms = (stamps.routed - stamps.arrival) * 1e3, (elapsed - stamps.tier_seconds) * 1e3
        if (phases := stamps.phases) is None:
            return Timings(route_ms=route_ms, ttft_ms=None, e2e_ms=elapsed * 1e3, overhead_ms=overhead_ms)
        return Timings(
            route_ms=route_ms,
            ttft_ms=phases.ttft * 1e3,
            e2e_ms=elapsed * 1e3,
            overhead_ms=overhead_ms,
            queue_ms=stamps.schedule_seconds * 1e3,
            prefill_ms=phases.prefill * 1e3,
            decode_ms=phases.decode * 1e3,
        )


def _recorded_answer(choice: CollectedChoice) -> str:
    if not choice.calls:
        return choice.text
    return ChatMessage(role="assistant", content=choice.text, tool_calls=tuple(choice.tool_calls)).recorded_content()


def _shown(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
