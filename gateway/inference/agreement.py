"""Which requests are answered by several cheap tiers at once, and by the strongest only where these differ; and how the
answers of several tiers become one: they are made at once, until it is known which is sent."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import msgspec
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.decision import Decision
from classifier.features.routing_input import app_of
from classifier.policy.agreement import (
    AgreementGroup,
    AgreementPlan,
    AgreementSettings,
    Counted,
    agreed_tier,
    group_to_verify,
    lacks_counts,
    plan_agreement,
    second_sample_pays,
)
from classifier.policy.agreement_counts import AgreementPlace, AgreementTable
from classifier.policy.decide import beside_agreement
from classifier.policy.utility import agreement_may_pay
from gateway.base.inference_request import InferenceRequest
from gateway.base.stores.retries import look_every
from gateway.inference.answer import Answer
from gateway.inference.router import RoutingService
from gateway.inference.routing_knobs import RoutingKnobFile, RoutingKnobs
from gateway.inference.tier_attempt import SideAnswer, wait_for_next
from quality.records.record import Attempt, ComparedAs, Record
from quality.verification.comparison import VerifiedComparison, place_of, read_agreements
from quality.verification.sampling import Purpose
from tiers.catalog.consent import Use, hidden_from
from tiers.deltas import CollectedChoice
from tiers.final_answer.extract import FinalAnswer, agree, expected_kind, final_answer, question_of
from tiers.response_format import is_text
from tiers.tier import Usage

log = logging.getLogger(__name__)

# Between two looks at the verdicts of this and other processes.
FOLLOW_SECONDS = 30.0


class Agreements:
    """Plans comparisons by what is known of such answers; the counts come from stored requests, and from those that
    end here until the next look."""

    def __init__(
        self, knobs: RoutingKnobFile, routing: RoutingService, settings: AgreementSettings | None = None
    ) -> None:
        self.table = AgreementTable()
        self._knobs, self._routing = knobs, routing
        self._settings = settings or AgreementSettings()

    def plan(self, request: InferenceRequest, decision: Decision) -> "AgreementStage | None":
        """Return how tiers would be compared for `request`, which is done where `is_taken`; None where they cannot."""
        knobs = self._knobs.active
        asked = request.options.agree is True or knobs.agreement == "always"
        if knobs.agreement == "off" or request.options.agree is False or request.options.credential is not None:
            return None
        # Most requests end here, before their texts are read for the kind of answer.
        if not (asked or agreement_may_pay(decision)):
            return None
        if not _may_wait(request, knobs) or not _may_be_compared(request, decision):
            return None
        return AgreementStage(self, request, decision, expected_end(request), asked=asked)

    def told(self, request: InferenceRequest, decision: Decision) -> Decision:
        """Return `decision`, of a request that is not answered, with what agreement is worth."""
        stage = self.plan(request, decision)
        return decision if stage is None else stage.told(decision)

    def planned(self, request: InferenceRequest, decision: Decision, kind: str, *, asked: bool) -> AgreementPlan:
        """Return the plan for an answer of `kind`."""
        counted = self._counted(request, kind)
        plan = plan_agreement(decision.inputs, decision.tier, kind, counted, self._settings, asked)
        if plan.group is None:
            return plan
        hidden = self._hidden(request, plan.group, "answer")
        if hidden is None and not asked:
            hidden = self._errs_alike(plan.group, counted)
        return plan if hidden is None else _without(plan, hidden)

    def _errs_alike(self, group: AgreementGroup, counted: Counted) -> str | None:
        """Return why ladders say nothing of the group and its own counts are too few; None if they do. Tiers with the
        same weights err alike."""
        served = self._routing.served
        paths = served.catalog.model_paths
        models = [served.spec(number).model or f"tier {number}" for number in group.tiers]
        weights = {paths.get(model, model) for model in models}
        if len(weights) == len(group.tiers):
            return None
        verified = sum(level.verified for level in counted(group.tiers))
        if verified >= self._settings.least_verified:
            return None
        tiers = " and ".join(map(str, group.tiers))
        return f"tiers {tiers} have the same weights, and {verified:.0f} comparisons of such answers are verified"

    def to_verify(
        self, request: InferenceRequest, answer: CollectedChoice, record: Record, purpose: Purpose
    ) -> VerifiedComparison | None:
        """Return the cheap tiers whose answers the verification of a finished request compares; None where none are, or
        where counts of such answers decide already, unless a probe asks all tiers anyway."""
        knobs, decision = self._knobs.active, record.decision
        if knobs.agreement == "off" or request.options.agree is False or record.comparison is not None:
            return None
        # The answers of a probe are there anyway, so that those to a stream that does not wait are counted, too.
        if not (purpose == "probe" or _may_wait(request, knobs)) or not _may_be_compared(request, decision):
            return None
        kind = self._kind_of(request, answer)
        if kind is None:
            return None
        inputs, is_judged = decision.inputs, any(attempt.stage is not None for attempt in record.attempts)
        group = group_to_verify(inputs, decision.tier, self._settings, is_judged=is_judged)
        if group is None or self._hidden(request, group, "reuse") is not None:
            return None
        is_free = purpose == "probe" and len({*group.tiers}) == len(group.tiers)
        if not (is_free or lacks_counts(inputs, group, kind, self._counted(request, kind), self._settings)):
            return None
        return VerifiedComparison(tiers=group.tiers, compared_as=ComparedAs(kind=kind, app=app_of_request(request)))

    def second_sample_pays(self, request: InferenceRequest, decision: Decision, tier: int, kind: str) -> bool:
        """Return whether a second sample of `tier` is worth its price for an answer of `kind`, as verified ones say."""
        if self._knobs.active.agreement == "off" or request.options.agree is False:
            return False
        return second_sample_pays(decision.inputs, tier, kind, self._counted(request, kind), self._settings)

    def _counted(self, request: InferenceRequest, kind: str) -> Counted:
        population = AgreementPlace(request.caller.tenant, request.key_id or "", app_of_request(request), kind)
        return partial(self.table.levels, population)

    def _kind_of(self, request: InferenceRequest, answer: CollectedChoice) -> str | None:
        expected = expected_end(request)
        end = end_of(request, answer) if expected is None else None
        return end.kind if end is not None else expected

    def _hidden(self, request: InferenceRequest, group: AgreementGroup, use: Use) -> str | None:
        """Return which of the group's tiers may not see the request, and why; None if all may."""
        for number in (*group.tiers, group.higher):
            # A reload may have changed or removed the tier since the request was routed.
            if number > self._routing.served.strongest:
                return f"tier {number} is gone"
            hidden = hidden_from(self._routing.served.spec(number), request.consent, use)
            if hidden is not None:
                return f"tier {number} is not asked: {hidden}"
        return None

    def observe(self, answer: Answer, record: Record) -> None:
        """Count what became of a finished request."""
        comparison = record.comparison if record.is_made else None
        if comparison is not None and comparison.outcome != "failed":
            population = place_of(answer.request.caller.tenant, record.key_id, comparison.compared_as)
            self.table.compared(population, comparison.tiers, comparison.outcome == "agreed")

    async def follow(self, database: AsyncEngine) -> None:
        """Take in what is stored, at first at once."""
        await look_every(FOLLOW_SECONDS, lambda: self.catch_up(database), "counts of agreement", log)

    async def catch_up(self, database: AsyncEngine) -> None:
        """Replace the counts by those of the stored requests."""
        if self._knobs.active.agreement != "off":
            served = self._routing.served
            models = {spec.number: spec.model_name for spec in served.catalog.tiers}
            models |= {number: tier.model for number, tier in served.tiers.items()}
            self.table = await read_agreements(database, models)


