"""`POST /admin/api/verifications/{id}/review`: an operator has read a judged answer, and says what it was worth."""

from typing import Annotated, Any, Literal

import msgspec
from litestar import post
from litestar.params import FromPath
from litestar.response import Response
from msgspec import Meta

from gateway.api.generating import read_body
from gateway.api.guard import OPERATOR, actor_of
from gateway.api.operations import describe
from gateway.database_reach import reached
from gateway.errors import ApiError
from gateway.parts import HttpRequest, Parts, parts_of
from quality.database import MOST_INTEGER
from quality.feedback import JUDGE, Feedback, FeedbackTaken
from quality.listings import VERIFICATIONS
from quality.record import Record

Verdict = Literal["no_worse", "tie", "worse"]
_SCORES: dict[Verdict, float] = {"no_worse": 1.0, "tie": 0.5, "worse": 0.0}
_LOOKED_THROUGH = 50


class ReviewOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The served answer beside the verifier's; `comment` is for people to read."""

    verdict: Verdict
    comment: Annotated[str, Meta(max_length=8192)] | None = None


class Reviewable(msgspec.Struct, frozen=True):
    """A judged answer whose texts are stored: the verification's whole row, and its request."""

    row: dict[str, Any]
    record: Record


class ReviewPage(msgspec.Struct, frozen=True):
    """The first answer to review, and the cursor of what comes after it, None after the last."""

    found: Reviewable | None
    next: str | None


_order = msgspec.json.Decoder(ReviewOrder)


@post(
    "/verifications/{number:int}/review",
    opt=OPERATOR,
    status_code=200,
    operation_class=describe(ReviewOrder, FeedbackTaken),
    summary="Review a judged answer",
)
async def review_verification(request: HttpRequest, number: FromPath[int]) -> Response[Any]:
    """The strongest label, in the place of the judge's; learned from by the next training. 409 unless it is of the
    answer that was served, with stored texts."""
    taken = await order_review(request, number, await read_body(request, _order))
    return Response(taken, media_type="application/json")


async def order_review(request: HttpRequest, number: int, order: ReviewOrder) -> FeedbackTaken:
    """Take the verdict. Raises `ApiError` 404, 409 and 503."""
    parts = parts_of(request)
    row = await reached(VERIFICATIONS.one(parts.database, number)) if 1 <= number <= MOST_INTEGER else None
    if row is None:
        raise ApiError(404, f"There is no verification {number}.", param="number", code="verification_not_found")
    reviewable = await _reviewable(parts, row)
    if reviewable is None:
        because = "only served answers that have been judged, with stored texts, can be reviewed"
        raise ApiError(409, f"Verification {number}: {because}.", param="number", code="not_reviewable")
    feedback = Feedback(score=_SCORES[order.verdict], comment=order.comment)
    return await reached(parts.feedback.take(reviewable.record, feedback, reviewer=actor_of(request)))


async def next_review(parts: Parts, cursor: str | None) -> ReviewPage:
    """The newest answer from `cursor` on that a judge called worse and nobody reviewed, of so many looked through.
    Raises `PageError`."""
    bounds = {} if cursor is None else {"cursor": cursor}
    chosen = {"status": "done", "label": "worse"}
    judged = await reached(VERIFICATIONS.page(parts.database, chosen, limit=_LOOKED_THROUGH, **bounds))
    for place, row in enumerate(judged.rows):
        if row["judge"] == JUDGE:
            continue
        whole = await reached(VERIFICATIONS.one(parts.database, row["verification_id"]))
        found = None if whole is None else await _reviewable(parts, whole)
        if found is not None:
            last = place == len(judged.rows) - 1 and judged.next is None
            return ReviewPage(found, None if last else VERIFICATIONS.cursor_of(row))
    return ReviewPage(None, judged.next)


async def _reviewable(parts: Parts, row: dict[str, Any]) -> Reviewable | None:
    """None unless it is of the answer that was served, judged, with both texts."""
    if row["status"] != "done" or row["verifier_answer"] is None:
        return None
    record = await reached(parts.records.find(row["request_id"]))
    if record is None or record.tier != row["tier"] or not record.messages or record.answer is None:
        return None
    return Reviewable(row, record)
