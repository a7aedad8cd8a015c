"""One verification as data: the waiting job with its texts, and the rulings that it ends with."""

from typing import Any, Literal

import msgspec

from quality.estimates.upgrade_rate import UNCERTAIN
from quality.verification.comparison import VerifiedComparison
from quality.verification.sampling import Purpose
from quality.verification.turn import Turn
from tiers.consent import ALL, Consent

Label = Literal["no_worse", "worse", "tie", "uncertain"]
"""A verdict on an answer; "uncertain" says that opinions on it differ, and teaches nothing."""


class VerificationJob(msgspec.Struct, frozen=True, kw_only=True):
    """One pending verification with the texts it needs, as stored by the ledger; `served_tier` gave `answer`, of
    `completion_tokens`. `would_be_tier`: that of routing, if it was only observed. `consent`: of the request.
    `compared`: cheap tiers whose answers are compared as well. `turn`: the request and its answer with tools and
    attachments, if it has any; `next_step`: "failed" if the caller's next request says that a call of it failed.
    `probability`: with which it was drawn."""

    verification_id: int
    request_id: str
    key_id: str | None
    purpose: Purpose
    served_tier: int
    messages: list[dict[str, str]]
    answer: str
    attempts: int
    completion_tokens: int = 0
    response_format: dict[str, Any] | None = None
    would_be_tier: int | None = None
    consent: Consent = ALL
    compared: VerifiedComparison | None = None
    turn: Turn | None = None
    next_step: Literal["failed"] | None = None
    probability: float = 1.0


class Ruling(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a verification for one tier; `label` is None, with a reason, if nothing may be learned.

    `verifier_answer` is the reference, `verifier_tier`'s answer. `judged_answer`: what `tier` answered to the
    verification, for `judged_cost_usd`; None if its answer was the served one. `opinions_usd`: the part of `cost_usd`
    that further opinions on a verdict of "worse" cost; None if none was asked for. `compared`: what came of the cheap
    answers that were compared, for part of `cost_usd`. `judging`: the fingerprint of the model that was asked to judge.
    """

    tier: int
    model: str
    verifier_tier: int
    verifier_model: str
    label: Label | None
    judge: str | None
    judge_reliability: float | None
    scores: dict[str, float]
    verifier_answer: str | None
    reason: str
    cost_usd: float
    judged_answer: str | None = None
    judged_cost_usd: float | None = None
    opinions_usd: float | None = None
    compared: VerifiedComparison | None = None
    judging: str | None = None

    @property
    def teaches(self) -> bool:
        """Whether something can be learned from the verdict."""
        return self.label not in (None, UNCERTAIN)


class Depth(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of waiting rows, and among the newest `quality.estimates.upgrade_rate.NEWEST` rows of those done, failed,
    done with a label that teaches, and done with an uncertain one."""

    pending: int
    done: int
    failed: int
    labelled: int
    uncertain: int = 0