def _without(plan: AgreementPlan, because: str) -> AgreementPlan:
    """Return a plan by which nothing is compared, `because` of what `plan` did not know."""
    priced = plan.priced
    if priced is not None and priced.taken:
        priced = msgspec.structs.replace(priced, taken=False, because=because)
    return AgreementPlan(reason=because, priced=priced)


class ChainVerdict(NamedTuple):
    """What comparing the answers of a chain gave."""

    sent: int | None
    """The tier whose answer is sent; None for the higher tier's."""
    agreed: tuple[int, ...]
    """The tiers that said the same."""
    reason: str


class AgreementStage:
    """The comparison of one request's answers. `kind`: of the end that is compared, None until the first answer shows
    it; `plan`: who is asked, no tier unless it `is_taken`."""

    def __init__(
        self, agreements: Agreements, request: InferenceRequest, decision: Decision, kind: str | None, *, asked: bool
    ) -> None:
        self.kind, self._agreements, self._request, self._decision = kind, agreements, request, decision
        self._asked = asked
        self.plan = agreements.planned(request, decision, kind or "", asked=asked or kind is None)
        if kind is None and self.plan.first != decision.tier:
            # A cheaper tier takes the place of the chosen one only where a comparison is certain.
            self.plan = AgreementPlan(reason="the end of the answer is not known before it")

    @property
    def is_taken(self) -> bool:
        return self.plan.group is not None

    @property
    def is_by_answer(self) -> bool:
        """Whether only the first answer can show what is compared."""
        return self.is_taken and self.kind is None

    def leave(self, because: str) -> None:
        """Compare nothing, because of what the plan does not know."""
        self.plan = _without(self.plan, because)

    def told(self, decision: Decision) -> Decision:
        """Return `decision` with what the comparison is worth against single tiers, once its end's kind is known."""
        priced = self.plan.priced
        return decision if self.kind is None or priced is None else beside_agreement(decision, priced)

    @property
    def group(self) -> AgreementGroup:
        assert self.plan.group is not None
        return self.plan.group

    @property
    def p_ok(self) -> list[float]:
        """P(good enough) by tier, as the decision knows it."""
        return self._decision.inputs.prediction.p_ok

    @property
    def first(self) -> int:
        """The tier that is asked first, or at once with the others."""
        assert self.plan.first is not None
        return self.plan.first

    @property
    def asked(self) -> tuple[int, ...]:
        return (*self.group.tiers, self.group.higher)

    @property
    def compared_as(self) -> ComparedAs:
        """What is recorded of the comparison."""
        app = app_of_request(self._request) if self._request.consent.reuse else ""
        return ComparedAs(kind=self.kind or "", app=app)

    def is_worth_it(self, first: SideAnswer) -> bool:
        """Whether others are asked after `first` ended, whose answer showed the kind of its end."""
        if self.kind is not None:
            return True
        if not first.ended or (end := end_of(self._request, first.choice)) is None:
            return False
        plan = self._agreements.planned(self._request, self._decision, end.kind, asked=self._asked)
        self.kind, is_same = end.kind, plan.group == self.plan.group
        if is_same or plan.group is None:
            self.plan = plan
        return is_same

    def verdict(self, answers: dict[int, SideAnswer]) -> ChainVerdict | None:
        """Compare the `answers` of the group's tiers; None while those that are not over may still change it."""
        ends = {number: end_of(self._request, side.choice) if side.ended else None for number, side in answers.items()}

        def equal(number: int, other: int) -> bool:
            return agree(ends[number], ends[other])

        sent, middle = agreed_tier(self.group, equal), self.group.middle
        if sent is not None:
            agreed = tuple(number for number in self.group.tiers if equal(number, sent))
            return ChainVerdict(sent, agreed, f"tiers {' and '.join(map(str, agreed))} agree")
        waiting = {number for number, side in answers.items() if not side.is_over}
        may_agree = {number for number, end in ends.items() if end is not None or number in waiting}
        pairs = [{number, middle} for number in answers if number != middle]
        if any(pair <= may_agree and pair & waiting for pair in pairs):
            return None
        failed = [str(number) for number, side in answers.items() if side.is_over and not side.ended]
        why = f"tier {', '.join(failed)} gave no answer" if failed else "the answers differ"
        return ChainVerdict(None, (), f"{why}, tier {self.group.higher} is asked")


