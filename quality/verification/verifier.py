"""One verification: tiers answer the same prompt, the panel compares with the strongest tier's answer, labels become a
row."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from inference_core.protocol import Grammar, SamplingParams
from quality.judges.pairwise import PairwiseJudge
from quality.judges.panel import Finding, Panel
from quality.records.redaction import DROPPED, RedactText, redacted_text
from quality.verification.queue import Ruling, VerificationJob
from quality.verification.sampling import Purpose
from tiers.collected_choice import CollectedChoice
from tiers.tier import ChatMessage, FinishReason, GenerationRequest, Tier, Usage

Price = Callable[[int, Usage], float]
"""US dollars that a tier (by number) bills for some usage."""

BATCH_PRIORITY = 2


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A tier's answer. `cost_usd`: what it cost the verification; None for the served one."""

    text: str
    finish_reason: FinishReason | None
    cost_usd: float | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the answer is complete and not empty; only such answers are compared."""
        return self.finish_reason == "stop" and bool(self.text.strip())


class EncodedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt as the classifier sees it, without its text: vectors of little-endian float32 and the encoder's id.

    `classes`: P of the four complexity classes; `app`: a hash of the system prompt, None without one.
    """

    feature_spec: str
    embedding: bytes
    features: bytes | None
    classes: list[float] | None = None
    app: str | None = None


class AttemptError(Exception):
    """An attempt failed after it had cost `cost_usd`; the cause is the exception's `__cause__`."""

    def __init__(self, message: str, cost_usd: float) -> None:
        super().__init__(message)
        self.cost_usd = cost_usd


def judged_tiers(purpose: Purpose, served: int, tiers: Sequence[int], would_be: int | None = None) -> list[int]:
    """Return those of `tiers`, ascending, whose answers are judged, with the verification's own tier first (DESIGN §5).

    The strongest tier's answer is the reference, so for it the tier below is judged. A shadow judges the `would_be`
    tier. Raises `ValueError` if that is none of `tiers`.
    """
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


class Verifier:
    """Runs jobs on `tiers`, cheapest first, at batch priority and greedily, so that verification is repeatable. The
    strongest tier's answer is the reference; for a shadow it is the served answer.

    `max_tokens` bounds an answer, reasoning included, and with it the cost of a job; a shadow may be twice as long as
    the served answer, because its cost is measured too. `samples`: the number of sequences
    that an answer of a tier may be billed for. `redact` is applied to stored texts.
    """

    def __init__(
        self,
        tiers: Sequence[Tier],
        panel: Panel,
        price: Price,
        *,
        max_tokens: int,
        samples: Callable[[int], int] = lambda tier: 1,
        redact: RedactText | None = None,
    ) -> None:
        self.panel = panel
        self._tiers = {tier.number: tier for tier in tiers}
        self._strongest = tiers[-1].number
        self._price = price
        self._max_tokens = max_tokens
        self._samples = samples
        self._redact = redact

    @property
    def tier(self) -> Tier:
        """The strongest tier, which judges and, except for shadows, answers."""
        return self._tiers[self._strongest]

    @property
    def asks_to_judge(self) -> bool:
        """Whether the strongest tier is asked to judge where no rule decides."""
        return any(isinstance(judge, PairwiseJudge) for judge in self.panel.judges)

    def judged(self, job: VerificationJob) -> list[int]:
        """Return the tiers that a job judges; the first one's ruling is the job's own row. Raises `ValueError`."""
        return judged_tiers(job.purpose, job.served_tier, list(self._tiers), job.would_be_tier)

    def _reference(self, job: VerificationJob) -> int:
        return job.served_tier if job.purpose == "shadow" else self._strongest

    def _most_tokens(self, job: VerificationJob) -> int:
        return max(self._max_tokens, 2 * job.completion_tokens) if job.purpose == "shadow" else self._max_tokens

    def bound_usd(self, job: VerificationJob) -> float:
        """Return the most that `job` can cost: all answers at full length, and the pairwise judge if it is on the
        panel.

        Raises `AttemptError` for texts that a tier cannot accept.
        """
        try:
            judged = self.judged(job)
            asked = {self._reference(job), *judged} - {job.served_tier}
            generating = sum(
                self._bound(number, self._request(job, number), self._most_tokens(job) * self._samples(number))
                for number in asked
            )
            return generating + self._judging_bound(job) * len(judged)
        except Exception as error:
            raise AttemptError(f"{type(error).__name__}: {error}", 0.0) from error

    def _judging_bound(self, job: VerificationJob) -> float:
        bound = 0.0
        for judge in self.panel.judges:
            if isinstance(judge, PairwiseJudge):
                # The answers do not exist yet: bound them by characters per token and by the clip length.
                longest = "x " * self._max_tokens
                for request in judge.requests(prompt_text(job.messages), longest, longest):
                    bound += self._bound(self._strongest, request, judge.max_tokens)
        return bound

    async def verify(self, job: VerificationJob) -> list[Ruling]:
        """Answer, compare and rule: return a ruling per judged tier, the job's own first. Raises `AttemptError`."""
        bill: list[float] = []
        rulings: list[Ruling] = []
        try:
            reference = await self._answer(job, self._reference(job), bill)
            for number in self.judged(job):
                answer, finding, reason = await self._judge(job, number, reference, bill)
                # The first ruling is billed for the reference.
                cost = sum(bill) - sum(ruling.cost_usd for ruling in rulings)
                rulings.append(await self._ruling(job, number, reference, answer, finding, reason, cost))
        except Exception as error:
            # After any failure (of a tier, a judge, or a bug) the job is retried and then given up.
            raise AttemptError(f"{type(error).__name__}: {error}", sum(bill)) from error
        return rulings

    async def _judge(
        self, job: VerificationJob, number: int, reference: Reply, bill: list[float]
    ) -> tuple[Reply | None, Finding | None, str]:
        """Return the tier's answer and the panel's finding on it, or None for what there is not, and the reason."""
        if not reference.is_whole:
            return None, None, "the verifier's own answer is empty or was cut off"
        answer = await self._answer(job, number, bill)
        if not answer.is_whole:
            return answer, None, f"the answer of tier {number} is empty or was cut off"
        prompt = prompt_text(job.messages)
        finding = await self.panel.judge(
            prompt=prompt,
            answer=answer.text,
            reference_answer=reference.text,
            response_format=job.response_format,
        )
        bill += [self._price(self._strongest, usage) for usage in finding.usage]
        return answer, finding, finding.reason

    async def _answer(self, job: VerificationJob, number: int, bill: list[float]) -> Reply:
        """Return the tier's answer: the served one, or a new one."""
        if number == job.served_tier:
            return Reply(text=job.answer, finish_reason="stop")
        answer, cost_usd = CollectedChoice(), 0.0
        async for delta in self._tiers[number].generate(self._request(job, number)):
            answer.take(delta)
            if delta.usage is not None:
                bill.append(self._price(number, delta.usage))
                cost_usd += bill[-1]
        return Reply(text=answer.text, finish_reason=answer.finish_reason, cost_usd=cost_usd)

    def _request(self, job: VerificationJob, number: int) -> GenerationRequest:
        return GenerationRequest(
            request_id=f"verify-{job.verification_id}-{job.attempts}-{number}",
            messages=[msgspec.convert(message, ChatMessage) for message in job.messages],
            sampling=SamplingParams(temperature=0.0, grammar=_grammar(job.response_format)),
            response_format=job.response_format,
            max_tokens=self._most_tokens(job),
            priority=BATCH_PRIORITY,
            salt=f"quality/{job.key_id or ''}",
        )

    async def _ruling(
        self,
        job: VerificationJob,
        number: int,
        reference: Reply,
        answer: Reply | None,
        finding: Finding | None,
        reason: str,
        cost_usd: float,
    ) -> Ruling:
        compared_with = self._reference(job)
        asked = answer is not None and answer.cost_usd is not None
        return Ruling(
            tier=number,
            model=self._tiers[number].model,
            verifier_tier=compared_with,
            verifier_model=self._tiers[compared_with].model,
            label=_label(finding) if finding is not None else None,
            judge=finding.judge if finding is not None else None,
            judge_reliability=finding.reliability if finding is not None else None,
            scores=finding.scores if finding is not None else {},
            verifier_answer=await redacted_text(reference.text, self._redact),
            reason=await redacted_text(reason, self._redact) or DROPPED,
            cost_usd=cost_usd,
            judged_answer=await redacted_text(answer.text, self._redact) if answer is not None and asked else None,
            judged_cost_usd=answer.cost_usd if answer is not None else None,
        )

    def _bound(self, number: int, request: GenerationRequest, max_tokens: int) -> float:
        prompt_tokens = self._tiers[number].count_prompt_tokens(request)
        return self._price(number, Usage(prompt_tokens=prompt_tokens, completion_tokens=max_tokens))


