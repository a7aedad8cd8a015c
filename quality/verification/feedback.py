"""Feedback and reviews of answers, stored at once as labels (docs/quality-loop.md): a caller's feedback counts for its
own key alone, an operator's review for training as well."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
from sqlalchemy import and_, delete, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from migrations.tables.audit import audited
from migrations.tables.quality import training_rows, verifications
from migrations.tables.requests import requests
from quality.estimates.verified_sample import PEOPLE, UNCERTAIN
from quality.judges.calibration import REVIEW as REVIEW_SCORE
from quality.judges.rules import ExactJudge
from quality.records.record import Record
from quality.records.redaction import DROPPED, RedactText, redacted_text
from quality.store.database import writing_first
from quality.store.queries import insert_into
from quality.verification.judging import prompt_text
from quality.verification.queue import NO_TURN
from quality.verification.training_rows import FEEDBACK, REVIEW, Encode
from tiers.catalog.catalog import CatalogInUse

log = logging.getLogger(__name__)

JUDGE = PEOPLE
# By source: the sources whose rows of the same request a new row replaces.
_REPLACED = {FEEDBACK: (FEEDBACK,), REVIEW: ("verification", FEEDBACK, REVIEW)}


class Feedback(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller says of an answer."""

    score: float | None = None
    """In [0, 1], from useless to everything wanted."""
    check: Literal["passed", "failed"] | None = None
    """How a program of the caller's judged the work, such as its tests."""
    correction: str | None = None
    """What the answer should have been."""
    comment: str | None = None
    """For people to read."""


