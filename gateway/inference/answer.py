"""An Answer: what one caller reads, and exactly one Record at its end.

Its stamps say when the stages of the request began and ended; its bill what it used, and whether its reader is the
one who pays for it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal, Protocol

import msgspec

from classifier.decision import Decision
from gateway.base.errors import CLIENT_CLOSED_REQUEST, as_api_error, mark_recorded
from gateway.base.inference_request import InferenceRequest, slo_class
from gateway.inference.agent_session import on_strongest
from gateway.inference.router import RoutingService
from inference_core.io.background_tasks import once
from inference_core.protocol import NO_TIMES, StepTimes
from quality.records.record import Attempt, CacheUse, Record, Timings, comparison_of
from tiers.conversation import Turn
from tiers.deltas import CollectedChoice
from tiers.tier import Delta, Restarted, ThoughtEnd, Tier, Usage


class Phases(msgspec.Struct, frozen=True):
    """Seconds from a request's arrival to its first delta, of its prefill, and of its decoding."""

    ttft: float
    prefill: float
    decode: float


class Stamps(msgspec.Struct):
    """Monotonic seconds at which the stages of a request began and ended, for metrics and spans."""

    arrival: float
    routed: float
    began: float
    """When the attempt that gives the answer began."""
    first_delta: float | None = None
    """When the first delta was passed on to the caller."""
    last_delta: float | None = None
    """When the last delta was passed on to the caller."""
    first_made: float | None = None
    """When the tier gave the first delta; earlier than `first_delta` if it was held back."""
    last_made: float | None = None
    """When the tier gave the last delta."""
    finished: float = 0.0
    tier_seconds: float = 0.0
    """Time spent waiting for the tier; the rest of the request is ours."""
    gaps: list[tuple[float, float]] = []
    """Seconds between one delta with tokens and the next of the same choice, by when the tier gave them, with the
    number of tokens that the later one brought. A server elsewhere gives no token ids: each of its pieces counts as
    one, until its own count says how many tokens all `pieces` were.
    """
    last_tokens: dict[int, float] = {}
    """When each choice had its last tokens."""
    pieces: int = 0
    times: StepTimes = NO_TIMES
    """What the tier says with the usage."""

    def take(self, now: float, tokens: int, choice: int = 0, made: float | None = None) -> None:
        """A delta of `choice` with so many tokens came `now`; the tier gave it at `made`, None if at the same time."""
        made = now if made is None else made
        if self.first_delta is None:
            self.first_delta, self.first_made = now, made
        if tokens:
            before = self.last_tokens.get(choice)
            if before is not None:
                self.gaps.append((made - before, tokens))
            self.last_tokens[choice] = made
        self.last_delta, self.last_made = now, made

    @property
    def schedule_seconds(self) -> float:
        """Waiting for the tier's first step, and planning the steps of the prompt."""
        return self.times.queue_seconds + self.times.planning_seconds

    @property
    def prefill_seconds(self) -> float | None:
        """From the tier's first step to what it gave first, without planning; None if it gave nothing."""
        if self.first_made is None:
            return None
        times = self.times
        seconds = self.first_made - self.began - (times.queue_seconds + times.planning_seconds)
        return seconds if seconds > 0 else 0.0

    @property
    def decode_seconds(self) -> float | None:
        """From what the tier gave first to what it gave last; None if it gave nothing."""
        return None if self.first_made is None or self.last_made is None else self.last_made - self.first_made

    @property
    def phases(self) -> Phases | None:
        """None if the caller was given nothing before the end, or the tier gave nothing."""
        if self.first_delta is None or (decode := self.decode_seconds) is None:
            return None
        return Phases(self.first_delta - self.arrival, self.prefill_seconds or 0.0, decode)

    def take_pieces(self, now: float, pieces: int, choice: int = 0, made: float | None = None) -> None:
        """A delta of `choice` with so many pieces of a server elsewhere came `now`; `made` as for `take`."""
        self.pieces += pieces
        self.take(now, pieces, choice, made)

    def scale_to(self, tokens: int) -> None:
        """The server counted so many tokens in all its pieces."""
        if self.pieces:
            self.gaps = [(seconds, pieces * tokens / self.pieces) for seconds, pieces in self.gaps]

    @property
    def tokens_per_second(self) -> float | None:
        """Of a choice, after its first token (SPEC OB-02): (n - 1) / (end - first token), the mean over all choices
        weighted by their times; None where no choice has a second token."""
        if not self.gaps:
            return None
        seconds, tokens = map(sum, zip(*self.gaps, strict=True))
        return tokens / seconds if seconds > 0 else None

    def again(self, began: float) -> "Stamps":
        """Return the stamps of the same request, which another attempt answers since `began`."""
        return Stamps(arrival=self.arrival, routed=self.routed, began=began, tier_seconds=self.tier_seconds)


