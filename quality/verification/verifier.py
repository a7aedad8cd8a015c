"""One verification: which tiers it asks and whether each may see the request and can take it; they answer the same
prompt, and the panel compares with the strongest tier's answer."""

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from inference_core.protocol import Grammar, SamplingParams
from quality.estimates.verified_sample import UNCERTAIN
from quality.judges.json_answers import NAME
from quality.judges.judge import JudgeVerdict
from quality.judges.pairwise import MOST_READINGS, PairwiseJudge
from quality.judges.panel import Panel
from quality.judges.pauses import JudgePauses
from quality.records.record import Record
from quality.records.redaction import DROPPED, RedactText, redacted_text
from quality.verification.comparison import VerifiedComparison, agreeing, is_lost
from quality.verification.job import Exchange, Ruling, VerificationJob
from quality.verification.judging import (
    MOST_OPINIONS,
    SECOND_SEED,
    SECOND_TEMPERATURE,
    Compared,
    Reply,
    Verdict,
    comparing_by,
    find,
    flaw_of_served,
    objection,
    other_tier,
    prompt_text,
    seen_with,
    served_reply,
    turns_of,
)
from quality.verification.sampling import Purpose
from quality.verification.tier_terms import TierTerms
from tiers.catalog.consent import Consent, hidden_from
from tiers.catalog.tier_spec import Capability
from tiers.deltas import CollectedChoice
from tiers.errors import TierError
from tiers.final_answer.extract import final_answer, question_of
from tiers.response_format import schema_of
from tiers.tier import REPLAYED, GenerationRequest, Tier, Usage


class AskedTiers:
    """Looks at `tiers`, cheapest first."""

    def __init__(self, tiers: Sequence[Tier], terms: TierTerms) -> None:
        self._tiers = {tier.number: tier for tier in tiers}
        self._terms = terms

    def judged(self, job: VerificationJob) -> list[int]:
        """Return the tiers that a job judges; the first one's ruling is the job's own row. Raises `ValueError`."""
        return self._judged(job.purpose, job.served_tier, job.would_be_tier)

    def asked(self, job: VerificationJob) -> list[int]:
        """Return the tiers that a job asks, ascending: those that answer, judge, or are compared."""
        compared = () if job.compared is None else job.compared.tiers
        return sorted({*self._asked(job.purpose, job.served_tier, job.would_be_tier), *compared} & set(self._tiers))

    def hidden(self, purpose: Purpose, served: int, consent: Consent, would_be: int | None) -> str | None:
        """Return why a request may not be verified for this purpose: a tier that would be asked may not see it; None if
        all may, and for tiers that there are none of, of which the job fails before anything is sent. The strongest
        answers or judges in every case."""
        asked = self._asked(purpose, served, would_be)
        return next(filter(None, (hidden_from(self._tiers[number], consent, "reuse") for number in asked)), None)

    def unable(
        self, purpose: Purpose, served: int, needs: frozenset[Capability], would_be: int | None = None
    ) -> str | None:
        """Return why a turn may not be verified for this purpose: a tier that would be asked cannot take it."""
        lacking = (
            number for number in self._asked(purpose, served, would_be) if not self._terms.supports(number, needs)
        )
        first = next(lacking, None)
        return None if first is None else f"tier {first} does not support {', '.join(sorted(needs))}"

    def takes(self, number: int, job: VerificationJob) -> bool:
        """Whether a tier supports what the turn of `job` needs."""
        return job.turn is None or self._terms.supports(number, job.turn.needs)

    def _asked(self, purpose: Purpose, served: int, would_be: int | None) -> list[int]:
        """Return the tiers that answer or judge, ascending; none where the job fails before anything is sent."""
        try:
            judged = self._judged(purpose, served, would_be)
        except ValueError:
            return []
        return sorted({number for number in judged if number != served} | {max(self._tiers)})

    def _judged(self, purpose: Purpose, served: int, would_be: int | None) -> list[int]:
        """Return the tiers whose answers are judged, with the verification's own tier first (docs/quality-loop.md).

        The strongest tier's answer is the reference, so for it the tier below is judged. A shadow judges the `would_be`
        tier. Raises `ValueError` if there is none.
        """
        tiers = list(self._tiers)
        if purpose == "shadow":
            if would_be is None or would_be not in tiers:
                raise ValueError(f"routing would have taken tier {would_be}, and there are tiers 1 to {tiers[-1]}")
            return [would_be]
        below = min(served, tiers[-1] - 1)
        if purpose == "probe":
            return [below, *(number for number in tiers if number not in (below, tiers[-1]))]
        if purpose == "downgrade" and served == below and below > 1:
            return [below - 1, below]
        return [below]


