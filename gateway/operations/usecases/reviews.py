"""Judged answers for operators to read, and operators' verdicts on them."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.base.errors import ApiError, bad_request
from gateway.base.stores.database import reached
from gateway.edge.asgi import HttpRequest
from gateway.inference.service import Serving
from quality.estimates.upgrade_rate import UNCERTAIN
from quality.records.record import Record
from quality.store.database import MOST_INTEGER
from quality.store.pages import VERIFICATIONS, Page, PageError
from quality.verification.feedback import JUDGE, Feedback, FeedbackTaken, reviewable

ReviewVerdict = Literal["no_worse", "tie", "worse"]
_SCORES: dict[ReviewVerdict, float] = {"no_worse": 1.0, "tie": 0.5, "worse": 0.0}
LOOKED_THROUGH = 50
# The labels of answers to review: what a judge said, and where opinions differ.
_REVIEWED = ("worse", UNCERTAIN)


class ReviewOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The verdict on the served answer compared with the verifier's; `comment` is for people."""

    verdict: ReviewVerdict
    comment: Annotated[str, Meta(max_length=8192)] | None = None


class Reviewable(msgspec.Struct, frozen=True):
    """A judged answer with stored texts: the verification's whole row, and its request."""

    row: dict[str, Any]
    record: Record


async def order_review(serving: Serving, actor: str, number: int, order: ReviewOrder) -> FeedbackTaken:
    """Store the verdict. Raises `ApiError` 404, 409 and 503."""
    row = await reached(VERIFICATIONS.one(serving.database, number)) if 1 <= number <= MOST_INTEGER else None
    if row is None:
        raise ApiError(404, f"There is no verification {number}.", param="number", code="verification_not_found")
    asked = await _with_texts(serving, row)
    if asked is None:
        because = "only served answers that have been judged, with stored texts, can be reviewed"
        raise ApiError(409, f"Verification {number}: {because}.", param="number", code="not_reviewable")
    feedback = Feedback(score=_SCORES[order.verdict], comment=order.comment)
    return await reached(serving.feedback.take(asked.record, feedback, reviewer=actor))


async def review_of(serving: Serving, number: int) -> Reviewable | None:
    """Return that verification with its texts, None if they are deleted. Raises `ApiError` 503."""
    row = await reached(VERIFICATIONS.one(serving.database, number))
    return None if row is None else await _with_texts(serving, row)


def label_asked_for(request: HttpRequest) -> str:
    """Return which answers the query wants to review: those judged worse, or uncertain ones. Raises `ApiError` 400."""
    label: str = request.query_params.get("label", "worse")
    if label not in _REVIEWED:
        raise bad_request(
            f"label is {label[:64]!r}; it must be one of {', '.join(_REVIEWED)}.", "label", "invalid_value"
        )
    return label


async def reviews_from(serving: Serving, label: str, cursor: str | None, most: int) -> Page:
    """Return the newest unreviewed answers with this `label`, from `cursor` on; `most` of them, from a limited number
    of rows, without texts. Raises `ApiError` 400 and 503."""
    chosen, bounds = {"status": "done", "label": label}, {"cursor": cursor} if cursor else {}
    try:
        judged = await reached(VERIFICATIONS.page(serving.database, chosen, limit=LOOKED_THROUGH, **bounds))
    except PageError as error:
        raise bad_request(f"{error}.", error.param, "invalid_value") from error
    unseen = [row["verification_id"] for row in judged.rows if row["judge"] != JUDGE]
    with_texts = await reached(reviewable(serving.database, unseen))
    rows = [row for row in judged.rows if row["verification_id"] in with_texts]
    if len(rows) < most or rows[most - 1] is judged.rows[-1]:
        return Page(rows=rows, next=judged.next)
    return Page(rows=rows[:most], next=VERIFICATIONS.cursor_of(rows[most - 1]))


async def _with_texts(serving: Serving, row: dict[str, Any]) -> Reviewable | None:
    """Return None unless it is about the served answer, judged, with both texts: as `reviewable`, but also for a
    request that is recorded and not stored yet."""
    if row["status"] != "done" or row["verifier_answer"] is None:
        return None
    record = await reached(serving.records.find(row["request_id"]))
    if not isinstance(record, Record) or record.tier != row["tier"] or not record.messages or record.answer is None:
        return None
    return Reviewable(row, record)