def expected_end(request: InferenceRequest) -> str | None:
    """Return the kind of final answer that the request itself asks for; None where only an answer can show it."""
    tooling = request.generation.tooling
    if tooling is not None and tooling.callable_tools:
        return None
    return expected_kind(question_of(request.generation.messages or ()), _format_of(request))


def end_of(request: InferenceRequest, answer: CollectedChoice) -> FinalAnswer | None:
    """Return the final answer that is compared; None, which agrees with nothing, if there is none or it was cut off."""
    if answer.finish_reason not in ("stop", "tool_calls"):
        return None
    return final_answer(
        question_of(request.generation.messages or ()), answer.text, _format_of(request), answer.tool_calls
    )


def _format_of(request: InferenceRequest) -> dict[str, Any] | None:
    wanted = request.generation.response_format
    return None if is_text(wanted) else wanted


def app_of_request(request: InferenceRequest) -> str:
    """Return the hash of the request's system prompt, as its `RoutingInput` has it."""
    messages = request.generation.messages or ()
    return app_of("\n".join(message.text for message in messages if message.role in ("system", "developer")))


def _may_wait(request: InferenceRequest, knobs: RoutingKnobs) -> bool:
    """Whether the first byte may wait for several whole answers."""
    may_wait = knobs.streams_may_wait if request.options.may_wait is None else request.options.may_wait
    return not request.stream or may_wait or request.options.agree is True