class Bill(msgspec.Struct, frozen=True, kw_only=True):
    """All attempts with their costs, and the tokens of the last one."""

    attempts: list[Attempt]
    usage: Usage
    paid: bool = True
    """False if the answer came out of the cache, or another reader of it pays: the attempts at it then cost nothing.
    Earlier ones that failed may still cost.
    """

    @property
    def cost_usd(self) -> float:
        """What all attempts cost, in US dollars."""
        return sum([attempt.cost_usd for attempt in self.attempts])

    def unpaid(self) -> "Bill":
        """The same for a reader who owes nothing."""
        free = [msgspec.structs.replace(attempt, cost_usd=0.0, extras_usd=0.0) for attempt in self.attempts]
        return Bill(attempts=free, usage=self.usage, paid=False)


Status = Literal["ok", "error", "aborted"]
INTERRUPTED = "interrupted: the process of the gateway ended before the answer did"
NO_HEADERS: Mapping[str, str] = {}


class AnswerSource(Protocol):
    """Where the deltas of an answer come from: a generation, a shared generation, or the cache.

    After `Restarted` all deltas before it are void. `cached`: how the cache was involved, None if it was not.
    """

    @property
    def tier(self) -> Tier:
        """The tier that answers now."""

    @property
    def decision(self) -> Decision:
        """Why that tier was chosen."""

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

    @property
    def limit(self) -> int | None:
        """The limit of a choice that the answer has because of a budget, and not by its caller; None without one."""

    async def __anext__(self) -> Delta | Restarted: ...

    async def aclose(self) -> None:
        """Stop reading. Idempotent."""

    def unsettled(self) -> list[asyncio.Task[None]]:
        """After `aclose`: the answers that servers elsewhere still give, and that this reader may be charged for."""

    def bill(self) -> Bill:
        """What this reader is charged; after the end or `aclose`."""