def prompt_text(messages: list[dict[str, str]]) -> str:
    """Return what was asked: the last user turn, or the last message without one."""
    asked = [message["content"] for message in messages if message["role"] == "user"]
    return asked[-1] if asked else messages[-1]["content"]


def training_row(
    job: VerificationJob,
    rulings: Sequence[Ruling],
    encoded: EncodedPrompt,
    tiers: int,
    now: float,
    fingerprints: Sequence[str] = (),
) -> dict[str, Any] | None:
    """Return the `training_rows` row that `rulings` yield for `tiers` tiers, with their `fingerprints` where known;
    None without a label.

    Only the judged tiers' outcomes are known, and only where the strongest tier's answer was the reference; the
    strongest tier is no worse than itself. `correct` stays empty, because agreeing with the strongest tier is not being
    right. The weight is the judge's informedness (Youden's J).
    """
    no_worse: list[bool | None] = [None] * tiers
    weights = [0.0] * tiers
    for ruling in rulings:
        if ruling.label is not None and ruling.judge_reliability is not None and ruling.verifier_tier == tiers:
            no_worse[ruling.tier - 1] = ruling.label != "worse"
            weights[ruling.tier - 1] = 2 * ruling.judge_reliability - 1
    if not any(weights):
        return None
    no_worse[-1] = True
    return {
        "request_id": job.request_id,
        "key_id": job.key_id,
        "source": "probe" if job.purpose == "probe" else "verification",
        **msgspec.structs.asdict(encoded),
        "no_worse": no_worse,
        "correct": None,
        "weights": weights,
        "tiers": list(fingerprints) or None,
        "created_at": now,
    }


def _grammar(response_format: dict[str, Any] | None) -> Grammar | None:
    """Return the grammar of the served answer, which the other answers must follow too."""
    if response_format is None:
        return None
    schema = (response_format.get("json_schema") or {}).get("schema")
    if schema is None:
        return Grammar(kind="json_object")
    return Grammar(kind="json_schema", text=msgspec.json.encode(schema).decode())


def _label(finding: Finding) -> Literal["no_worse", "worse", "tie"] | None:
    if finding.label is None:
        return None
    if finding.tie:
        return "tie"
    return "no_worse" if finding.label else "worse"
