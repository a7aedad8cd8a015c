"""An Answer: one Ask being answered by a tier, or a second one, with exact accounting and exactly one Record."""

import logging
import time
from collections import deque
from collections.abc import AsyncGenerator
from typing import Literal, Protocol

import msgspec

from classifier.decision import Decision
from gateway.ask import Ask
from gateway.choice import Choice
from gateway.errors import CLIENT_CLOSED_REQUEST, as_api_error
from gateway.escalation import Escalation, Verdict
from gateway.stamps import Stamps
from gateway.tier_deltas import tier_deltas
from quality.record import Attempt, AttemptStatus, Record, Timings
from tiers.errors import TierError, TierRequestError, TierUnavailableError
from tiers.replica_try import ReplicaTry
from tiers.tier import ChatMessage, Delta, Tier, Usage
from tiers.tier_spec import TierSpec

log = logging.getLogger(__name__)

Status = Literal["ok", "error", "aborted"]


class Surroundings(Protocol):
    """What an Answer needs around it: prices, the tier to fall over to, and somebody to take the record."""

    def spec(self, number: int) -> TierSpec:
        """The catalogue's entry of a tier."""

    def price(self, tier: int, usage: Usage) -> float:
        """US dollars of `usage` on a tier."""

    def baseline(self, usage: Usage) -> float:
        """US dollars of `usage` on the strongest tier."""

    def next_up(self, decision: Decision, tier: int) -> Tier | None:
        """The next allowed tier above `tier`, if there is one."""

    def escalation(self, ask: Ask, decision: Decision, tier: int) -> Escalation | None:
        """What judges an answer of `tier` while it is given; None where nothing does."""

    def finished(self, answer: "Answer", record: Record) -> None:
        """Called exactly once per opened answer."""