class FeedbackTaken(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of feedback."""

    request_id: str
    tier: int
    label: Literal["no_worse", "worse"]
    learned: bool
    """Whether it became a label."""
    reason: str
    """Why it did, or why not."""


class _Texts(NamedTuple):
    """What is stored of a feedback's texts and of the reason for its label."""

    correction: str | None
    comment: str | None
    why: str


class FeedbackDesk:
    """Stores feedback on recorded requests of a ladder of `tiers`; later feedback replaces earlier.

    A verification that waits for the request is cancelled. A review replaces the labels of an earlier verification; a
    caller's feedback, which counts for its own key alone, leaves them to all keys.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        encode: Encode | None,
        tiers: int,
        clock: Callable[[], float] = time.time,
        redact: RedactText | None = None,
        catalog: CatalogInUse | None = None,
    ) -> None:
        """`catalog`: labels are stored with the fingerprints of its tiers."""
        self._engine = engine
        self._catalog = catalog
        self._encode = encode
        self._tiers = tiers
        self._clock = clock
        self._redact = redact

    async def take(self, record: Record, feedback: Feedback, reviewer: str | None = None) -> FeedbackTaken:
        """Store the user's feedback on `record`'s answer. Raises `ValueError` for empty feedback.

        `reviewer`: the operator who gives it instead of the user, which is audited with the previous feedback.
        """
        good, why = await _verdict(record, feedback, "user" if reviewer is None else "reviewer")
        texts = await self._kept(record, feedback, why)
        source = FEEDBACK if reviewer is None else REVIEW
        learned = await self._training_row(record, good, source)
        async with writing_first(self._engine).begin() as connection:
            scores: dict[str, float] = {} if feedback.score is None else {JUDGE: feedback.score}
            if reviewer is not None:
                before = await self._before(connection, record)
                await connection.execute(self._event(before, record, feedback, good, reviewer, texts.comment))
                scores |= _reviewed_scores(before, good)
            await connection.execute(self._verification(connection, record, scores, good, texts, reviewer is not None))
            if learned is not None:
                replaced = training_rows.c.source.in_(_REPLACED[source])
                await connection.execute(
                    delete(training_rows).where(training_rows.c.request_id == record.request_id, replaced)
                )
                await connection.execute(training_rows.insert().values(learned))
        return FeedbackTaken(
            request_id=record.request_id,
            tier=record.tier,
            label="no_worse" if good else "worse",
            learned=learned is not None,
            reason=why if learned is not None else self._why_not(record),
        )

    async def _kept(self, record: Record, feedback: Feedback, why: str) -> _Texts:
        """Return the texts as they may be stored: redacted, and only if the request's own are stored."""
        said = (feedback.correction, feedback.comment) if record.messages else (None, None)
        correction, comment = [await redacted_text(text, self._redact) for text in said]
        return _Texts(correction, comment, await redacted_text(why, self._redact) or DROPPED)

    def _verification(
        self,
        connection: AsyncConnection,
        record: Record,
        scores: dict[str, float],
        good: bool,
        texts: _Texts,
        reviewed: bool,
    ) -> Any:
        now = self._clock()
        verdict = {
            "status": "done",
            "judge": JUDGE,
            "judge_reliability": 1.0,
            "label": "no_worse" if good else "worse",
            "scores": scores,
            "verifier_answer": texts.correction,
            "reason": f"{texts.why}: {texts.comment}" if texts.comment else texts.why,
            "finished_at": now,
            **NO_TURN,
        }
        if reviewed and texts.correction is None:
            # Keep the text that the reviewer compared the answer with.
            del verdict["verifier_answer"]
        row = insert_into(verifications, connection.dialect).values(
            request_id=record.request_id,
            key_id=record.key_id,
            tier=record.tier,
            model=record.model,
            sampled_probability=1.0,
            sampled_reason=FEEDBACK,
            cost_usd=0.0,
            reserved_usd=0.0,
            attempts=0,
            created_at=now,
            **verdict,
        )
        # A running verification is left to end, because its cost must be booked.
        free = or_(verifications.c.status != "pending", verifications.c.owner.is_(None))
        return row.on_conflict_do_update(
            index_elements=[verifications.c.request_id, verifications.c.tier], set_=verdict, where=free
        )

    async def _before(self, connection: AsyncConnection, record: Record) -> dict[str, Any] | None:
        """Return the label so far, its judge and all scores; None without one."""
        columns = (verifications.c.label, verifications.c.judge, verifications.c.scores)
        mine = (verifications.c.request_id == record.request_id, verifications.c.tier == record.tier)
        row = (await connection.execute(select(*columns).where(*mine))).mappings().first()
        return None if row is None else dict(row)

    def _event(
        self,
        before: dict[str, Any] | None,
        record: Record,
        feedback: Feedback,
        good: bool,
        reviewer: str,
        comment: str | None,
    ) -> Any:
        verdict = None if before is None else {name: before[name] for name in ("label", "judge")}
        after = {"label": "no_worse" if good else "worse", "judge": JUDGE, "score": feedback.score}
        details = {"tier": record.tier, "before": verdict, "after": after}
        return audited(self._clock(), reviewer, "answer.reviewed", record.request_id, comment, details)

    async def _training_row(self, record: Record, good: bool, source: str) -> dict[str, Any] | None:
        if self._encode is None or not record.messages or record.tier >= self._tiers:
            return None
        if record.target is not None or record.is_continued:
            return None
        try:
            encoded = await self._encode(record.messages)
        except Exception as error:
            log.warning("feedback on %s is stored, but its prompt could not be encoded: %s", record.request_id, error)
            return None
        no_worse: list[bool | None] = [None] * self._tiers
        weights = [0.0] * self._tiers
        no_worse[record.tier - 1], no_worse[-1] = good, True
        weights[record.tier - 1] = 1.0
        return {
            "request_id": record.request_id,
            "key_id": record.key_id,
            "source": source,
            **msgspec.structs.asdict(encoded),
            "no_worse": no_worse,
            "correct": None,
            "weights": weights,
            "tiers": None if self._catalog is None else list(self._catalog.current.tier_fingerprints),
            "created_at": self._clock(),
        }

    def _why_not(self, record: Record) -> str:
        if not record.messages:
            return "stored, but not learned from: the texts of this request were not kept"
        if record.tier >= self._tiers:
            return "stored, but not learned from: no tier is stronger than the one that answered"
        if record.target is not None:
            return "stored, but not learned from: a target stood in for the tier"
        if record.is_continued:
            return "stored, but not learned from: the answer was broken off and went on"
        return "stored, but not learned from: the classifier is not there to encode it"


def _reviewed_scores(before: dict[str, Any] | None, good: bool) -> dict[str, float]:
    """Return the scores that a review leaves: the judges' own stay, so that the review counts for what they said.

    Not those of an uncertain verdict: it made no label, so it was no error of a judge.
    """
    kept = {} if before is None or before["label"] == UNCERTAIN else before["scores"] or {}
    return {name: score for name, score in kept.items() if name != JUDGE} | {REVIEW_SCORE: float(good)}


async def _verdict(record: Record, feedback: Feedback, who: str) -> tuple[bool, str]:
    """Return whether the answer was good enough, and why. A correction that can be checked decides alone."""
    if feedback.correction is not None and record.messages and record.answer:
        said = await ExactJudge().judge(
            prompt=prompt_text(record.messages), answer=record.answer, reference_answer=feedback.correction
        )
        if said.no_worse is not None:
            return said.no_worse, f"the {who}'s correction: {said.reason}"
    if feedback.score is not None:
        return feedback.score >= 0.5, f"the {who}'s score is {feedback.score:g}"
    if feedback.check is not None:
        return feedback.check == "passed", f"the {who}'s check {feedback.check}"
    if feedback.correction is None:
        raise ValueError("feedback needs a score, a check or a correction")
    return False, f"the {who} corrected the answer"


async def reviewable(engine: AsyncEngine, numbers: Sequence[int]) -> set[int]:
    """Return those of these verifications that are about the served answer and have both answers' texts stored."""
    v = verifications.c
    query = (
        select(v.verification_id)
        .join(requests, and_(requests.c.request_id == v.request_id, requests.c.tier == v.tier))
        .where(
            v.verification_id.in_(numbers),
            v.verifier_answer.is_not(None),
            requests.c.messages.is_not(None),
            requests.c.answer.is_not(None),
        )
    )
    async with engine.connect() as connection:
        return set(await connection.scalars(query))