def _may_be_compared(request: InferenceRequest, decision: Decision) -> bool:
    """Whether several tiers may answer: a single answer without a deadline of a tier that was not named."""
    inputs = decision.inputs
    named = decision.would_be is not None or decision.by_edge or inputs.in_tool_loop or inputs.is_constant
    named = named or inputs.cheapest is not None
    asked = request.generation
    forced = asked.tooling is not None and asked.tooling.is_forced
    bound = forced or bool(asked.adapter) or (asked.sampling.grammar is not None and asked.response_format is None)
    free = not (named or bound or request.options.deadline_seconds)
    return request.is_single and free and asked.messages is not None


class Comparison:
    """`run` it once, and always `aclose` it; then `chosen` is the answer that is sent. If it is None, the higher tier
    answers, or, without a `verdict`, the caller has left."""

    def __init__(
        self, stage: AgreementStage, ask: Callable[[int], SideAnswer], higher_may_answer: Callable[[], bool]
    ) -> None:
        """`ask` starts the answer of a tier by its number."""
        self.stage = stage
        self.chosen: SideAnswer | None = None
        self.verdict: ChainVerdict | None = None
        self._ask, self._higher_may_answer = ask, higher_may_answer
        self._sides: dict[int, SideAnswer] = {}
        self._attempts: dict[int, Attempt] = {}

    async def run(self, first: int) -> None:
        """Ask all tiers at once if what is compared is known, else `first` before the others."""
        stage, sides = self.stage, self._sides
        if stage.kind is None:
            sides[first] = self._ask(first)
            await sides[first].wait()
            if not stage.is_worth_it(sides[first]):
                self.chosen = sides[first]
                return
        sides.update((number, self._ask(number)) for number in stage.group.tiers if number not in sides)
        while (verdict := stage.verdict(sides)) is None:
            await wait_for_next(sides.values())
        if verdict.sent is not None:
            self.chosen = sides[verdict.sent]
        elif not self._higher_may_answer():
            # What is being made is all that there will be.
            await asyncio.gather(*(side.wait() for side in sides.values()))
            self.chosen = self._best()
            verdict = verdict._replace(reason=f"{verdict.reason}, but it may not answer now")
        self.verdict = verdict

    async def aclose(self) -> None:
        """Stop the answers that are still being made: their tiers' work is freed within one step."""
        await asyncio.gather(*(side.aclose() for side in self._sides.values()))

    def attempts(self) -> list[Attempt]:
        """Return the attempts of the answers that are not sent."""
        verdict = self.verdict
        agreed, reason = ((), None) if verdict is None else (verdict.agreed, verdict.reason)
        self._attempts = {
            number: side.attempt(self.stage.compared_as, "agreed" if number in agreed else "differed", reason)
            for number, side in self._sides.items()
            if side is not self.chosen
        }
        return list(self._attempts.values())

    @property
    def usage(self) -> Usage:
        return Usage.total(side.usage for side in self._sides.values())

    @property
    def spare(self) -> tuple[SideAnswer, Attempt] | None:
        """The best answer that is not sent, and its attempt; None where none is whole."""
        best = self._best()
        return None if best is None or best is self.chosen else (best, self._attempts[best.tier.number])

    def _best(self) -> SideAnswer | None:
        """The whole answer that is best by the decision: all are paid."""
        p_ok, whole = self.stage.p_ok, [side for side in self._sides.values() if side.ended]
        return max(whole, key=lambda side: (p_ok[side.tier.number - 1], side.tier.number), default=None)