IDLE_PRIORITY = 3
"""In our own cores it runs only while nothing else does (`AddRequest.idle`)."""


class Waited:
    """How many `seconds` an attempt's answers have waited for other work in our cores."""

    def __init__(self) -> None:
        self.seconds = 0.0


class _Run:
    """One attempt: its answers, each asked for once, by tier and whether it is a second one, and what it cost."""

    def __init__(self, job: VerificationJob, waited: Waited) -> None:
        self.job, self.waited = job, waited
        self.answers: dict[tuple[int, bool], Reply] = {}
        self.bill: list[float] = []

    @property
    def cost_usd(self) -> float:
        return sum(self.bill)


class AttemptError(Exception):
    """An attempt failed after it had cost `cost_usd`; the cause is the exception's `__cause__`."""

    def __init__(self, message: str, cost_usd: float) -> None:
        super().__init__(message)
        self.cost_usd = cost_usd


class Verifier:
    """Runs jobs on `tiers`, cheapest first, as idle work and greedily, so that verification is repeatable. The
    strongest tier's answer is the reference; for a shadow it is the served answer.

    `max_tokens` bounds an answer, reasoning included, and with it the cost of a job; a shadow may be twice as long as
    the served answer, because its cost is measured too. `redact` is applied to stored texts. `opinions`: the most
    further answers, 0 to 2, that are asked for before an answer is labelled worse; 0 takes the reference for the truth.
    `pauses`: of the judges, by tenant.
    """

    def __init__(
        self,
        tiers: Sequence[Tier],
        panel: Panel,
        terms: TierTerms,
        *,
        max_tokens: int,
        redact: RedactText | None = None,
        opinions: int = MOST_OPINIONS,
        pauses: JudgePauses | None = None,
    ) -> None:
        self.panel = panel
        self._pauses = pauses or JudgePauses(time.time)
        self.asked = AskedTiers(tiers, terms)
        self._tiers = {tier.number: tier for tier in tiers}
        self._strongest = tiers[-1].number
        self._terms = terms
        self._max_tokens = max_tokens
        self._redact = redact
        self._opinions = opinions

    def panel_for(self, tenant: str) -> Panel:
        """Return the panel without the judges that pause for `tenant`."""
        return self.panel.without(self._pauses.paused(tenant))

    def is_paused(self, job: VerificationJob) -> bool:
        """Whether all judges that could decide on the job's answers pause for its tenant."""
        return bool(_deciding(self.panel, job)) and not _deciding(self.panel_for(job.tenant), job)

    def _reference(self, job: VerificationJob) -> int:
        return job.served_tier if job.purpose == "shadow" else self._strongest

    def _most_tokens(self, job: VerificationJob) -> int:
        # A call may hold a whole file, and one that is cut off is lost.
        is_long = job.purpose == "shadow" or job.turn is not None
        return max(self._max_tokens, 2 * job.completion_tokens) if is_long else self._max_tokens

    def bound_usd(self, job: VerificationJob) -> float:
        """Return the most that `job` can cost: all answers at full length, second opinions and compared ones included,
        and the pairwise judge if it is on the panel.

        Raises `AttemptError` for texts that a tier cannot accept.
        """
        self._require_permission(job)
        try:
            judged = self.asked.judged(job)
            if flaw_of_served(job) is not None and judged == [job.served_tier]:
                return 0.0
            reference = self._reference(job)
            compared = self._to_compare(job)
            sent = [] if compared is None or compared.tiers[-1] in judged else [compared.tiers[-1]]
            again, others = self._asked_for_opinions(reference, [*judged, *sent])
            asked = {reference, *judged, *others} - {job.served_tier}
            if compared is not None:
                asked |= {*compared.tiers} - {job.served_tier}
                again += compared.sampled_again
            generating = sum(
                self._bound(
                    number,
                    self._request(job, number),
                    self._most_tokens(job) * self._terms.samples(number),
                    self._uncounted(job, number),
                )
                for number in [*asked, *again]
                if self.asked.takes(number, job)
            )
            return generating + self._judging_bound(job) * len([*judged, *sent]) * (2 if self._opinions else 1)
        except Exception as error:
            raise AttemptError(f"{type(error).__name__}: {error}", 0.0) from error

    def likely_usd(self, record: Record, purpose: Purpose, turn: Exchange | None) -> float:
        """Return about what a verification of `record` for this purpose costs, before its prompt is counted and what is
        compared is known: answers of the length of the served one, and where a model judges, its reading of them."""
        most = self._max_tokens if turn is None else max(self._max_tokens, 2 * record.completion_tokens)
        long = min(most, max(record.completion_tokens, 1))
        strongest = self._strongest
        if purpose == "shadow":
            judged = [min(record.decision.would_be or strongest, strongest)]
            asked = judged
        else:
            judged = [number for number in self._tiers if number != strongest] if purpose == "probe" else [record.tier]
            asked = [number for number in self._tiers if number != record.tier] if purpose == "probe" else [strongest]
        usage = Usage(prompt_tokens=record.prompt_tokens, completion_tokens=long)
        reading = Usage(prompt_tokens=record.prompt_tokens + 2 * long, completion_tokens=long)
        judging = self._terms.price_usd(strongest, reading) if self.panel.labels_open_answers else 0.0
        return sum(self._terms.price_usd(number, usage) for number in asked) + MOST_READINGS * len(judged) * judging

    def expected_usd(self, job: VerificationJob) -> float:
        """Return about what `job` costs: answers as long as the served one, and a judging model's reading of them."""
        long = min(self._most_tokens(job), max(job.completion_tokens, 1))
        judged, compared = self.asked.judged(job), self._to_compare(job)
        asked = {self._reference(job), *judged, *(compared.tiers if compared is not None else ())} - {job.served_tier}
        answers = sum(self._bound(number, self._request(job, number), long) for number in asked)
        reading = self._bound(self._strongest, self._request(job, self._strongest), 3 * long)
        return answers + (MOST_READINGS * len(judged) * reading if self.panel.labels_open_answers else 0.0)

    def _asked_for_opinions(self, reference: int, answered: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the tiers that may be asked for opinions on the answers of `answered`: the `reference`'s, for a second
        answer, and others, which have not answered."""
        again = [reference] if self._opinions else []
        if self._opinions < MOST_OPINIONS:
            return again, []
        others = {other_tier(list(self._tiers), reference, number) for number in answered}
        return again, sorted(other for other in others if other is not None and other not in answered)

    def _judging_bound(self, job: VerificationJob) -> float:
        bound = 0.0
        for judge in self.panel.judges:
            if isinstance(judge, PairwiseJudge):
                # The other answer does not exist yet: a word per token bounds it, and a served one of short tokens.
                served_tokens = min(job.completion_tokens, len(job.answer.encode()))
                words = max(self._most_tokens(job), served_tokens)
                longest = ("word " * 47 + "word\n") * (words // 48) + "word " * (words % 48)
                uncounted = self._uncounted(job, self._strongest)
                served = max(job.answer, longest, key=len)
                asked = judge.having_seen(seen_with(job))
                for request in asked.requests(prompt_text(job.messages), served, longest):
                    bound += self._bound(self._strongest, request, judge.max_tokens, uncounted)
        return bound

    def _require_permission(self, job: VerificationJob) -> None:
        hidden = self.asked.hidden(job.purpose, job.served_tier, job.consent, job.would_be_tier)
        if hidden is not None:
            raise AttemptError(hidden, 0.0)
        if job.turn is None:
            return
        if job.turn.tooling is not None and not job.turn.tooling.tools:
            raise AttemptError("its tools are not stored any more, or an earlier commit stored its turn", 0.0)
        unable = self.asked.unable(job.purpose, job.served_tier, job.turn.needs, job.would_be_tier)
        if unable is not None:
            raise AttemptError(unable, 0.0)

    async def verify(self, job: VerificationJob, waited: Waited | None = None) -> list[Ruling]:
        """Answer, compare and rule: return a ruling per judged tier, the job's own first. `waited` is added to. Raises
        `AttemptError`."""
        self._require_permission(job)
        run = _Run(job, waited or Waited())
        rulings: list[Ruling] = []
        verdicts: dict[int, Verdict] = {}
        flaw = flaw_of_served(job)
        if flaw is not None and self.asked.judged(job) == [job.served_tier]:
            # No reference is bought.
            finding = self.panel.on_calls(JudgeVerdict(no_worse=False, score=0.0, reason=flaw))
            verdict = Verdict.of(served_reply(job), finding)
            return [await self._ruling(job, job.served_tier, None, verdict, 0.0)]
        try:
            reference = await self._answer(run, self._reference(job))
            for number in self.asked.judged(job):
                verdicts[number] = await self._judge(run, number, reference)
                # The first ruling is billed for the reference.
                cost = run.cost_usd - sum(ruling.cost_usd for ruling in rulings)
                rulings.append(await self._ruling(job, number, reference, verdicts[number], cost))
            if (compared := await self._compared(run, reference, verdicts)) is not None:
                # ... and for the answers that are compared.
                cost = run.cost_usd - sum(ruling.cost_usd for ruling in rulings[1:])
                rulings[0] = msgspec.structs.replace(rulings[0], cost_usd=cost, compared=compared)
        except Exception as error:
            # After any failure (of a tier, a judge, or a bug) the job is retried and then given up.
            raise AttemptError(f"{type(error).__name__}: {error}", run.cost_usd) from error
        return rulings

    async def _judge(self, run: _Run, number: int, reference: Reply) -> Verdict:
        """Return the verdict on the tier's answer, and what it rests on; judges that get nowhere pause."""
        panel = self.panel_for(run.job.tenant)
        verdict = await self._judged_by(panel, run, number, reference)
        self._pauses.note(run.job.tenant, _deciding(panel, run.job), labelled=verdict.label is not None)
        return verdict

    async def _judged_by(self, panel: Panel, run: _Run, number: int, reference: Reply) -> Verdict:
        if not reference.is_whole:
            return Verdict(answer=None, label=None, reason="the verifier's own answer is empty or was cut off")
        answer = await self._answer(run, number)
        if not answer.is_whole:
            return Verdict(answer=answer, label=None, reason=f"the answer of tier {number} is empty or was cut off")
        finding = await find(panel, run.job, number, answer, reference)
        run.bill += [self._terms.price_usd(self._strongest, usage) for usage in finding.usage]
        verdict = Verdict.of(answer, finding)
        return await self._confirmed(run, number, reference, verdict)

    async def _confirmed(self, run: _Run, number: int, reference: Reply, verdict: Verdict) -> Verdict:
        """Return `verdict`, as uncertain if it says "worse" and a second opinion contradicts it."""
        job, answer, finding = run.job, verdict.answer, verdict.finding
        if verdict.label != "worse" or answer is None or finding is None or not self._opinions:
            return verdict
        comparing = comparing_by(self.panel, job, number, answer, finding)
        if comparing is None or comparing.basis == "check":
            return verdict
        compared = Compared(
            answer=answer,
            reference=reference,
            tier=self._reference(job),
            other=other_tier(list(self._tiers), self._reference(job), number),
            basis=comparing.basis,
        )
        before = run.cost_usd
        because, usage = await objection(
            comparing.compare,
            compared,
            self._opinions,
            again=lambda: self._answer(run, compared.tier, second=True),
            ask=lambda number: self._answer_if_it_can(run, number),
        )
        run.bill += [self._terms.price_usd(self._strongest, used) for used in usage]
        spent = run.cost_usd - before
        if because is None:
            return msgspec.structs.replace(verdict, opinions_usd=spent)
        reason = f"uncertain: {because}; at first: {verdict.reason}"
        return msgspec.structs.replace(verdict, label=UNCERTAIN, reason=reason, opinions_usd=spent)

    def _to_compare(self, job: VerificationJob) -> VerifiedComparison | None:
        """Return what is compared; None if a reload removed one of its tiers."""
        has_all_tiers = job.compared is not None and all(number in self._tiers for number in job.compared.tiers)
        return job.compared if has_all_tiers else None

    async def _compared(self, run: _Run, reference: Reply, verdicts: dict[int, Verdict]) -> VerifiedComparison | None:
        """Ask the cheap tiers that have not answered, once each, and compare; `verdicts` by tier are known. Without all
        answers nothing is known of them."""
        wanted, job = self._to_compare(run.job), run.job
        if wanted is None:
            return None
        wanted = msgspec.structs.replace(wanted, models=tuple(self._tiers[number].model for number in wanted.tiers))
        if not reference.is_whole:
            return wanted
        replies: list[Reply] = []
        for index, number in enumerate(wanted.tiers):
            reply = await self._answer_if_it_can(run, number, second=number in wanted.tiers[:index])
            if reply is None or not reply.is_whole:
                return wanted
            replies.append(reply)
        question = question_of(turns_of(job.messages))
        *ends, right = (
            final_answer(question, reply.text, job.response_format, reply.calls) for reply in (*replies, reference)
        )
        agreed = agreeing(wanted.tiers, ends)
        if not agreed:
            return msgspec.structs.replace(wanted, agreed=False)
        if not any(number in verdicts for number in agreed):
            verdicts |= {agreed[0]: await self._judge(run, agreed[0], reference)}
        said = {
            number: (verdict.label, None if verdict.finding is None else verdict.finding.reliability)
            for number, verdict in verdicts.items()
        }
        lost, informed = is_lost(agreed, said, ends[-1], right)
        return msgspec.structs.replace(wanted, agreed=True, lost=lost, informed=informed)

    async def _answer_if_it_can(self, run: _Run, number: int, *, second: bool = False) -> Reply | None:
        try:
            return await self._answer(run, number, second=second)
        except TierError:
            # One opinion or comparison less; a tier that is away must not end all verification.
            return None

    async def _answer(self, run: _Run, number: int, *, second: bool = False) -> Reply:
        """Return the tier's answer: the served one, or a new one; `second`: another one of the same tier."""
        if number == run.job.served_tier and not second:
            return served_reply(run.job)
        earlier = run.answers.get((number, second))
        if earlier is not None:
            return earlier
        if (hidden := hidden_from(self._tiers[number], run.job.consent, "reuse")) is not None:
            raise TierError(f"tier {number} is not asked: {hidden}")
        if not self.asked.takes(number, run.job):
            raise TierError(f"tier {number} is not asked: it does not support what the request needs")
        answer, cost_usd = CollectedChoice(), 0.0
        async for delta in self._tiers[number].generate(self._request(run.job, number, second=second)):
            answer.take(delta)
            if delta.end is not None:
                run.waited.seconds += delta.end.times.queue_seconds
                run.bill.append(self._terms.price_usd(number, delta.end.usage))
                cost_usd += run.bill[-1]
        reply = Reply(
            text=answer.text, calls=tuple(answer.tool_calls), finish_reason=answer.finish_reason, cost_usd=cost_usd
        )
        run.answers[number, second] = reply
        return reply

    def _request(self, job: VerificationJob, number: int, *, second: bool = False) -> GenerationRequest:
        grammar = _grammar(job.response_format)
        greedy = SamplingParams(temperature=0.0, grammar=grammar)
        drawn = SamplingParams(temperature=SECOND_TEMPERATURE, seed=SECOND_SEED, grammar=grammar)
        turn = job.turn
        messages = turns_of(job.messages) if turn is None else list(turn.messages)
        return GenerationRequest(
            request_id=f"verify-{job.verification_id}-{job.attempts}-{number}{'-again' if second else ''}",
            messages=messages,
            tooling=None if turn is None else turn.tooling,
            sampling=drawn if second else greedy,
            response_format=job.response_format,
            max_tokens=self._most_tokens(job),
            priority=IDLE_PRIORITY,
            salt=f"{REPLAYED}/{job.key_id or ''}",
        )

    async def _ruling(
        self, job: VerificationJob, number: int, reference: Reply | None, verdict: Verdict, cost_usd: float
    ) -> Ruling:
        """Return the ruling on the tier's answer; without a `reference` none was needed."""
        compared_with = self._reference(job)
        answer, finding = verdict.answer, verdict.finding
        asked = answer is not None and answer.cost_usd is not None
        return Ruling(
            tier=number,
            model=self._tiers[number].model,
            verifier_tier=compared_with,
            verifier_model=self._tiers[compared_with].model,
            label=verdict.label,
            judge=finding.judge if finding is not None else None,
            judge_reliability=finding.reliability if finding is not None else None,
            scores=finding.scores if finding is not None else {},
            verifier_answer=await redacted_text(None if reference is None else reference.shown, self._redact),
            reason=await redacted_text(verdict.reason, self._redact) or DROPPED,
            cost_usd=cost_usd,
            judged_answer=await redacted_text(answer.shown, self._redact) if answer is not None and asked else None,
            judged_cost_usd=answer.cost_usd if answer is not None else None,
            opinions_usd=verdict.opinions_usd,
            judging=finding.judging if finding is not None else None,
        )

    def _uncounted(self, job: VerificationJob, number: int) -> int:
        """Return how many tokens the server that answered counted of the prompt beyond what tier `number` estimates: a
        text may have four times as many as its bytes let expect."""
        return max(job.prompt_tokens - self._tiers[number].count_prompt_tokens(self._request(job, number)), 0)

    def _bound(self, number: int, request: GenerationRequest, max_tokens: int, uncounted: int = 0) -> float:
        prompt_tokens = self._tiers[number].count_prompt_tokens(request) + uncounted
        return self._terms.price_usd(number, Usage(prompt_tokens=prompt_tokens, completion_tokens=max_tokens))


def _deciding(panel: Panel, job: VerificationJob) -> list[str]:
    """Return the names of the judges that may decide on the job's answers; none where its messages cannot be read."""
    turn = job.turn
    if turn is not None and turn.is_about_calls:
        return [NAME] if panel.labels_calls else []
    try:
        return list(panel.deciding(prompt_text(job.messages), job.response_format))
    except (KeyError, IndexError):
        return []


def _grammar(response_format: dict[str, Any] | None) -> Grammar | None:
    """Return the grammar of the served answer, which the other answers must follow too."""
    if response_format is None:
        return None
    schema = schema_of(response_format)
    if schema is None:
        return Grammar(kind="json_object")
    return Grammar(kind="json_schema", text=msgspec.json.encode(schema).decode())
