"""One verification: the strongest tier answers the same prompt, the panel compares, a label may become a row."""

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from inference_core.protocol import SamplingParams
from quality.judges.pairwise import PairwiseJudge
from quality.judges.panel import Finding, Panel
from quality.verification_queue import Job, Ruling
from tiers.tier import ChatMessage, FinishReason, GenerationRequest, Tier, Usage

Price = Callable[[int, Usage], float]
"""US dollars that a tier (by number) bills for some usage."""

BATCH_PRIORITY = 2
_NOTHING = Usage(prompt_tokens=0, completion_tokens=0)


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """The verifier's answer. A cut-off one is no reference."""

    text: str
    finish_reason: FinishReason | None
    usage: Usage


class EncodedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt as the classifier sees it, without its text: vectors of little-endian float32 and what made them."""

    feature_spec: str
    embedding: bytes
    features: bytes | None


class AttemptError(Exception):
    """An attempt failed after costing `cost_usd`; the cause is the exception's `__cause__`."""

    def __init__(self, message: str, cost_usd: float) -> None:
        super().__init__(message)
        self.cost_usd = cost_usd


class Verifier:
    """Runs jobs on `tier` at batch priority, greedily, so that a repeated verification gives the same reference.

    `max_tokens` bounds a reference answer, reasoning included, and with it the cost of a job.
    """

    def __init__(self, tier: Tier, panel: Panel, price: Price, *, max_tokens: int) -> None:
        self.tier = tier
        self.panel = panel
        self._price = price
        self._max_tokens = max_tokens

    def bound_usd(self, job: Job) -> float:
        """The most that `job` can cost: a reference of full length, and the pairwise judge if it sits on the panel.

        Raises `AttemptError` for texts that the tier cannot take.
        """
        try:
            return self._bound_of(job)
        except Exception as error:
            raise AttemptError(f"{type(error).__name__}: {error}", 0.0) from error

    def _bound_of(self, job: Job) -> float:
        bound = self._bound(self._request(job), self._max_tokens)
        for judge in self.panel.judges:
            if isinstance(judge, PairwiseJudge):
                # The reference is not there yet: a token has at most a handful of characters, a clip has a length.
                longest = "x " * self._max_tokens
                for request in judge.requests(prompt_text(job.messages), job.answer, longest):
                    bound += self._bound(request, judge.max_tokens)
        return bound

    async def verify(self, job: Job) -> Ruling:
        """Answer, compare, rule. Raises `AttemptError`."""
        spent = 0.0
        try:
            reference = await self._answer(job)
            spent = self._cost(reference.usage)
            if reference.finish_reason != "stop" or not reference.text.strip():
                return self._ruling(reference, None, "the verifier's own answer is empty or was cut off", spent)
            finding = await self.panel.judge(
                prompt=prompt_text(job.messages), answer=job.answer, reference_answer=reference.text
            )
        except Exception as error:
            # Whatever went wrong (a tier, a judge, a bug in one), the job is retried and then given up.
            raise AttemptError(f"{type(error).__name__}: {error}", spent) from error
        spent += sum(self._cost(usage) for usage in finding.usage)
        return self._ruling(reference, finding, finding.reason, spent)

    async def _answer(self, job: Job) -> Reference:
        text, finish_reason, usage = "", None, _NOTHING
        async for delta in self.tier.generate(self._request(job)):
            text += delta.text
            finish_reason = delta.finish_reason or finish_reason
            usage = delta.usage or usage
        return Reference(text=text, finish_reason=finish_reason, usage=usage)

    def _request(self, job: Job) -> GenerationRequest:
        return GenerationRequest(
            request_id=f"verify-{job.verification_id}-{job.attempts}",
            messages=[msgspec.convert(message, ChatMessage) for message in job.messages],
            sampling=SamplingParams(temperature=0.0),
            max_tokens=self._max_tokens,
            priority=BATCH_PRIORITY,
            salt=f"quality/{job.key_id or ''}",
        )

    def _ruling(self, reference: Reference, finding: Finding | None, reason: str, cost_usd: float) -> Ruling:
        return Ruling(
            verifier_tier=self.tier.number,
            verifier_model=self.tier.model,
            label=_label(finding) if finding is not None else None,
            judge=finding.judge if finding is not None else None,
            judge_reliability=finding.reliability if finding is not None else None,
            scores=finding.scores if finding is not None else {},
            verifier_answer=reference.text,
            reason=reason,
            cost_usd=cost_usd,
        )

    def _bound(self, request: GenerationRequest, max_tokens: int) -> float:
        prompt_tokens = self.tier.count_prompt_tokens(request)
        return self._cost(Usage(prompt_tokens=prompt_tokens, completion_tokens=max_tokens))

    def _cost(self, usage: Usage) -> float:
        return self._price(self.tier.number, usage)


def prompt_text(messages: list[dict[str, str]]) -> str:
    """What was asked: the last user turn, or the last message where there is none."""
    asked = [message["content"] for message in messages if message["role"] == "user"]
    return asked[-1] if asked else messages[-1]["content"]


def training_row(job: Job, ruling: Ruling, encoded: EncodedPrompt, tiers: int, now: float) -> dict[str, Any] | None:
    """The row of `training_rows` that `ruling` teaches for `tiers` tiers, or None if it has no label.

    Only the judged tier's outcome is known; the strongest tier is no worse than itself. `correct` stays empty,
    because agreeing with the strongest tier is not being right. The weight is the judge's informedness (Youden's J).
    """
    if ruling.label is None or ruling.judge_reliability is None:
        return None
    no_worse: list[bool | None] = [None] * tiers
    weights = [0.0] * tiers
    no_worse[job.tier - 1] = ruling.label != "worse"
    weights[job.tier - 1] = 2 * ruling.judge_reliability - 1
    no_worse[-1] = True
    return {
        "request_id": job.request_id,
        "key_id": job.key_id,
        "source": "verification",
        **msgspec.structs.asdict(encoded),
        "no_worse": no_worse,
        "correct": None,
        "weights": weights,
        "cluster": None,
        "created_at": now,
    }


def _label(finding: Finding) -> Literal["no_worse", "worse", "tie"] | None:
    if finding.label is None:
        return None
    if finding.tie:
        return "tie"
    return "no_worse" if finding.label else "worse"