class Answer:
    """Iterate over it for the deltas, and always `aclose` it. After the end `record` is set. If its reader leaves early
    and a server elsewhere bills more than was read, it is set once that server has counted the answer, or is given up.
    """

    def __init__(
        self,
        request: InferenceRequest,
        source: AnswerSource,
        routing: RoutingService,
        finished: "Callable[[Answer, Record], None]",
        replica: str | None = None,
        rate_headers: Mapping[str, str] = NO_HEADERS,
        ending: "Callable[[Answer], Awaitable[None]] | None" = None,
        left: "Callable[[Answer], None] | None" = None,
    ) -> None:
        """`finished` is called exactly once per opened answer. `replica`: the name of this process, for the record.
        `rate_headers`: what is left of the caller's limits, for the response. `ending`: awaited after the last delta of
        a whole answer, before its caller sees that it has ended. `left`: called if its reader has left and the record
        waits for what a server elsewhere bills."""
        self.request = request
        self.source = source
        now = time.monotonic()
        self.stamps = Stamps(arrival=request.generation.arrival, routed=now, began=now)
        self.choices = [CollectedChoice() for _ in range(request.choices)]
        self.usage: Usage | None = None
        self.thought_end: ThoughtEnd | None = None
        self.answered_by = ""
        self.record: Record | None = None
        self.billed: Usage | None = None  # tokens of the bill, also where it broke before its tier reported them
        self.rate_headers = rate_headers
        self._routing, self._finished, self._replica, self._ending = routing, finished, replica, ending
        self._left = left
        self._settling: asyncio.Task[None] | None = None
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
        while True:
            began = time.monotonic()
            try:
                event = await anext(self.source)
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
            if isinstance(event, Delta):
                self._take(event, now)
                return event
            self.choices = [CollectedChoice() for _ in range(self.request.choices)]
            self.stamps = self.stamps.again(event.began)

    async def aclose(self) -> None:
        """Stop: the tier's work is freed within one step, unless other readers share it. Idempotent; an unfinished
        answer is recorded as aborted."""
        try:
            await self.source.aclose()
        finally:
            # Recorded and charged even if the closing itself is cancelled.
            if self.record is None and self._settling is None:
                self._leave()

    @property
    def is_left(self) -> bool:
        """Whether its reader has left, and its record waits for what a server elsewhere bills."""
        return self._settling is not None

    def settle(self) -> None:
        """Record and charge an answer that was left by what is known now."""
        self._give_up("aborted", None)

    def _leave(self) -> None:
        unsettled = self.source.unsettled()
        if not unsettled:
            self.settle()
            return
        self.stamps.finished = time.monotonic()
        self._settling = once(self._settle(unsettled), "bill of an answer that was left")
        if self._left is not None:
            self._left(self)

    async def _settle(self, unsettled: list[asyncio.Task[None]]) -> None:
        await asyncio.wait(unsettled)
        self.settle()

    @property
    def decision(self) -> Decision:
        """Why this tier was chosen."""
        return self.source.decision

    @property
    def tier(self) -> Tier:
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
        return sum([attempt.cost_usd for attempt in self.attempts]) if self.record is None else self.record.cost_usd

    @property
    def cost_is_estimated(self) -> bool:
        """Whether the price of a tier that was tried is an estimate."""
        served = self._routing.served
        return served.has_estimates and any(
            served.entry(attempt.tier, attempt.target).price.estimated for attempt in self.attempts
        )

    @property
    def ttft_limit(self) -> float:
        """Seconds until the first token that service levels and alerts hold the answer to."""
        wanted = slo_class(self.request.options.slo, self.request.generation.priority)
        objective = self._routing.served.spec(self.tier.number).objective
        return wanted.ttft_limit(objective.ttft_ms / 1e3, asked=self.request.options.slo is not None)

    @property
    def timings(self) -> Timings:
        """Milliseconds of its stages; before the end, as if it ended now."""
        return self._timings(time.monotonic()) if self.record is None else self.record.timings

    def overhead_ms(self) -> float:
        """Milliseconds since arrival that were not spent waiting for a tier."""
        return (time.monotonic() - self.stamps.arrival - self.stamps.tier_seconds) * 1e3

    def _take(self, delta: Delta, now: float) -> None:
        stamps = self.stamps
        if delta.pieces:
            stamps.take_pieces(now, delta.pieces, delta.index, delta.made_at)
        elif not (delta.at_once or (delta.opaque is not None and delta.finish_reason is None)):
            # What a server's own form has between two pieces is no token.
            stamps.take(now, len(delta.token_ids), delta.index, delta.made_at)
        if (end := delta.end) is not None:
            self.usage, self.thought_end, stamps.times = end.usage, end.thought_end, end.times
            self.answered_by = end.answered_by
            if end.streamed_tokens is not None:
                stamps.scale_to(end.streamed_tokens)
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
        self.stamps.finished = self.stamps.finished or time.monotonic()
        bill = self.source.bill()
        self.record, self.billed = self._recorded(status, http_status, error, bill), bill.usage
        self._finished(self, self.record)

    def interrupted(self, held_usd: float | None) -> Record:
        """Return what is recorded, without texts, if this process dies before the answer ends: its server may bill up
        to `held_usd`; where nothing is held for it, what such an answer is expected to cost."""
        tier, decision = self.tier, self.decision
        cost_usd = decision.inputs.costs[tier.number - 1] if held_usd is None else held_usd
        attempt = Attempt(
            tier=tier.number,
            model=tier.model,
            status="aborted",
            cost_usd=cost_usd,
            error=INTERRUPTED,
            target=tier.name if tier.is_target else None,
            estimated=True,
        )
        bill = Bill(attempts=[attempt], usage=Usage(), paid=False)
        record = self._recorded_without_texts("error", 500, None, bill)
        return msgspec.structs.replace(record, error=INTERRUPTED, cache=None, baseline_cost_usd=cost_usd)

    def _recorded(self, status: Status, http_status: int, error: Exception | None, bill: Bill) -> Record:
        record = self._recorded_without_texts(status, http_status, error, bill)
        if not self.request.consent.reuse:
            return record
        first = self.choices[0]
        return msgspec.structs.replace(
            record,
            messages=self.request.recorded_messages(),
            answer=_recorded_answer(first),
            reasoning=first.reasoning or None,
            response_format=self.request.generation.response_format,
        )

    def _recorded_without_texts(self, status: Status, http_status: int, error: Exception | None, bill: Bill) -> Record:
        request, usage, tier = self.request, bill.usage, self.tier
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
            messages=None,
            answer=None,
            reasoning=None,
            finish_reason=self.choices[0].finish_reason,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            reasoning_tokens=usage.reasoning_tokens,
            cost_usd=bill.cost_usd,
            baseline_cost_usd=self._baseline_usd(usage) if bill.paid else 0.0,
            timings=self._timings(self.stamps.finished or time.monotonic()),
            consent=request.consent.recorded,
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
    return Turn.of("assistant", choice.text, calls=tuple(choice.tool_calls)).recorded_content()


def _shown(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
