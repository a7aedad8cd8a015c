"""Generate an answer by one or more tiers, with hold, escalation and fall-over, and record each attempt's cost."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec

from classifier.decision import Decision
from classifier.policy.decide import fallen_over
from gateway.base.inference_request import InferenceRequest
from gateway.base.logs import FIELDS
from gateway.inference.agreement import AgreementStage, Comparison
from gateway.inference.answer import Bill
from gateway.inference.answer_limits import lowered
from gateway.inference.escalation import ActiveProbes, Escalation, EscalationDecision
from gateway.inference.router import RoutingService
from gateway.inference.tier_attempt import RefusedLengths, SideAnswer, TierAttempt, tier_deltas
from gateway.tenancy.admission import Admission, max_cost_usd, most_tokens
from quality.records.record import Attempt, AttemptStatus, CacheUse, ComparedAs
from tiers.catalog.consent import hidden_from
from tiers.deltas import CollectedChoice, asking_uncertainty
from tiers.errors import (
    InvalidAnswerError,
    TierCapabilityError,
    TierContextError,
    TierError,
    TierLostError,
    TierRequestError,
    TierUnavailableError,
)
from tiers.tier import Delta, GenerationRequest, Restarted, Tier, Usage

if TYPE_CHECKING:
    from gateway.inference.rules_and_chains import FallbackChain

log = logging.getLogger(__name__)

# The other fields that mean something to a provider are heard here, too: prefixes are cached, tags recorded.
_NOT_IN_PROCESS = ("verbosity",)


class Generation:
    """The deltas of one answer, over all tiers that are tried for it. Iterate over it, and always `aclose` it.

    A stream cannot move to another tier after its first delta. A whole answer can at any time, because nothing has
    reached the caller. An answer that is not valid for the caller's schema is made again, once, by the same tier with
    another seed. A request falls over at most once (SPEC RT-11), or along the `fallback` of its tier; from a tier that
    cannot take it, because it is too long for example, to any other that may. It escalates at most once: the answer's
    own evidence may show that it is not good enough before any of it is passed on. If the fast path fails, normal
    routing runs: `rerouted` is then True and `decision` is the new one. Each attempt but the first begins with
    `Restarted`.
    """

    # This answer has one reader and is not kept.
    cached: CacheUse | None = None
    is_continued = False
    rerouted = False
    fell_over: str | None = None
    """What failed and what took over, in words, which the decision's reason repeats."""
    _chain: "FallbackChain | None" = None
    _refusals = 0
    _was_invalid = _let_go = _over = False
    _reason: str | None = None
    # What was compared by an end that only the answer showed: decisions could not tell of it before.
    _shown: AgreementStage | None = None
    # One without agreement: if the tier above fails, the best answer is sent.
    _comparison: Comparison | None = None
    _lost: TierLostError | None = None

    def __init__(
        self,
        request: InferenceRequest,
        decision: Decision,
        tier: Tier,
        routing: RoutingService,
        admission: Admission,
        probes: ActiveProbes | None,
        agreement: AgreementStage | None = None,
    ) -> None:
        """`admission`: where the caller's budget is held; `probes`: judge the answer, None if nothing does.
        `agreement`: cheap tiers answer and are compared instead; the budget covers all that may be asked."""
        self.request = request
        self.decision = decision
        self.attempts: list[Attempt] = []
        self._routing, self._admission, self._agreement = routing, admission, agreement
        self._lengths = RefusedLengths()
        self._made: list[TierAttempt] = []
        self._escalation: Escalation | None = None
        self._compared_as: ComparedAs | None = None
        self._held: deque[Delta | Restarted] = deque()
        # The request as the next tier may see it: only the first has the caller's own credential.
        self._asking = request
        escalation = None
        if probes is not None and agreement is None and tier.number in probes.models:
            escalation = probes.escalation(request, decision, tier.number, routing)
        self._go_on_with(tier, escalation)
        self._asking = request.without_credential()

    def __aiter__(self) -> "Generation":
        return self

    async def __anext__(self) -> Delta | Restarted:
        if self._over:
            raise StopAsyncIteration
        while True:
            try:
                if self._held and not self._is_holding:
                    event = self._held.popleft()
                    self._let_go = self._let_go or isinstance(event, Delta)
                    return event
                if self._agreement is not None:
                    await self._compare(self._agreement)
                    continue
                delta = await anext(self._attempt.deltas)
                if delta.finish_reason == "error":
                    raise TierError(f"tier {self.tier.number} ended a choice with an error")
                if delta.end is not None:
                    used = self._attempt.usage = self._attempt.within_hold(delta.end.usage)
                    if used is not delta.end.usage:
                        delta.end = msgspec.structs.replace(delta.end, usage=used)
                if delta.tries:
                    self._attempt.replicas += delta.tries
                escalation = self._escalation
                if escalation is not None and await self._escalate_if_needed(escalation, delta):
                    continue
                if self._hides_logprobs:
                    delta.logprobs = None
                if delta.made_at is None:
                    # An answer that was compared has been kept since its tier gave it.
                    delta.made_at = time.monotonic()
                if escalation is None:
                    self._let_go = True
                    return delta
                self._held.append(delta)
            except StopAsyncIteration:
                if not self._held:
                    self._end("ok", None)
                    raise
                self._escalation = None
            except Exception as error:
                await self._take_over(error)

    async def aclose(self) -> None:
        """Stop: the tier's work is freed within one step. Idempotent; closes the bill even if cancelled."""
        try:
            await self._attempt.deltas.aclose()
        finally:
            self._end("aborted", None)

    @property
    def verdict(self) -> EscalationDecision | None:
        """What the answering tier's own evidence said of the answer, or that of the tier that it was taken from."""
        return None if self._escalation is None else self._escalation.verdict

    @property
    def p_ok(self) -> float:
        """P(the answer is no worse than the strongest tier's), with its own evidence where that was judged."""
        verdict = self.verdict
        p_ok = self.decision.inputs.prediction.p_ok if verdict is None else verdict.p_ok
        return p_ok[self.tier.number - 1]

    @property
    def dropped(self) -> tuple[str, ...]:
        if self._attempt.spec.remote is None:
            asked = self.request.generation
            passed = [name for name in _NOT_IN_PROCESS if name in asked.passed]
            return (*passed, *asked.lost_in(None), *asked.extra)
        return self._attempt.requests[0].sent.dropped

    @property
    def changed(self) -> tuple[str, ...]:
        return self._attempt.requests[0].sent.changed

    @property
    def limit(self) -> int | None:
        """See `AnswerSource`."""
        most, asked = self._attempt.most, self.request
        limits = self._asking.limits
        is_callers = asked.generation.max_tokens is not None and not asked.usual_max_tokens
        is_lowered = limits is not None and self._attempt.spec.name in limits.tokens
        if most is None or (is_callers and not is_lowered):
            return None
        return self._attempt.requests[0].sent.max_tokens or most.choice

    def unsettled(self) -> list[asyncio.Task[None]]:
        """See `AnswerSource`."""
        return [task for made in self._made for task in made.unsettled]

    def bill(self) -> Bill:
        """The bill so far; before the end, as if the generation were aborted now."""
        for made in self._made:
            before, settled = made.recorded, made.settle()
            if settled is not None:
                self.attempts = [settled if attempt is before else attempt for attempt in self.attempts]
        if self._over:
            return Bill(attempts=self.attempts, usage=self._attempt.usage or Usage())
        usage = self._attempt.usage or self._attempt.used_so_far()
        return Bill(attempts=[*self.attempts, self._recorded("aborted", None)], usage=usage)

    async def _take_over(self, error: Exception) -> None:
        """Go on after `error` with what stands in for the tier, or raise it and end."""
        try:
            is_of_tier = isinstance(error, TierCapabilityError)
            if isinstance(error, TierRequestError) and not is_of_tier and self._chain is None:
                raise error
            await self._fall_over(error)
        except Exception as final:
            await self._attempt.deltas.aclose()
            self._end("error", final)
            raise
        finally:
            # Otherwise the raised error's traceback would lead back to the error, by this frame.
            del error

    async def _compare(self, stage: AgreementStage) -> None:
        """Let the stage's tiers answer, and go on with what they agree on, or with the tier above. All are billed, also
        if the caller leaves."""
        self._agreement, higher = None, stage.group.higher
        self._shown = stage if stage.is_by_answer else None
        comparison = Comparison(
            stage, self._side, lambda: bool(self._routing.above(self.request, self.decision, higher - 1))
        )
        try:
            await comparison.run(self.tier.number)
        finally:
            try:
                await comparison.aclose()
            finally:
                # Billed even if the closing itself is cancelled.
                self._go_on_after(comparison)
        if comparison.verdict is not None:
            log.info("request %s: %s", self.request.request_id, comparison.verdict.reason)
        if comparison.chosen is None:
            self._restart_with(self._routing.served.tier(higher))

    def _side(self, number: int) -> SideAnswer:
        """Start an answer of a tier that is compared; the budget already covers it."""
        return SideAnswer(self._begun(self._routing.served.tier(number), 1))

    def _go_on_after(self, comparison: Comparison) -> None:
        """Record the answers that are not sent, and go on with the one that is, if one is."""
        self.attempts += comparison.attempts()
        self.decision = self.told(self.decision)
        if comparison.chosen is not None:
            self._restart(comparison.chosen.replayed())
            if comparison.verdict is not None:
                self._compared_as, self._reason = comparison.stage.compared_as, comparison.verdict.reason
        elif comparison.verdict is not None:
            self._comparison = comparison
        else:
            self._over, self._attempt.usage = True, comparison.usage

    def _send_best_compared_answer(self, side: SideAnswer, made: Attempt, error: Exception) -> None:
        """Send an answer that agreed with no other, because the tier above failed with `error`; it is billed once."""
        self._close_attempt("error", error)
        self.attempts = [attempt for attempt in self.attempts if attempt is not made]
        self._restart(side.replayed())
        self._compared_as = made.compared_as
        self._reason = f"{made.reason}, but it failed"

    @property
    def _is_holding(self) -> bool:
        return self._escalation is not None and self._escalation.holding

    async def _escalate_if_needed(self, escalation: Escalation, delta: Delta) -> bool:
        """Judge the answer with `delta`; returns whether it was not good enough and another tier answers now."""
        verdict = escalation.take(delta)
        if verdict is None or not verdict.escalate:
            return False
        again = escalation.second_sample(self._attempt.requests[0])
        if again is not None and again.credential is None and self._affords_whole(self.tier):
            text = await self._second_sample(again)
            verdict = verdict if text is None else escalation.compared(text)
        return verdict.escalate and await self._escalate(verdict)

    async def _second_sample(self, request: GenerationRequest) -> str | None:
        """Return a second answer of the same tier to compare with the first; None if it fails. It is billed as a
        separate attempt, even if the caller disconnects before its end."""
        sample, failed, deltas = CollectedChoice(), None, self._generated(self.tier, [request], 1)
        attempt = self._note_made(TierAttempt(self.tier, self._attempt.spec, [request], self._attempt.most, deltas))
        try:
            async with aclosing(deltas):
                async for delta in deltas:
                    sample.take(delta)
                    attempt.replicas += delta.tries
        except TierError as error:
            failed = error
        finally:
            attempt.usage = attempt.within_hold(sample.usage or request.meter.usage())
            self.attempts.append(attempt.record("compared", failed))
        return None if failed is not None else sample.text

    async def _escalate(self, verdict: EscalationDecision) -> bool:
        """Continue with the tier above that is worth most and takes the request. Returns False if there is none."""
        above = {tier.number: tier for tier in self._routing.above(self._asking, self.decision, self.tier.number)}
        higher = next((above[k] for k in verdict.better if k in above and self._takes(above[k])), None)
        if higher is None:
            return False
        await self._attempt.deltas.aclose()
        self._close_attempt("escalated", None)
        log.info(
            "request %s: tier %d hands over to tier %d (%s)",
            self.request.request_id, self.tier.number, higher.number, verdict.reason,
        )  # fmt: skip
        self._restart_with(higher)
        return True

    async def _fall_over(self, error: Exception) -> None:
        """Continue with what stands in for the failed tier, or raise `error`, with all that was tried, if nothing does.
        If a process died of the request and the next tier is down because of it, the first error is raised."""
        if not isinstance(error, TierError):
            log.error(
                "tier %d failed in request %s", self.tier.number, self.request.request_id,
                exc_info=error, extra={FIELDS: {"tier": self.tier.number}},
            )  # fmt: skip
        if isinstance(error, TierLostError):
            self._lost = error
        committed = self.request.stream and self._let_go
        if isinstance(error, TierContextError):
            self._lengths.note(error, self.tier, self._attempt.spec)
        stand_in = None
        if not committed:
            # What it did not cost is there for the next attempt.
            await self._attempt.deltas.aclose()
            self._attempt.usage = self._attempt.usage or self._attempt.used_so_far(error)
            await self._make_room()
            is_refused = isinstance(error, TierCapabilityError)
            stand_in = self._again(error) or await self._stand_in(is_refused=is_refused)
        if stand_in is None and self._comparison is not None and not committed:
            comparison, self._comparison = self._comparison, None
            if comparison.spare is not None:
                await self._attempt.deltas.aclose()
                self._send_best_compared_answer(*comparison.spare, error)
                return
            stand_in = self._other()
        if stand_in is None:
            lost = self._lost if self._lost is not None and isinstance(error, TierUnavailableError) else error
            if isinstance(lost, TierError):
                lost.chain = self._tried()
            if isinstance(lost, TierUnavailableError):
                # This failure may be the one that took its tier down.
                down = min(made.tier.load().down_seconds for made in self._made)
                lost.retry_after_seconds = max(lost.retry_after_seconds, down)
            if self._chain is not None:
                self._note_fallback(f"{named(self.tier)} failed ({type(error).__name__})")
            try:
                raise lost
            finally:
                del lost, error
        await self._attempt.deltas.aclose()
        self._close_attempt("error", error)
        self._refusals += isinstance(error, TierCapabilityError)
        self._note_fallback(f"{named(self.tier)} failed ({type(error).__name__}), {named(stand_in)} took over")
        log.warning("request %s: %s", self.request.request_id, self.fell_over)
        self._restart_with(stand_in)

    def _note_fallback(self, said: str) -> None:
        self.fell_over = said if self.fell_over is None else f"{self.fell_over}; {said}"
        self.decision = self.told(self.decision)

    def told(self, decision: Decision) -> Decision:
        """Return `decision`, of a reader of this answer, with what was compared, what failed and what took over."""
        if self._shown is not None:
            decision = self._shown.told(decision)
        if self.fell_over is None:
            return decision
        passed = () if self._chain is None else self._chain.passed_over
        return fallen_over(decision, "; ".join((self.fell_over, *passed)))

    def _tried(self) -> str:
        """All that was tried, in order, where it was more than one tier, and what was passed over."""
        names = [attempt.target or f"tier {attempt.tier}" for attempt in self.attempts if attempt.status == "error"]
        passed = [] if self._chain is None else self._chain.passed_over
        if not names and not passed:
            return ""
        return "; ".join([f"Tried in this order: {', '.join([*names, named(self.tier)])}", *passed])

    def _again(self, error: Exception) -> Tier | None:
        """Return the tier itself after the first answer that is not valid, to answer again in another way."""
        if not isinstance(error, InvalidAnswerError) or self._was_invalid or self.tier.asks_credential:
            return None
        if not self._affords(self.tier):
            return None
        self._was_invalid = True
        self._asking = self._asking.for_another_answer(error.token_ids)
        return self.tier

    async def _stand_in(self, *, is_refused: bool) -> Tier | None:
        """Return what replaces a failed tier: the ordinary route's if the fast path failed, the next of the tier's
        chain if it has one, else once what the same decision takes without the tiers that were tried. One that cannot
        take the request at all (`is_refused`) is not counted as a failure."""
        if self._chain is not None:
            return self._chain.next()
        failed_before = sum(attempt.status == "error" for attempt in self.attempts) > self._refusals
        if failed_before or not self.decision.by_edge:
            served, named = self._routing.served, None
            if self.decision.inputs.pinned_tier is not None:
                named = served.named_spec(self.request.requested_model)
            has_chain = self._attempt.spec if named is None else named
            if has_chain.fallback is None and not self.tier.is_target:
                # After a comparison, what is there costs nothing more.
                is_over = failed_before or self._comparison is not None
                return None if is_over and not is_refused else self._other()
            from gateway.inference.rules_and_chains import FallbackChain, chain_of

            names = chain_of(served.catalog, self._attempt.spec, named)
            self._chain = FallbackChain(names, self._asking, self.decision, served, self._affords, self._fits, named)
            return self._chain.next()
        ordinary = await self._routing.ordinary_route(self._asking, self.decision)
        if ordinary is None or not self._takes(tier := self._routing.served.tier(ordinary.tier)):
            return self._other() if is_refused else None
        self.decision, self.rerouted = ordinary, True
        return tier

    def _other(self) -> Tier | None:
        """Return what the decision takes without the tiers that were tried, if the caller's budgets cover it. One that
        was stopped, because it could not agree with any, may answer after all."""
        tried = {self.tier.number, *(attempt.tier for attempt in self.attempts if attempt.status != "aborted")}
        return self._routing.stand_in(self._asking, self.decision, tried, self._takes)

    def _takes(self, tier: Tier) -> bool:
        return self._fits(tier) and self._affords(tier)

    def _fits(self, tier: Tier) -> bool:
        return self._lengths.admit(tier, self._routing.served.spec_of(tier))

    def _affords(self, tier: Tier) -> bool:
        """Whether the caller's budgets cover another attempt, by `tier`, if need be with a lower limit than usual; its
        maximum cost is then reserved."""
        if self._affords_whole(tier):
            return True
        left_usd = self._admission.left_usd + self._spare_usd
        smaller = lowered(self._asking, tier, self._routing.served.spec_of(tier), left_usd)
        if smaller is None:
            return False
        before, self._asking = self._asking, smaller
        if self._affords_whole(tier):
            return True
        self._asking = before
        return False

    def _affords_whole(self, tier: Tier) -> bool:
        """As `_affords`, with the limit as it is."""
        if self._admission.hold is None:
            return True
        more = max_cost_usd(self._asking, tier, self._routing.served.spec_of(tier)) - self._spare_usd
        return more <= 0 or self._admission.affords(more)

    @property
    def _spare_usd(self) -> float:
        """US dollars that are held and that no attempt can be billed for: those that ended cost less than they might
        have."""
        held_usd = self._admission.held_usd
        return 0.0 if held_usd is None else max(0.0, held_usd - sum([made.most_usd for made in self._made]))

    async def _make_room(self) -> None:
        """Lease what an attempt by any tier that may take over costs, so that it is found without waiting."""
        served = self._routing.served
        if self._admission.hold is None:
            return
        for tier in (self.tier, *served.tiers.values(), *served.targets.values()):
            if self._fits(tier):
                more = max_cost_usd(self._asking, tier, served.spec_of(tier)) - self._spare_usd
                if more > 0:
                    await self._admission.make_room(self.request.caller, more)

    def _restart_with(self, tier: Tier) -> None:
        """Begin an attempt of `tier`, which gives the answer from its beginning."""
        self._go_on_with(tier)
        self._restart(self._attempt)

    def _go_on_with(self, tier: Tier, escalation: Escalation | None = None) -> None:
        """Begin an attempt of `tier`, which goes on with the answer; only `escalation` judges what it says."""
        self._escalation, self._compared_as = escalation, None
        # Log-probabilities requested for the judge alone are not passed on.
        self._hides_logprobs = escalation is not None and self.request.generation.sampling.logprobs is None
        self._held.clear()
        self._read(self._begun(tier, self.request.generation.n, judged=escalation is not None))

    def _restart(self, attempt: TierAttempt) -> None:
        """Read the deltas of `attempt` in place of all that came before."""
        self._read(attempt)
        self._held.append(Restarted(attempt.began))

    def _read(self, attempt: TierAttempt) -> None:
        self._attempt, self.tier = attempt, attempt.tier

    def _begun(self, tier: Tier, n: int, *, judged: bool = False) -> TierAttempt:
        """Begin an attempt of `tier` with `n` choices. Charged to a budget, it is bounded by the tokens that are held;
        of an answer that is `judged` the tier reports how uncertain it is."""
        spec = self._routing.served.spec_of(tier)
        requests, most = self._asking.generations(spec), None
        if self._admission.hold is not None:
            most = most_tokens(self._asking, tier, spec)
            requests = [msgspec.structs.replace(request, max_tokens=most.choice) for request in requests]
        if spec.remote is not None and self._asking.is_bounded:
            from tiers.dialects.extras import with_bounds

            requests = [with_bounds(spec, request) for request in requests]
        if judged:
            requests = [asking_uncertainty(request, tier, spec.tells_logprobs) for request in requests]
        return self._note_made(TierAttempt(tier, spec, requests, most, self._generated(tier, requests, n)))

    def _note_made(self, attempt: TierAttempt) -> TierAttempt:
        self._made.append(attempt)
        return attempt

    def _generated(self, tier: Tier, requests: list[GenerationRequest], n: int) -> AsyncGenerator[Delta, None]:
        """The deltas of `n` choices for each of `requests` by `tier`, if it may still see them: every attempt and every
        sample begins here, and a reload may have changed the tier since the request was routed."""
        if (hidden := hidden_from(tier, self._asking.consent)) is not None:
            return _refused(tier, hidden)
        if len(requests) == 1 and requests[0].n == n:
            # Contract of `Tier`: the iterator can be closed early, so it is a generator.
            deltas: AsyncGenerator[Delta, None] = tier.generate(requests[0])  # type: ignore[assignment]
            if requests[0].tooling is None and requests[0].sampling.grammar is None:
                return deltas
            from tiers.answer_check import checked  # few requests have something to check

            return checked(tier, requests[0], deltas)
        return tier_deltas(tier, requests, n)

    def _end(self, status: AttemptStatus, error: Exception | None) -> None:
        if not self._over:
            self._over, self._lost = True, None
            self._close_attempt(status, error)

    def _close_attempt(self, status: AttemptStatus, error: Exception | None) -> None:
        self._attempt.usage = self._attempt.usage or self._attempt.used_so_far(error)
        self.attempts.append(self._recorded(status, error))

    def _recorded(self, status: AttemptStatus, error: Exception | None) -> Attempt:
        verdict = self.verdict
        return self._attempt.record(
            status,
            error,
            stage=None if verdict is None else verdict.stage,
            p_ok=None if verdict is None else verdict.p_ok[self.tier.number - 1],
            reason=self._reason if verdict is None else verdict.reason,
            compared_as=self._compared_as,
        )


def named(tier: Tier) -> str:
    """Return what messages call a tier: a target by its name."""
    return tier.name if tier.is_target else f"tier {tier.number}"


async def _refused(tier: Tier, reason: str) -> AsyncGenerator[Delta, None]:
    """Instead of the deltas of a tier that may not see the request."""
    nothing: list[Delta] = []
    for delta in nothing:
        yield delta
    raise TierUnavailableError(f"tier {tier.number} is not asked: {reason}")