class Answer:
    """Iterate over it for the deltas; `aclose` it, always. After the end `record` holds the whole story.

    A streamed answer commits itself with its first delta; a whole one never does, so that a tier that fails late
    is replaced too, because nothing has reached the caller. There is one fall-over per request (SPEC RT-11), and one
    escalation: by its own evidence an answer may be judged not good enough before anything of it has been let go.
    """

    def __init__(self, ask: Ask, decision: Decision, tier: Tier, surroundings: Surroundings) -> None:
        now = time.monotonic()
        self.ask = ask
        self.decision = decision
        self.tier = tier
        self.stamps = Stamps(arrival=ask.arrival, routed=now, attempted=now)
        self.attempts: list[Attempt] = []
        self.choices = [Choice() for _ in range(ask.choices)]
        self.usage: Usage | None = None
        self.replicas: list[ReplicaTry] = []
        self.record: Record | None = None
        self._surroundings = surroundings
        self._escalation = surroundings.escalation(ask, decision, tier.number)
        self._generations = ask.generations(surroundings.spec(tier.number))
        if self._escalation is not None:
            evidence = self._escalation.request
            self._generations = [msgspec.structs.replace(one, evidence=evidence) for one in self._generations]
        self._deltas: AsyncGenerator[Delta, None] = tier_deltas(tier, self._generations, ask.n)
        self._held: deque[Delta] = deque()
        self._generated = 0
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
        try:
            delta, now = await self._next_delta()
        except StopAsyncIteration:
            self._finish("ok", 200, None)
            raise
        except Exception as error:
            await self._deltas.aclose()
            self._give_up("error", error)
            raise
        self._take(delta, now)
        return delta

    async def aclose(self) -> None:
        """Stop: the tier's work is freed within one step. Idempotent; unfinished answers are recorded as aborted."""
        await self._deltas.aclose()
        self._give_up("aborted", None)

    @property
    def p_ok(self) -> float:
        """P(the answer is no worse than the strongest tier's), by the last stage that looked at it."""
        verdict = self.verdict
        p_ok = self.decision.inputs.prediction.p_ok if verdict is None else verdict.p_ok
        return p_ok[self.tier.number - 1]

    @property
    def verdict(self) -> Verdict | None:
        """What the answering tier's own evidence said of the answer, or that of the tier that it was taken from."""
        return None if self._escalation is None else self._escalation.verdict

    @property
    def escalated_from(self) -> Attempt | None:
        """The attempt whose evidence handed the answer on, if there was one."""
        return next((attempt for attempt in self.attempts if attempt.status == "escalated"), None)

    @property
    def cost_usd(self) -> float:
        """What all attempts cost, so far."""
        return sum(attempt.cost_usd for attempt in self.attempts)

    def overhead_ms(self) -> float:
        """Milliseconds since arrival that were not spent waiting for a tier."""
        return (time.monotonic() - self.stamps.arrival - self.stamps.tier_seconds) * 1e3

    async def _next_delta(self) -> tuple[Delta, float]:
        """The next delta for the caller and when it may go, in monotonic seconds."""
        while True:
            if self._held and not self._is_holding:
                return self._held.popleft(), time.monotonic()
            began = time.monotonic()
            try:
                delta = await anext(self._deltas)
                if delta.finish_reason == "error":
                    raise TierError(f"tier {self.tier.number} ended a choice with an error")
                self._generated += len(delta.token_ids)
                self.usage = delta.usage or self.usage
                self.replicas += delta.tries
                verdict = None if self._escalation is None else self._escalation.take(delta)
                if verdict is not None and verdict.escalate and await self._escalate(verdict):
                    continue
                self._held.append(delta)
            except StopAsyncIteration:
                if not self._held:
                    raise
                self._escalation = None
            except TierRequestError:
                raise
            except Exception as error:
                await self._fall_over(error)
            finally:
                self.stamps.tier_seconds += time.monotonic() - began

    @property
    def _is_holding(self) -> bool:
        return self._escalation is not None and self._escalation.holding

    async def _escalate(self, verdict: Verdict) -> bool:
        """Hand the answer to the next tier up, if there still is one."""
        higher = self._surroundings.next_up(self.decision, self.tier.number)
        if higher is None:
            return False
        await self._deltas.aclose()
        self._close_attempt("escalated", None)
        log.info(
            "request %s: tier %d hands over to tier %d (%s)",
            self.ask.request_id, self.tier.number, higher.number, verdict.reason,
        )  # fmt: skip
        self._go_on_with(higher)
        return True

    async def _fall_over(self, error: Exception) -> None:
        """Go on with the next tier up, or raise `error` if that is not possible any more."""
        if not isinstance(error, TierError):
            log.error("tier %d failed in request %s", self.tier.number, self.ask.request_id, exc_info=error)
        committed = self.ask.stream and self.stamps.first_delta is not None
        failed_before = any(attempt.status == "error" for attempt in self.attempts)
        may_move = not committed and not failed_before
        higher = self._surroundings.next_up(self.decision, self.tier.number) if may_move else None
        if higher is None:
            raise error
        await self._deltas.aclose()
        self._close_attempt("error", error)
        log.warning(
            "request %s: tier %d failed (%s), tier %d takes over",
            self.ask.request_id, self.tier.number, type(error).__name__, higher.number,
        )  # fmt: skip
        self._go_on_with(higher)

    def _go_on_with(self, tier: Tier) -> None:
        """Begin anew with `tier`, whose answer nothing judges any more."""
        self.tier, self._escalation = tier, None
        self.choices = [Choice() for _ in range(self.ask.choices)]
        self.stamps = self.stamps.again(time.monotonic())
        self._held.clear()
        self._generated, self.usage, self.replicas = 0, None, []
        self._generations = self.ask.generations(self._surroundings.spec(tier.number))
        self._deltas = tier_deltas(tier, self._generations, self.ask.n)

    def _take(self, delta: Delta, now: float) -> None:
        self.stamps.take(now, len(delta.token_ids))
        if delta.usage is not None:
            self.stamps.queue_seconds, self.stamps.preemptions = delta.queue_seconds, delta.preemptions
            return
        self.choices[delta.index].take(delta)

    def _give_up(self, status: Literal["error", "aborted"], error: Exception | None) -> None:
        if self.record is None:
            http_status = CLIENT_CLOSED_REQUEST if error is None else as_api_error(error).status
            begun = self.ask.stream and self.stamps.first_delta is not None
            self._finish(status, 200 if begun else http_status, error)

    def _close_attempt(self, status: AttemptStatus, error: Exception | None) -> Usage:
        usage, verdict = self.usage or self._used_so_far(error), self.verdict
        self.attempts.append(
            Attempt(
                tier=self.tier.number,
                model=self.tier.model,
                status=status,
                cost_usd=self._surroundings.price(self.tier.number, usage),
                error=None if error is None else _shown(error),
                stage=None if verdict is None else verdict.stage,
                p_ok=None if verdict is None else verdict.p_ok[self.tier.number - 1],
                reason=None if verdict is None else verdict.reason,
                replicas=[*self.replicas, *(error.tries if isinstance(error, TierError) else ())],
            )
        )
        return usage

    def _used_so_far(self, error: Exception | None) -> Usage:
        """Tokens to bill for an attempt that did not end by itself: none if the tier never took the request."""
        if isinstance(error, (TierUnavailableError, TierRequestError)) and not self._generated:
            return Usage(prompt_tokens=0, completion_tokens=0)
        try:
            prompt_tokens = sum(self.tier.count_prompt_tokens(generation) for generation in self._generations)
        except TierError:
            # The tier is gone, tokeniser and all; what it generated is still billed.
            prompt_tokens = 0
        return Usage(prompt_tokens=prompt_tokens, completion_tokens=self._generated)

    def _finish(self, status: Status, http_status: int, error: Exception | None) -> None:
        usage = self._close_attempt(status, error)
        self.stamps.finished = time.monotonic()
        self.record = self._recorded(status, http_status, error, usage)
        self._surroundings.finished(self, self.record)

    def _recorded(self, status: Status, http_status: int, error: Exception | None, usage: Usage) -> Record:
        ask, first = self.ask, self.choices[0]
        return Record(
            request_id=ask.request_id,
            created_at=ask.created_at,
            api=ask.api,
            requested_model=ask.requested_model,
            key_id=ask.key_id,
            stream=ask.stream,
            status=status,
            http_status=http_status,
            error=None if error is None else _shown(error),
            decision=self.decision,
            tier=self.tier.number,
            model=self.tier.model,
            attempts=self.attempts,
            messages=ask.recorded_messages(),
            answer=_recorded_answer(first) if ask.store_texts else None,
            reasoning=(first.reasoning or None) if ask.store_texts else None,
            finish_reason=first.finish_reason,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            reasoning_tokens=usage.reasoning_tokens,
            cost_usd=self.cost_usd,
            baseline_cost_usd=self._surroundings.baseline(usage),
            timings=self._timings(),
            response_format=ask.response_format if ask.store_texts else None,
        )

    def _timings(self) -> Timings:
        stamps = self.stamps
        elapsed = stamps.finished - stamps.arrival
        return Timings(
            route_ms=(stamps.routed - stamps.arrival) * 1e3,
            ttft_ms=None if stamps.first_delta is None else (stamps.first_delta - stamps.arrival) * 1e3,
            e2e_ms=elapsed * 1e3,
            overhead_ms=(elapsed - stamps.tier_seconds) * 1e3,
        )


def _recorded_answer(choice: Choice) -> str:
    return ChatMessage(role="assistant", content=choice.text, tool_calls=tuple(choice.tool_calls)).recorded_content()


def _shown(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
